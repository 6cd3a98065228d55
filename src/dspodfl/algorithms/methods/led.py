"""LED (local exact diffusion): D corrected local steps, then one exchange that corrects the correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dspodfl.algorithms.corrections import S
from dspodfl.algorithms.entry import Entry
from dspodfl.algorithms.methods.dfedavg import PERIOD

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

ENTRY = Entry(
    label="LED",
    line="D corrected local steps, then one exchange, as DFedAvg has them; exact",
    schedule="dspodfl.algorithms.schedules:dfedavg",
    rule=f"{__name__}:Led",
    settings={"period": PERIOD, "s": S},
    reference="Alghunaim, Local Exact-Diffusion for Decentralized Optimization and Learning, IEEE TAC 2024",
    aliases=("local exact diffusion",),
    order=29,
    exact=True,
    sporadic=False,
    takes_local=False,
    update="Θ ← Θ − α(G − h), D times\nthen Θ ← Θ − s L Θ,  h ← h − (s/A) L Θ,  A: the sum of α over the D steps",
    when="DFedAvg without its bias: local steps drift to no client's own minimizer. Everybody takes the same D steps.",
)


@dataclass(frozen=True)
class Led:
    """Corrected steps; where links fire, h changes by what flows, over the sum A of α since the last exchange.

    With a constant α and D steps a round, −αD h is the dual variable y of the paper, and its β is 1/D.
    """

    s: float = 0.5
    mixes: ClassVar[int] = 1

    def init(self, theta: Tensor, links: int) -> tuple[Tensor, Tensor]:
        """H = 0, and A."""
        return theta.new_zeros(theta.shape), theta.new_zeros(len(theta), 1)

    def step(self, theta: Tensor, state: tuple[Tensor, Tensor], at: Step) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One iteration: a local step of those that fire, then an exchange over the links that fire."""
        h, far = state
        move = at.lr * at.v
        half, far = theta - move * (at.gradient(theta, at.v) - h), far + move
        change = self.s * (at.mix(half) - half)
        inverse = (1.0 / far).where(far > 0, 0.0)
        return half + change, (h + inverse * change, far.where(~at.linked, 0.0))
