"""Push-sum: models and weights are pushed along arcs, and their ratio is what counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dspodfl.algorithms.arcs import pushed
from dspodfl.algorithms.base import FLOAT_BYTES
from dspodfl.algorithms.entry import Entry

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

ENTRY = Entry(
    label="Push-sum SGD",
    line="SGD at x/w, where x and w are pushed along arcs: averages right on directed graphs whose arcs are sporadic",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule=f"{__name__}:PushSum",
    reference="Assran, Loizou, Ballas and Rabbat, ICML 2019 (SGP); Nedić and Olshevsky, IEEE TAC 2015",
    aliases=("sgp", "stochastic_gradient_push", "subgradient_push"),
    order=60,
    sends="1 model and 1 number",
    directed=True,
    update="x ← A(x − αVG(x/w)),  w ← Aw\nθ = x/w",
    when="Links carry models one way, or each way at its own rate. It steps along plain gradients: busy clients pull "
    "it to their minimizer, as they do DSpodFL. On an undirected graph w stays 1, and it is gossip SGD.",
)


@dataclass(frozen=True)
class PushSum:
    """x ← A(x − αVG(x/w)),  w ← Aw;  A is column-stochastic: what is not sent stays with its client.

    The sums of x and of w over clients do not change by mixing; x/w is the model of a client, and the mean of x that of
    the network.
    """

    directed: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> Tensor:
        """The weights w, (clients, 1)."""
        return theta.new_ones((len(theta), 1))

    def model(self, theta: Tensor, state: Tensor) -> Tensor:
        """x/w."""
        return theta / state

    def averaged(self, theta: Tensor, state: Tensor) -> Tensor:
        """x, whose mean is the average of the network; the mean of x/w is not."""
        return theta

    def step(self, theta: Tensor, state: Tensor, at: Step) -> tuple[Tensor, Tensor]:
        """One iteration; model and weight are one message."""
        x, w = pushed(at, theta - at.gradient(theta / state, at.lr * at.v), state)
        return x, w

    def sent(self, p: int) -> int:
        """The model and its weight."""
        return FLOAT_BYTES * (p + 1)
