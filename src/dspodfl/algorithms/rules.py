"""Rules: how mixed models and gradients become new models.

A rule is called with the stacked models, ``mix`` (which applies P(k) to any stacked array) and ``gradient`` (at the
models that the rule passes to it), and may carry a state from step to step. Both fuse what usually follows them:
``mix(x, minus)`` is Px − minus (``minus`` is overwritten), ``gradient(x, scale)`` is diag(scale) G(x).

A rule may mix any number of times in an iteration, as long as all ranks do the same. One that always mixes exactly
once, an array of the shape of the models, may declare it by an attribute ``mixes = 1``: over several ranks, rows are
then received one iteration in advance, which is faster. `dspodfl.algorithms.base` has all that a rule may declare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dspodfl.algorithms.base import SIMULTANEOUS, Gradient, Mix, Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Simultaneous:
    """The paper's update: Θ ← PΘ − αV G(Θ)  (eq. update)."""

    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True
    kernel: ClassVar[str] = SIMULTANEOUS

    def init(self, theta: Tensor) -> None:
        """No state."""

    def step(
        self, theta: Tensor, mix: Mix, gradient: Gradient, v: Tensor, lr: Tensor, state: None
    ) -> tuple[Tensor, None]:
        """One iteration."""
        return mix(theta, minus=gradient(theta, scale=lr * v)), state  # Θ ← PΘ − αVG


@dataclass(frozen=True)
class CombineThenAdapt:
    """Mix first, and take the gradient at the mixed model: Θ ← PΘ − αV G(PΘ)."""

    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True

    def init(self, theta: Tensor) -> None:
        """No state."""

    def step(
        self, theta: Tensor, mix: Mix, gradient: Gradient, v: Tensor, lr: Tensor, state: None
    ) -> tuple[Tensor, None]:
        """One iteration."""
        mixed = mix(theta)
        return mixed - gradient(mixed, scale=lr * v), state


@dataclass(frozen=True)
class AdaptThenCombine:
    """Step first, and mix what comes out: Θ ← P(Θ − αV G(Θ))."""

    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True

    def init(self, theta: Tensor) -> None:
        """No state."""

    def step(
        self, theta: Tensor, mix: Mix, gradient: Gradient, v: Tensor, lr: Tensor, state: None
    ) -> tuple[Tensor, None]:
        """One iteration."""
        return mix(theta - gradient(theta, scale=lr * v)), state


simultaneous = Simultaneous()
combine_then_adapt = CombineThenAdapt()
adapt_then_combine = AdaptThenCombine()

RULES: dict[str, Rule] = {
    "simultaneous": simultaneous,
    "combine_then_adapt": combine_then_adapt,
    "adapt_then_combine": adapt_then_combine,
}
"""The rules that ``train.order`` may name."""
