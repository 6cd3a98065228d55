"""SCAFFOLD: FedAvg whose local steps are corrected by control variates of the clients and of the server."""

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
    label="SCAFFOLD",
    line="with a server: local steps corrected by control variates; exact, also if not all clients take part",
    schedule="dspodfl.algorithms.star:rounds",
    rule=f"{__name__}:Scaffold",
    settings=ROUND_SETTINGS,
    reference="Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, ICML 2020",
    order=62,
    server=True,
    exact=True,
    sends="2 models down or up",
    sporadic=False,
    takes_local=False,
    update="θ_i ← x for i in S\nθ_i ← θ_i − α(g_i − c_i + c), E times\nc_i⁺ = c_i − c + (x − θ_i)/(Eα)\n"
    "x ← x + η(1/|S|) Σ_S (θ_i − x)\nc ← c + (1/n) Σ_S (c_i⁺ − c_i)",
    when="As FedAvg, where clients hold different data: it converges to the minimizer, for twice the bytes. "
    f"{EVALUATED}",
)


@dataclass(frozen=True)
class Scaffold:
    """Rounds as those of FedAvg; a client steps along g_i − c_i + c, where c is the mean of all c_i.

    (x − θ_i)/(Eα) is the mean of what a client stepped along: where α changes within a round, or fewer steps are taken,
    Eα is the sum of the steps that were taken.
    """

    steps: int = STEPS
    share: float | Literal["rates"] = 1.0
    server_rate: float = 1.0

    def init(self, theta: Tensor, links: int) -> tuple[Tensor, ...]:
        """Round received last (as FedAvg), c_i or c, x and c as a client received them, the sum of its α since."""
        zero, none = theta.new_zeros(theta.shape), theta.new_zeros((len(theta), 1))
        return none.long(), zero, zero.clone(), zero.clone(), none

    def step(self, theta: Tensor, state: Any, at: Step) -> tuple[Tensor, Any]:
        """One iteration: messages first, then steps."""
        joined_at, c, start, common, taken = state
        number, place = divmod(at.k, self.steps + 1)
        server = is_server(at)
        if place == 0:
            count, (model, variate) = told(at, server, theta, c)
            new = count > 0
            theta, start, common = model.where(new, theta), model.where(new, start), variate.where(new, common)
            joined_at = joined_at.new_full((), number + 1).where(new, joined_at)
            taken = taken.new_zeros(()).where(new, taken)
        joined = (joined_at == number + 1) & ~server
        if place == self.steps:
            theta, c = self._end(theta, c, start, common, taken, joined, at)
        else:
            scale = at.lr * at.v * joined
            theta = theta - at.gradient(theta, scale) + scale * (c - common)
            taken = taken + scale
        return theta, (joined_at, c, start, common, taken)

    def _end(
        self, theta: Tensor, c: Tensor, start: Tensor, common: Tensor, taken: Tensor, joined: Tensor, at: Step
    ) -> tuple[Tensor, Tensor]:
        """Send the changes of models and variates up; both ends take over those of variates."""
        moved = joined & (taken > 0)
        change = ((start - theta) / taken.where(moved, 1.0) - common) * moved
        count, (models, variates) = told(at, joined, theta - start, change)
        received = count > 0
        theta = (theta + self.server_rate * models / count.clamp(min=1)).where(received, theta)
        c = c + change * at.linked
        return theta, (c + variates / (at.n - 1)).where(received, c)

    def sent(self, p: int) -> int:
        """A model and a variate in one direction are half of both in each."""
        return FLOAT_BYTES * p
