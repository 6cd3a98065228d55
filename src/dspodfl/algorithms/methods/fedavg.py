"""FedAvg: a server, and rounds in which some clients take local steps from its model and are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dspodfl.algorithms.base import FLOAT_BYTES
from dspodfl.algorithms.entry import Entry
from dspodfl.algorithms.star import STEPS
from dspodfl.algorithms.with_server import EVALUATED, ROUND_SETTINGS, is_server, told

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

ENTRY = Entry(
    label="FedAvg",
    line="with a server: some clients take local steps from its model, and it takes their average",
    schedule="dspodfl.algorithms.star:rounds",
    rule=f"{__name__}:FedAvg",
    settings=ROUND_SETTINGS,
    reference="McMahan, Moore, Ramage, Hampson and Agüera y Arcas, AISTATS 2017",
    aliases=("federated averaging",),
    order=60,
    server=True,
    sends="1 model down or up",
    sporadic=False,
    update="θ_i ← x for i in S\nθ_i ← θ_i − αg_i, E times\nx ← x + η(1/|S|) Σ_S (θ_i − x)",
    when="The reference with a server. Several local steps, or clients that hold different data and do not all take "
    f"part, pull it away from the minimizer. {EVALUATED}",
)


@dataclass(frozen=True)
class FedAvg:
    """Rounds of E + 1 iterations: θ_i ← x for the clients of the round, E steps of each, x ← x + η mean (θ_i − x).

    A link carries one model in a use: down at the first iteration of a round, up at the last.
    """

    steps: int = STEPS
    share: float | Literal["rates"] = 1.0
    server_rate: float = 1.0

    def init(self, theta: Tensor, links: int) -> Tensor:
        """1 + the number of the round whose model a client has last received; 0: of none."""
        return theta.new_zeros((len(theta), 1)).long()

    def step(self, theta: Tensor, state: Any, at: Step) -> tuple[Tensor, Any]:
        """One iteration: messages first, then steps."""
        number, place = divmod(at.k, self.steps + 1)
        server = is_server(at)
        if place == 0:
            count, (received,) = told(at, server, theta)
            theta = received.where(count > 0, theta)
            state = state.new_full((), number + 1).where(count > 0, state)
        joined = (state == number + 1) & ~server
        if place == self.steps:
            count, (total,) = told(at, joined, theta)
            mean = total / count.clamp(min=1)
            theta = (theta + self.server_rate * (mean - theta)).where(server & (count > 0), theta)
        moved = theta - at.gradient(theta, at.lr * at.v)
        return moved.where(joined, theta) if place < self.steps else theta, state

    def sent(self, p: int) -> int:
        """A model in one direction is half a model in each."""
        return FLOAT_BYTES * p // 2
