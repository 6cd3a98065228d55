"""ClippedGossip: what a neighbour adds is at most τ long, so that an attacker moves a client by little."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dspodfl.algorithms.entry import Entry, Setting

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Arc, Step

_SLACK = 1.0 + 1e-5
"""Weights are added up in the precision of the models: sums that are equal to δ on paper are taken as such."""


def _number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


ENTRY = Entry(
    label="ClippedGossip",
    line="adds at most τ of what a neighbour differs by, which bounds what attackers can do",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule=f"{__name__}:ClippedGossip",
    settings={
        "tau": Setting(
            line="τ, the longest difference that is added in full; adaptive: for each client and iteration, by delta",
            allowed="a number of at least 0, inf among them, or 'adaptive'",
            check=lambda value: value == "adaptive" or _number(value, 0.0, math.inf),
        ),
        "delta": Setting(
            line="δ, the weight of attackers among the neighbours of a client that the adaptive τ assumes",
            allowed="a number in [0, 1)",
            check=lambda value: _number(value, 0.0, 1.0) and value < 1,
        ),
        "beta": Setting(
            line="β of the local momentum m ← (1 − β)m + βg; 1: none",
            allowed="a number in (0, 1]",
            check=lambda value: _number(value, 0.0, 1.0) and value > 0,
        ),
    },
    reference="He, Karimireddy and Jaggi, Byzantine-robust decentralized learning via ClippedGossip, arXiv 2202.01545",
    order=80,
    takes_local=False,
    update="m ← (1 − β)m + βg where v_i = 1,  θ̂_i = θ_i − αv_i m_i\n"
    "θ_i ← θ̂_i + Σ_j r_ij v̂_ij min(1, τ_i/‖θ̂_j − θ̂_i‖)(θ̂_j − θ̂_i)",
    when="Some clients may send anything. It bounds the harm where honest neighbours outweigh attackers; on a sparse "
    "graph where one attacker outweighs them it cannot. Without attackers it moves the mean of the models a little.",
)


@dataclass(frozen=True)
class ClippedGossip:
    """Θ̂ = Θ − αVM,  θ_i ← θ̂_i + Σ_j r_ij v̂_ij min(1, τ_i/‖θ̂_j − θ̂_i‖)(θ̂_j − θ̂_i).

    The adaptive τ_i is the distance of the nearest neighbour beyond which the weight of the links that fire is at most
    δ. Messages that are not finite add nothing. τ = ∞ is `adapt_then_combine`, τ = 0 is local SGD.
    """

    sends_models: ClassVar[bool] = True

    tau: float | Literal["adaptive"] = "adaptive"
    delta: float = 0.1
    beta: float = 1.0

    def init(self, theta: Tensor, links: int) -> Tensor | None:
        """The momentum, 0 at first."""
        return None if self.beta == 1 else theta.new_zeros(theta.shape)

    def step(self, theta: Tensor, state: Tensor | None, at: Step) -> tuple[Tensor, Tensor | None]:
        """One iteration."""
        if state is None:
            half = theta - at.gradient(theta, at.lr * at.v)
        else:
            state = ((1.0 - self.beta) * state + self.beta * at.gradient(theta, at.v)).where(at.v > 0, state)
            half = theta - at.lr * at.v * state
        if self.tau == math.inf:
            return at.mix(half), state
        tau = self._adaptive(half, at) if self.tau == "adaptive" else half.new_full((len(half), 1), self.tau)
        change, _ = at.exchange((half, tau), _model, _clipped)
        return half + change, state

    def _adaptive(self, half: Tensor, at: Step) -> Tensor:
        """τ_i, (clients, 1)."""
        rows, there = at.around(half)
        weight = at.weights_around()
        far = (rows - half[:, None]).norm(dim=2).where(there, math.inf)  # and no weight
        far, order = far.sort(dim=1)
        beyond = weight.gather(1, order).flip(1).cumsum(1).flip(1)  # the weight from each neighbour on
        beyond = beyond.roll(-1, 1)
        beyond[:, -1] = 0.0
        nearest = (beyond <= self.delta * _SLACK).to(beyond.dtype).argmax(dim=1, keepdim=True)
        return far.gather(1, nearest)


def _model(x: Any, memory: Any) -> Any:
    return x[0]


def _clipped(x: Any, mine: Tensor, theirs: Tensor, memory: None, arc: Arc) -> tuple[Tensor, None]:
    """What a neighbour adds: r_ij min(1, τ_i/‖gap‖) gap; nothing where the gap is not finite."""
    own, tau = x
    gap = theirs - own
    length = gap.norm(dim=1, keepdim=True)
    share = (tau / length.clamp(min=1e-30)).clamp(max=1.0)
    return (arc.into * share * gap).where(share > 0, 0.0), None
