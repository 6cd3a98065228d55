"""MATCHA: matchings of the graph fire as a whole, those that connect it well more often."""

from dspodfl.algorithms.checks import is_share
from dspodfl.algorithms.entry import Entry, Setting

ENTRY = Entry(
    label="MATCHA",
    line="links fire in matchings, with the probabilities that connect the graph best within a budget",
    schedule="dspodfl.algorithms.matchings:Matcha",
    settings={
        "budget": Setting(
            line="C, the share of all matchings that fire at an iteration, on average; 0.5 by default",
            allowed="a number in (0, 1]",
            check=is_share,
        )
    },
    reference="Wang, Sahu, Yang, Joshi and Kar, MATCHA, IEEE Trans. Signal Processing 2022",
    sporadic=False,
    order=45,
    update="Θ ← PΘ − αG(Θ),  P = I − a Σ_j B_j L_j,  B_j = 1 with probability p_j\n"
    "p maximizes λ₂(Σ p_j L_j) with Σ p_j ≤ CM;  a minimizes λ_max(E[P²] − 11ᵀ/n)",
    when="The graph is known and stays, links cost time, and every client can step at every iteration: critical links "
    "are used more often than others. It knows nothing of b: all links count alike.",
)
