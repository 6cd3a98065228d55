"""BRIDGE-T: in each coordinate, neighbours with the largest and the smallest values do not count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dspodfl.algorithms.entry import Entry, Setting
from dspodfl.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

_NAME = "bridge"

ENTRY = Entry(
    label="BRIDGE-T",
    line="averages neighbours without the b largest and the b smallest values of each coordinate",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule=f"{__name__}:Bridge",
    settings={
        "b": Setting(
            line="how many attackers are assumed among the neighbours of a client",
            allowed="an integer of at least 0",
            check=lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
        )
    },
    reference="Fang, Yang and Bajwa, BRIDGE: Byzantine-resilient decentralized gradient descent, IEEE TSIPN 2022",
    aliases=("bridge_t",),
    order=81,
    update="θ_i ← mean of θ_i and the θ_j with v̂_ij = 1 that are left − αv_i g_i, in each coordinate without the b "
    "largest and the b smallest θ_j\nθ_i ← θ_i − αv_i g_i where fewer than 2b + 1 links of i fire",
    when="At most b neighbours of each client send anything. It needs dense graphs: a client averages only where at "
    "least 2b + 1 of its links fire. It does not use the mixing weights, and moves the mean of the models.",
)


@dataclass(frozen=True)
class Bridge:
    """θ_i ← (θ_i + Σ of what is left of the neighbours' values) / (1 + how many are left) − αv_i g_i.

    In each coordinate the b largest and the b smallest of the neighbours whose links fire are dropped. A client with
    fewer than 2b + 1 of them does not average in that iteration.
    """

    sends_models: ClassVar[bool] = True

    b: int = 1

    def check(self, topology: Any, rates: Any) -> None:
        """Refuse a graph in which a client has fewer than 2b + 1 neighbours: it would never average.

        Args:
            topology: The graph, `dspodfl.network.WeightedTopology`.
            rates: Not read.

        Raises:
            InputError: There is such a client.
        """
        degree = topology.graph.degree
        least, few = 2 * self.b + 1, int(degree.argmin())
        if degree[few] < least:
            allowed = f"on a graph where each client has at least 2b + 1 = {least} neighbours: client {few} has "
            raise InputError("algorithms", _NAME, f"{allowed}{degree[few]}")

    def init(self, theta: Tensor, links: int) -> None:
        """No state."""

    def step(self, theta: Tensor, state: None, at: Step) -> tuple[Tensor, None]:
        """One iteration."""
        rows, there = at.around(theta)
        count = there.sum(dim=1)[:, None, None]
        values = rows.where(there[:, :, None], float("inf")).sort(dim=1)[0]  # what is not finite comes last
        rank = theta.new_ones((1, there.shape[1], 1)).cumsum(1)
        kept = (rank > self.b) & (rank <= count - self.b)
        total = values.where(kept, 0.0).cumsum(1)[:, -1]  # in order: empty places change nothing
        mean = (theta + total) / (1 + count[:, 0] - 2 * self.b)
        mixed = mean.where(count[:, 0] > 2 * self.b, theta)
        return mixed - at.gradient(theta, at.lr * at.v), state
