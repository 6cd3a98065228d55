"""Push-DIGing: push-sum of models and of a tracker of the average gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dspodfl.algorithms.arcs import pushed
from dspodfl.algorithms.base import FLOAT_BYTES
from dspodfl.algorithms.entry import Entry

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

ENTRY = Entry(
    label="Push-DIGing",
    line="gradient tracking by push-sum: exact on directed graphs whose arcs come and go; every client computes always",
    schedule="dspodfl.algorithms.schedules:rg",
    rule=f"{__name__}:PushDiging",
    reference="Nedić, Olshevsky and Shi, SIAM J. Optim. 2017",
    order=61,
    exact=True,
    sends="2 models and 1 number",
    directed=True,
    takes_local=False,
    update="u ← A(u − αVY),  w ← Aw,  θ = u/w\nY ← AY + H⁺ − H,  H: the last gradient of each client, at u/w",
    when="Links carry models one way, and all clients compute in every iteration. Senders need to know how many they "
    "send to, receivers nothing. Where clients are sporadic, give it the schedule of dspodfl.",
)


@dataclass(frozen=True)
class PushDiging:
    """u ← A(u − αVY),  w ← Aw,  Y ← AY + H⁺ − H, where H holds each client's last gradient, at u/w.

    A is column-stochastic. The sum of Y over clients is always that of H.
    """

    directed: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> tuple[Tensor, Tensor, Tensor]:
        """The weights w, AY of the iteration before, and H."""
        return theta.new_ones((len(theta), 1)), theta.new_zeros(theta.shape), theta.new_zeros(theta.shape)

    def model(self, theta: Tensor, state: Any) -> Tensor:
        """u/w."""
        return theta / state[0]

    def averaged(self, theta: Tensor, state: Any) -> Tensor:
        """u, whose mean is the average of the network; the mean of u/w is not."""
        return theta

    def step(self, theta: Tensor, state: Any, at: Step) -> tuple[Tensor, Any]:
        """One iteration; one gradient for each client that computes."""
        w, before, held = state
        new = at.gradient(theta / w, at.v).where(at.v > 0, held)
        y = before + (new - held)  # the brackets make an iteration without events exact
        u, w, before = pushed(at, theta - at.lr * at.v * y, w, y)
        return u, (w, before, new)

    def sent(self, p: int) -> int:
        """The model, the tracker and the weight."""
        return FLOAT_BYTES * (2 * p + 1)
