"""Sporadic tracking: Push–Pull in which clients compute, and arcs carry models, each at its own rate."""

from __future__ import annotations

from dspodfl.algorithms.entry import Entry

ENTRY = Entry(
    label="Sporadic tracking",
    line="Push–Pull with held gradients: exact on directed graphs although clients and arcs are sporadic",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule="dspodfl.algorithms.methods.push_pull:PushPull",
    reference="this package; after Pu, Shi, Xu and Nedić, IEEE TAC 2021",
    order=21,
    exact=True,
    sends="2 models",
    directed=True,
    takes_local=False,
    update="Θ ← R(Θ − αVY)\nY ← AY + H⁺ − H,  H: the last gradient of each client",
    when="Clients hold different data, compute at different rates, and arcs fire each at its own. A client that does "
    "not compute keeps its last gradient, and steps along Y, which vanishes at the solution.",
)
