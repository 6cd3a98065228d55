"""SWIFT: one client wakes, averages the models of its neighbours into its own, and steps; nobody else changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dspodfl.algorithms.base import FLOAT_BYTES
from dspodfl.algorithms.checks import is_count
from dspodfl.algorithms.entry import Entry, Setting
from dspodfl.algorithms.methods.pairwise_gossip import CLOCKS

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Arc, Step

ENTRY = Entry(
    label="SWIFT",
    line="one client wakes, takes its neighbours' models into its own without waiting for them, and steps",
    schedule="dspodfl.algorithms.clocks:Swift",
    rule=f"{__name__}:Pull",
    settings={
        "clocks": CLOCKS,
        "every": Setting(
            line="c: a client averages at every c-th of its wakes (1 is the paper's C₀, 2 its C₁)",
            allowed="an integer of at least 1",
            check=is_count(1),
        ),
    },
    reference="Bornstein, Rabbani, Wang, Bedi and Huang, SWIFT, ICLR 2023",
    order=47,
    sends="1 model, one way",
    update="θ_i ← θ_i + Σ_j w_ij(θ_j − θ_i) − αg_i(θ_i) for the client i that wakes\nw_ij = r_ij min(p_i, p_j)/p_i",
    when="Fast clients never wait for slow ones, and need no consent of theirs. It moves the mean of the models, and "
    "goes to the minimizer in which clients count as often as they wake.",
)


@dataclass(frozen=True)
class Pull:
    """θ_i ← θ_i + Σ_j w_ij(θ_j − θ_i) − αg_i(θ_i) where v_i = 1; other clients do not change, though links fire.

    The schedule gives a link that fires the weight of the client that woke.
    """

    rests: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> None:
        """No state: neighbours know the model that a client had after its last step."""

    def step(self, theta: Tensor, state: None, at: Step) -> tuple[Tensor, None]:
        """One iteration."""
        change, _ = at.exchange((theta, at.v), _model, _pulled)
        return change.add_(theta).sub_(at.gradient(theta, at.lr * at.v)), state

    def sent(self, p: int) -> int:
        """Half a model in each direction of a use: one of the two ends sends its model, the other none."""
        return FLOAT_BYTES * p // 2


def _model(x: Any, memory: Any) -> Any:
    return x[0]


def _pulled(x: Any, mine: Any, theirs: Any, memory: Any, arc: Arc) -> tuple[Any, None]:
    return x[1] * arc.into * (theirs - mine), None
