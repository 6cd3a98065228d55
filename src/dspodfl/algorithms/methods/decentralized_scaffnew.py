"""Decentralized Scaffnew: corrected local steps; all links exchange together, with one probability."""

from dspodfl.algorithms.common_draw import PROBABILITY as DEFAULT
from dspodfl.algorithms.corrections import PROBABILITY, S, Together
from dspodfl.algorithms.entry import Entry

ENTRY = Entry(
    label="Decentralized Scaffnew",
    line="corrected local steps, and all links together with a probability; exact",
    schedule="dspodfl.algorithms.common_draw:together",
    rule=f"{__name__}:corrected",
    settings={"probability": PROBABILITY, "s": S},
    reference="Mishchenko, Malinovsky, Stich and Richtárik, ICML 2022; Guo et al., 2023",
    aliases=("decentralized proxskip",),
    order=24,
    exact=True,
    sporadic=False,
    takes_local=False,
    update="Θ̂ = Θ − α(G − h)\nΘ ← Θ̂ − s L Θ̂ with probability ϖ, else Θ̂\nh ← h + (ϖ/α)(Θ⁺ − Θ̂)",
    when="Links are dear and clients reliable: about √(χ/κ) exchanges an iteration are enough, κ the condition number "
    "of the problem and χ that of the graph. All clients need one common draw.",
)


def corrected(probability: float = DEFAULT, s: float = 0.5) -> Together:
    """Return the rule.

    Args:
        probability: That of the schedule.
        s: The share of the mixing that is made.

    Returns:
        The rule.
    """
    return Together(s, probability)
