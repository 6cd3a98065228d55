"""Sporadic SGDs: clients step with their rates d_i, every link exchanges at every iteration."""

from dspodfl.algorithms.entry import Entry, Style

ENTRY = Entry(
    label="Sporadic SGDs",
    line="SGD sporadic (d), exchange always",
    schedule="dspodfl.algorithms.schedules:sporadic_sgd",
    style=Style("#CC79A7", (0, (1.2, 1.2)), "D"),
    reference="Zehtabi et al., Decentralized Sporadic Federated Learning",
    paper=True,
    order=3,
    update="Θ ← WΘ − αVG(Θ)",
    when="Computing is slow and links are cheap. Like DSpodFL it goes to the minimizer that busy clients pull it to.",
)
