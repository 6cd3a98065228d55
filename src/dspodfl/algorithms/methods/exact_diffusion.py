"""Exact diffusion: corrected steps, then mixing; every client and every link, always."""

from dspodfl.algorithms.corrections import Together
from dspodfl.algorithms.entry import Entry

ENTRY = Entry(
    label="Exact diffusion",
    line="corrected steps, then half of the mixing, every client and link always; exact for α < 2/L on any graph",
    schedule="dspodfl.algorithms.schedules:dgd",
    rule=f"{__name__}:corrected",
    reference="Yuan, Ying, Zhao and Sayed, IEEE TSP 2019; Li, Shi and Yan (NIDS), IEEE TSP 2019",
    order=27,
    exact=True,
    sporadic=False,
    takes_local=False,
    update="Θ̂ = Θ − α(G − h)\nΘ ← Θ̂ − ½ L Θ̂\nh ← h − (1/2α) L Θ̂",
    when="Everybody is reliable and data differ: exact, with the step sizes of gradient descent whatever the graph. "
    "Where links come and go, sporadic Scaffnew is its form.",
)


def corrected() -> Together:
    """Return the rule.

    Returns:
        The rule.
    """
    return Together(0.5)
