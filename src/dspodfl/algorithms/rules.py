"""Rules: how mixed models and gradients become new models.

A rule is given the stacked models, its state, and the iteration (`dspodfl.algorithms.step.Step`): ``at.mix`` applies
P(k) to any stacked array, ``at.gradient`` gives gradients where the rule asks, ``at.exchange`` sends other things than
models. The first two fuse what usually follows them: ``at.mix(x, minus)`` is Px − minus (written over ``minus``),
``at.gradient(x, scale)`` is diag(scale) G(x).

A rule may mix any number of times in an iteration, as long as all ranks do the same. One that always mixes exactly
once, an array of the shape of the models, may declare it by an attribute ``mixes = 1``: over several ranks, rows are
then received one iteration in advance, which is faster. `dspodfl.algorithms.base` has all that a rule may declare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dspodfl.algorithms.base import SIMULTANEOUS, Rule

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step


@dataclass(frozen=True)
class Simultaneous:
    """The paper's update: Θ ← PΘ − αV G(Θ)  (eq. update)."""

    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True
    sends_models: ClassVar[bool] = True
    kernel: ClassVar[str] = SIMULTANEOUS

    def init(self, theta: Tensor, links: int) -> None:
        """No state."""

    def step(self, theta: Tensor, state: None, at: Step) -> tuple[Tensor, None]:
        """One iteration."""
        return at.mix(theta, minus=at.gradient(theta, at.lr * at.v)), state  # Θ ← PΘ − αVG


@dataclass(frozen=True)
class CombineThenAdapt:
    """Mix first, and take the gradient at the mixed model: Θ ← PΘ − αV G(PΘ)."""

    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True
    sends_models: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> None:
        """No state."""

    def step(self, theta: Tensor, state: None, at: Step) -> tuple[Tensor, None]:
        """One iteration."""
        mixed = at.mix(theta)
        return mixed - at.gradient(mixed, at.lr * at.v), state


@dataclass(frozen=True)
class AdaptThenCombine:
    """Step first, and mix what comes out: Θ ← P(Θ − αV G(Θ))."""

    mixes: ClassVar[int] = 1
    rests: ClassVar[bool] = True
    sends_models: ClassVar[bool] = True

    def init(self, theta: Tensor, links: int) -> None:
        """No state."""

    def step(self, theta: Tensor, state: None, at: Step) -> tuple[Tensor, None]:
        """One iteration."""
        return at.mix(theta - at.gradient(theta, at.lr * at.v)), state


simultaneous = Simultaneous()
combine_then_adapt = CombineThenAdapt()
adapt_then_combine = AdaptThenCombine()

RULES: dict[str, Rule] = {
    "simultaneous": simultaneous,
    "combine_then_adapt": combine_then_adapt,
    "adapt_then_combine": adapt_then_combine,
}
"""The rules that ``train.order`` may name."""
