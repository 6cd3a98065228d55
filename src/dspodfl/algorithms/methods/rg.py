"""Randomized gossip: every client steps at every iteration, links exchange with their rates b_ij."""

from dspodfl.algorithms.entry import Entry, Style

ENTRY = Entry(
    label="RG",
    line="randomized gossip: SGD always, exchange sporadic (b)",
    schedule="dspodfl.algorithms.schedules:rg",
    style=Style("#009E73", (0, (6, 2, 1, 2)), "^"),
    aliases=("randomized gossip",),
    reference="Boyd et al., Randomized Gossip Algorithms, 2006",
    paper=True,
    order=2,
    update="Θ ← PΘ − αG(Θ)",
    when="Links are slow or unreliable and computing is cheap. Every client steps, so that none counts for more.",
)
