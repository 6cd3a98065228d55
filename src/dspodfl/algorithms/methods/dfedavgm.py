"""DFedAvgM: DFedAvg with momentum in the local steps, which starts again at 0 after each exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dspodfl.algorithms.entry import Entry, Setting
from dspodfl.algorithms.methods import dfedavg

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


ENTRY = Entry(
    label="DFedAvgM",
    line="DFedAvg with momentum in its D local steps, which starts again at 0 after each exchange",
    schedule="dspodfl.algorithms.schedules:dfedavg",
    rule=f"{__name__}:RoundMomentum",
    settings={
        **dfedavg.ENTRY.settings,
        "beta": Setting(
            line="β, what is kept of the momentum in a step of the client (0.9)",
            allowed="a number of at least 0 and less than 1",
            check=_is_share,
        ),
    },
    reference="Sun, Li and Wang, Decentralized Federated Averaging, IEEE TPAMI 2023",
    aliases=("dfedavg_m", "dfedavg with momentum"),
    order=71,
    update="δ ← βδ − αg,  θ ← θ + δ  where v = 1\nΘ ← PΘ,  δ ← 0  where a link fires",
    when="Few exchanges and much local work on similar data. Where clients hold different data, momentum takes them "
    "further apart in a round: it ends further from the minimizer than DFedAvg of the same step size.",
)


@dataclass(frozen=True)
class RoundMomentum:
    """Θ̂ = Θ + V(βδ − αG),  Θ ← PΘ̂;  δ is the last step of a client, and 0 after an exchange.

    On the schedule of DFedAvg, clients never step and exchange in one iteration. On others, they step first.
    """

    beta: float = 0.9
    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> Tensor:
        """δ = 0."""
        return theta.new_zeros(theta.shape)

    def step(self, theta: Tensor, delta: Tensor, at: Step) -> tuple[Tensor, Tensor]:
        """One iteration."""
        scale = at.lr * at.v
        move = self.beta * at.v * delta - at.gradient(theta, scale)
        return at.mix(theta + move), move.where(at.v > 0, delta).masked_fill(at.linked, 0.0)
