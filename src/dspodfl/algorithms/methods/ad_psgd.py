"""AD-PSGD: one client wakes, averages with a neighbour, and steps along a gradient that it began earlier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dspodfl.algorithms.entry import Entry
from dspodfl.algorithms.methods.pairwise_gossip import CLOCKS

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

ENTRY = Entry(
    label="AD-PSGD",
    line="one client wakes, averages with one neighbour, and steps along the gradient at its model of its last step",
    schedule="dspodfl.algorithms.clocks:ad_psgd",
    rule=f"{__name__}:StaleGradients",
    settings={"clocks": CLOCKS},
    reference="Lian, Zhang, Zhang and Liu, Asynchronous Decentralized Parallel SGD, ICML 2018",
    aliases=("asynchronous decentralized parallel sgd",),
    order=46,
    update="Θ ← PΘ − αVG(S)\nS_i ← θ_i where v_i = 1",
    when="The standard asynchronous method: nobody waits, and gradients are as old as a client is slow. Clients wake "
    "in proportion to d (clocks = 'rates'), so that it goes to the minimizer that busy clients pull it to.",
)


@dataclass(frozen=True)
class StaleGradients:
    """Θ ← PΘ − αVG(S), where S holds the model that each client had after its last step.

    A client begins a gradient when it has finished the one before: meanwhile its model is averaged with others.
    """

    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> Tensor:
        """Return S: the initial models, at which all clients begin."""
        return theta.clone()

    def step(self, theta: Tensor, state: Tensor, at: Step) -> tuple[Tensor, Tensor]:
        """One iteration."""
        new = at.mix(theta, minus=at.gradient(state, at.lr * at.v))
        return new, new.where(at.v > 0, state)
