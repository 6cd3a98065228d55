"""DGD: every client steps and every link exchanges, at every iteration."""

from dspodfl.algorithms.entry import Entry, Style

ENTRY = Entry(
    label="DGD",
    line="decentralized gradient descent: every client and every link, always",
    schedule="dspodfl.algorithms.schedules:dgd",
    style=Style("#0072B2", (0, (6, 2)), "s"),
    aliases=("decentralized gradient descent",),
    reference="Nedić and Ozdaglar, Distributed Subgradient Methods for Multi-Agent Optimization, 2009",
    paper=True,
    order=1,
    sporadic=False,
    update="Θ ← WΘ − αG(Θ)",
    when="The baseline in which nobody is spared: the fewest iterations, and the most delay, where rates differ.",
)
