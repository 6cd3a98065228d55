"""Quasi-global momentum: momentum along the way that the models go, mixing included, not along the own gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dspodfl.algorithms.entry import Entry, Setting

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


ENTRY = Entry(
    label="QG momentum",
    line="momentum along the way of the mixed models, so that it ends where gossip SGD of the same step size does",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule=f"{__name__}:QuasiGlobal",
    settings={
        "beta": Setting(
            line="β, how much of the momentum is added to the gradient (0.9)",
            allowed="a number of at least 0 and less than 1",
            check=_is_share,
        ),
        "mu": Setting(
            line="μ, what is kept of the momentum in a step of the client (0.9)",
            allowed="a number of at least 0 and less than 1",
            check=_is_share,
        ),
    },
    reference="Lin, Karimireddy, Stich and Jaggi, Quasi-Global Momentum, ICML 2021",
    aliases=("qgm", "qg_dsgdm", "quasi-global momentum"),
    order=70,
    update="Θ⁺ = P(Θ − αV(βM + G))\nM ← μM + (1 − μ)(Θ − Θ⁺)/α  where v = 1",
    when="Momentum for clients with different data. Local momentum enlarges the effective step by 1/(1 − β), and with "
    "it the distance from the minimizer; this one does not. Clients that are busier still weigh more.",
)


@dataclass(frozen=True)
class QuasiGlobal:
    """Θ⁺ = P(Θ − αV(βM + G)),  M ← μM + (1 − μ)(Θ − Θ⁺)/α where v = 1.

    What a client's model has moved is also what its neighbours have pulled it to: at a fixed point M is 0, and so the
    fixed point is that of P(Θ − αG).
    """

    beta: float = 0.9
    mu: float = 0.9
    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> Tensor:
        """M = 0."""
        return theta.new_zeros(theta.shape)

    def step(self, theta: Tensor, m: Tensor, at: Step) -> tuple[Tensor, Tensor]:
        """One iteration."""
        scale = at.lr * at.v
        new = at.mix(theta - (self.beta * scale * m + at.gradient(theta, scale)))
        return new, (self.mu * m + (1 - self.mu) / at.lr * (theta - new)).where(at.v > 0, m)
