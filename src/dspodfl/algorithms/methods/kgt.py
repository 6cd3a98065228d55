"""K-GT: gradient tracking with local steps; what is tracked is the mean gradient of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspodfl.algorithms.base import FLOAT_BYTES
from dspodfl.algorithms.corrections import is_number
from dspodfl.algorithms.entry import Entry, Setting
from dspodfl.algorithms.methods.dfedavg import PERIOD

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

ENTRY = Entry(
    label="K-GT",
    line="D local steps along gradient and correction, then one exchange of models and mean gradients; exact",
    schedule="dspodfl.algorithms.schedules:dfedavg",
    rule=f"{__name__}:Kgt",
    settings={
        "period": PERIOD,
        "eta": Setting(
            line="how far along the way of a round models go at its exchange",
            allowed="a number above 0",
            check=lambda value: is_number(value) and 0 < value < float("inf"),
        ),
    },
    reference="Liu, Lin, Koloskova and Stich, Decentralized Gradient Tracking with Local Steps, 2024",
    aliases=("gradient tracking with local steps",),
    order=30,
    exact=True,
    sends="2 models",
    sporadic=False,
    takes_local=False,
    update="Θ ← Θ − α(G + c), D times from Θ_start\nz = (Θ_start − Θ)/A,  A: the sum of α over the D steps\n"
    "then c ← c − z + Pz,  Θ ← P(Θ_start − ηA z)",
    when="Gradient tracking where exchanges are dear. LED does the same with half of the traffic of an exchange.",
)


@dataclass(frozen=True)
class Kgt:
    """A round of a client ends where one of its links fires; A is the sum of its own α in the round.

    With D = 1 and η = 1 it is gradient tracking in the order adapt-then-combine.
    """

    eta: float = 1.0

    def init(self, theta: Tensor, links: int) -> tuple[Tensor, Tensor, Tensor]:
        """C = 0, which sums to 0 over clients; Θ_start; A."""
        return theta.new_zeros(theta.shape), theta.clone(), theta.new_zeros(len(theta), 1)

    def step(self, theta: Tensor, state: Any, at: Step) -> tuple[Tensor, Any]:
        """One iteration: a local step of those that fire, then an exchange over the links that fire."""
        c, start, far = state
        move = at.lr * at.v
        theta, far = theta - move * (at.gradient(theta, at.v) + c), far + move
        way = start - theta
        z = way / (far + (far == 0))  # without a step in the round, the way is 0
        there = theta if self.eta == 1 else start - self.eta * way
        theta = at.mix(there).where(at.linked, theta)
        c = (c - (z - at.mix(z))).where(at.linked, c)
        return theta, (c, theta.where(at.linked, start), far.where(~at.linked, 0.0))

    def sent(self, p: int) -> int:
        """The model and the mean gradient of the round."""
        return 2 * FLOAT_BYTES * p
