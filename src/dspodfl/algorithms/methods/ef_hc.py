"""EF-HC: a client that has moved far enough from what it last sent exchanges with all of its neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dspodfl.algorithms.entry import Entry, Setting

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

RATES = "rates"


def _number(value: Any, least: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= least


ENTRY = Entry(
    label="EF-HC",
    line="clients exchange when their models have moved far enough, by a threshold that grows as bandwidth falls",
    schedule="dspodfl.algorithms.schedules:dgd",
    rule=f"{__name__}:EventTriggered",
    settings={
        "r": Setting(
            line="r, how far a model moves before it is sent; 0: always exchange (DGD), inf: never (local SGD)",
            allowed="a number of at least 0, inf among them",
            check=lambda value: _number(value, 0.0),
        ),
        "rho": Setting(
            line="ρ_i of the threshold: rates for 1 / the mean rate b_ij of the client's links, or one number for all",
            allowed="'rates', or a number above 0",
            check=lambda value: value == RATES or (_number(value, 0.0) and 0 < value < math.inf),
        ),
    },
    reference="Zehtabi, Hosseinalipour and Brinton, Event-triggered decentralized federated learning over "
    "resource-constrained edge devices, arXiv 2211.12640",
    aliases=("event-triggered",),
    order=46,
    sporadic=False,
    update="i triggers where ‖θ_i − θ̂_i‖/√p ≥ rρ_iα,  then θ̂_i ← θ_i\n"
    "Θ ← PΘ − αVG(Θ),  v̂_ij = 1 where i or j triggers, or the link is new",
    when="Clients whose links are slow should send less often than others: models decide who sends, and not a draw. "
    "It is exact only as α falls to 0, and slower than DGD an iteration; what it spends is not known ahead.",
)


@dataclass(frozen=True)
class EventTriggered:
    """Θ ← PΘ − αVG(Θ) over the links with an end that triggers: ‖θ_i − θ̂_i‖/√p ≥ rρ_iα.

    θ̂_i is the model that client i last sent because it triggered; where it triggers and none of its links can fire,
    nothing is sent, and it triggers again. r = 0 is DGD, r = ∞ is local SGD.
    """

    gates: ClassVar[bool] = True
    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True
    sends_models: ClassVar[bool] = True

    r: float = 1.0
    rho: float | Literal["rates"] = "rates"

    def init(self, theta: Tensor, links: int) -> Tensor:
        """What was last sent: the initial models."""
        return theta.clone()

    def step(self, theta: Tensor, state: Tensor, at: Step) -> tuple[Tensor, Tensor]:
        """One iteration."""
        moved = (theta - state).norm(dim=1, keepdim=True) / math.sqrt(at.layout.parameters)
        rho = 1.0 / at.link_rate if isinstance(self.rho, str) else self.rho
        who = moved >= self.r * rho * at.lr
        over = at.gate(who)
        sent = theta.where(who & over.linked, state)
        return over.mix(theta, minus=at.gradient(theta, at.lr * at.v)), sent
