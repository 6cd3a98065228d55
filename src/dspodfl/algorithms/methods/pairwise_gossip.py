"""Pairwise gossip: one client wakes, picks a neighbour, and both take the average of their models."""

from dspodfl.algorithms.checks import is_one_of
from dspodfl.algorithms.entry import Entry, Setting

CLOCKS = Setting(
    line="how often clients wake: all equally often (uniform), or in proportion to d (rates)",
    allowed="one of uniform, rates",
    check=is_one_of(("uniform", "rates")),
)

ENTRY = Entry(
    label="Pairwise gossip",
    line="one client wakes and averages with one neighbour; a single link is used at an iteration",
    schedule="dspodfl.algorithms.clocks:PairwiseGossip",
    settings={
        "clocks": CLOCKS,
        "steps": Setting(
            line="who takes a step: both ends of the link, the client that woke, or each end by its rate d (drawn)",
            allowed="one of both, waker, drawn",
            check=is_one_of(("both", "waker", "drawn")),
        ),
    },
    reference="Boyd, Ghosh, Prabhakar and Shah, Randomized Gossip Algorithms, IEEE Trans. Inf. Theory 2006",
    order=44,
    update="θ_i, θ_j ← (θ_i + θ_j)/2 for one link (i, j), with a step of both",
    when="Nothing is synchronized: an iteration is the meeting of two clients. Compare by delay or by bytes, since an "
    "iteration does little. Clients that wake more often, or have more neighbours, count more.",
)
