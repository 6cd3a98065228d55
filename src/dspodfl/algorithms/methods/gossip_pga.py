"""Gossip-PGA: gossip SGD with an average over all clients at every H-th iteration."""

from dspodfl.algorithms.entry import Entry
from dspodfl.algorithms.methods.local_sgd import PERIOD

ENTRY = Entry(
    label="Gossip-PGA",
    line="an exchange between neighbours at every iteration, and at every H-th one an average of all models",
    schedule="dspodfl.algorithms.cycles:GossipPga",
    rule="dspodfl.algorithms.rules:adapt_then_combine",
    settings={"period": PERIOD},
    reference="Chen, Yuan, Zhang, Pan, Xu and Yin, Accelerating Gossip SGD with Periodic Global Averaging, ICML 2021",
    aliases=("pga",),
    sporadic=False,
    complete=lambda settings: True,
    order=43,
    update="Θ ← P(Θ − αG(Θ)),  P = 11ᵀ/n at every H-th iteration, else W",
    when="Graphs on which gossip is slow (a ring), where all clients can meet now and then. An average counts as a use "
    "of the link of every pair.",
)
