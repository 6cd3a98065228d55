"""Scaffnew (ProxSkip): corrected local steps, and an average of all models with a probability."""

from dspodfl.algorithms.common_draw import PROBABILITY as DEFAULT
from dspodfl.algorithms.corrections import PROBABILITY, Together
from dspodfl.algorithms.entry import Entry

ENTRY = Entry(
    label="Scaffnew",
    line="corrected local steps, and the average of all models with a probability; exact",
    schedule="dspodfl.algorithms.common_draw:server",
    rule=f"{__name__}:corrected",
    settings={"probability": PROBABILITY},
    reference="Mishchenko, Malinovsky, Stich and Richtárik, ProxSkip, ICML 2022",
    aliases=("proxskip",),
    order=25,
    exact=True,
    sends="1 model to every other client",
    sporadic=False,
    takes_local=False,
    update="Θ̂ = Θ − α(G − h)\nΘ ← JΘ̂ with probability ϖ, else Θ̂\nh ← h + (ϖ/α)(Θ⁺ − Θ̂)",
    when="All clients can be averaged, and averages are dear: ϖ = √(μ/L) averages an iteration give the speed of "
    "gradient descent. It runs on the complete graph, whatever the graph of the study is.",
)


def corrected(probability: float = DEFAULT) -> Together:
    """Return the rule.

    Args:
        probability: That of the schedule.

    Returns:
        The rule.
    """
    return Together(1.0, probability)
