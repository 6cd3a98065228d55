"""Rules that subtract a correction h from each client's gradient: h_i goes to ∇F_i(θ*), and so V(G − h) to 0.

Θ̂ = Θ − αV(G − h),    Θ ← Θ̂ − s L Θ̂,    h ← h − (s/α) L_q Θ̂;

L is that of the links that fire, with weights r_ij, and L_q has the weights q_ij r_ij, where q_ij is the probability
with which the schedule fires a link: what flows over a rare link counts for little, which keeps h bounded. Where all
links always fire, q = 1: s = ½ is exact diffusion, s = 1 is D². The sum of h over clients is always 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dspodfl.algorithms.base import CORRECTED, CORRECTED_BY_LINK, FLOAT_BYTES
from dspodfl.algorithms.entry import Setting

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Arc, Step

FACTORS = ("probability", "ratio")


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and no bool.

    Args:
        value: What is given as a setting.

    Returns:
        Whether it is an int or a float.
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 < value <= 1


S = Setting("the share s of the mixing that is made: Θ̂ − s(Θ̂ − PΘ̂)", "a number in (0, 1]", _is_share)
PROBABILITY = Setting("the probability ϖ that all links exchange", "a number in (0, 1]", _is_share)


def keep(x: Any, memory: Any) -> Any:
    """Send the own rows as they are: a `dspodfl.algorithms.step.Send`.

    Args:
        x: The own rows.
        memory: Not read.

    Returns:
        ``x``.
    """
    return x


@dataclass(frozen=True)
class _Pull:
    """What an end receives: s r_ij (θ_j − θ_i), and the same times q_ij."""

    s: float

    def __call__(self, x: Tensor, mine: Tensor, theirs: Tensor, memory: None, arc: Arc) -> tuple[Any, None]:
        assert arc.probability is not None
        pull = self.s * arc.into * (theirs - mine)
        return (pull, arc.probability * pull), None


@dataclass(frozen=True)
class _PullByRatio:
    """The same with min(1, q_ij / max(d_i, d_j)) for q_ij; messages are models and the d of their clients."""

    s: float

    def __call__(self, x: Any, mine: Any, theirs: Any, memory: None, arc: Arc) -> tuple[Any, None]:
        assert arc.probability is not None
        pull = self.s * arc.into * (theirs[0] - mine[0])
        return (pull, (arc.probability / mine[1].maximum(theirs[1])).clamp(max=1.0) * pull), None


@dataclass(frozen=True)
class ProxSkip:
    """Decentralized Scaffnew where each link fires by itself, with its own probability (RandProx with client draws).

    With ``factor = "ratio"``, L_q has min(1, q_ij / max(d_i, d_j)) in place of q_ij: faster where links are rare.
    """

    s: float = 0.5
    factor: Literal["probability", "ratio"] = "probability"
    needs_probability: ClassVar[bool] = True
    kernel: ClassVar[str] = CORRECTED_BY_LINK

    def init(self, theta: Tensor, links: int) -> Tensor:
        """H = 0, which the method needs to sum to 0 over clients."""
        return theta.new_zeros(theta.shape)

    def step(self, theta: Tensor, h: Tensor, at: Step) -> tuple[Tensor, Tensor]:
        """One iteration."""
        half = theta - at.lr * at.v * (at.gradient(theta, at.v) - h)
        if self.factor == "ratio":
            (change, flow), _ = at.exchange((half, at.probability), keep, _PullByRatio(self.s))
        else:
            (change, flow), _ = at.exchange(half, keep, _Pull(self.s))
        return half + change, h + flow / at.lr

    def sent(self, p: int) -> int:
        """The model; the other end's d too, where it is needed."""
        return FLOAT_BYTES * (p + (self.factor == "ratio"))


@dataclass(frozen=True)
class Extra:
    """EXTRA with its correction as a state: Θ ← PΘ − αV(G − h),  h ← h − (1/2α) L_q Θ."""

    needs_probability: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> Tensor:
        """H = 0."""
        return theta.new_zeros(theta.shape)

    def step(self, theta: Tensor, h: Tensor, at: Step) -> tuple[Tensor, Tensor]:
        """One iteration."""
        (change, flow), _ = at.exchange(theta, keep, _Pull(1.0))
        return theta + change - at.lr * at.v * (at.gradient(theta, at.v) - h), h + 0.5 * flow / at.lr


@dataclass(frozen=True)
class Together:
    """The correction of runs whose links all fire together, with one probability: mixing does it."""

    s: float = 0.5
    probability: float = 1.0
    mixes: ClassVar[int] = 1
    kernel: ClassVar[str] = CORRECTED

    def init(self, theta: Tensor, links: int) -> Tensor:
        """H = 0."""
        return theta.new_zeros(theta.shape)

    def step(self, theta: Tensor, h: Tensor, at: Step) -> tuple[Tensor, Tensor]:
        """One iteration."""
        half = theta - at.lr * at.v * (at.gradient(theta, at.v) - h)
        change = self.s * (at.mix(half) - half)
        return half + change, h + self.probability / at.lr * change
