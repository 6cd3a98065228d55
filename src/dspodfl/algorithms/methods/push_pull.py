"""Push–Pull: models are pulled by a row-stochastic matrix, trackers are pushed by a column-stochastic one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dspodfl.algorithms.arcs import pulled_and_pushed
from dspodfl.algorithms.base import FLOAT_BYTES
from dspodfl.algorithms.entry import Entry

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

ENTRY = Entry(
    label="Push–Pull",
    line="pulls models and pushes trackers along arcs: exact on directed graphs; every client computes always",
    schedule="dspodfl.algorithms.schedules:rg",
    rule=f"{__name__}:PushPull",
    reference="Pu, Shi, Xu and Nedić, IEEE TAC 2021; Xin and Khan, IEEE Control Systems Letters 2018 (AB)",
    aliases=("ab",),
    order=62,
    exact=True,
    sends="2 models",
    directed=True,
    takes_local=False,
    update="Θ ← R(Θ − αVY)\nY ← AY + H⁺ − H,  H: the last gradient of each client",
    when="Links carry models one way, and all clients compute in every iteration. It divides by no weights, which "
    "push-sum does. With sporadic clients it is sporadic_tracking.",
)


@dataclass(frozen=True)
class PushPull:
    """Θ ← R(Θ − αVY),  Y ← AY + H⁺ − H, where H holds each client's last gradient.

    R is row-stochastic and A column-stochastic, both on the arcs that fire. The sum of Y over clients is always that of
    H. Client i steps along Y, which vanishes at the solution: the method is exact where clients are sporadic too.
    """

    directed: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> tuple[Tensor, Tensor]:
        """AY of the iteration before, and H."""
        return theta.new_zeros(theta.shape), theta.new_zeros(theta.shape)

    def step(self, theta: Tensor, state: Any, at: Step) -> tuple[Tensor, Any]:
        """One iteration; one gradient for each client that computes."""
        before, held = state
        new = at.gradient(theta, at.v).where(at.v > 0, held)
        y = before + (new - held)  # the brackets make an iteration without events exact
        theta, before = pulled_and_pushed(at, theta - at.lr * at.v * y, y)
        return theta, (before, new)

    def sent(self, p: int) -> int:
        """The model and the tracker."""
        return 2 * FLOAT_BYTES * p
