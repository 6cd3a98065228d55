"""Rules: how mixed models and gradients become new models.

A rule is given the stacked models, ``mix`` (which applies P(k) to any stacked array) and ``gradient`` (evaluated
where the rule asks), and may carry a state of its own from step to step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Mix = Callable[[Tensor], Tensor]
Gradient = Callable[[Tensor], Tensor]


class Rule(Protocol):
    """θ, state = rule.step(θ, mix, gradient, v, lr, state). Shapes: theta (clients, p), v and lr (clients,)."""

    def init(self, theta: Tensor) -> Any:
        """The state before the first step."""
        ...

    def step(
        self, theta: Tensor, mix: Mix, gradient: Gradient, v: Tensor, lr: Tensor, state: Any
    ) -> tuple[Tensor, Any]:
        """One iteration."""
        ...


def descend(theta: Tensor, v: Tensor, lr: Tensor, gradient: Tensor) -> Tensor:
    """Θ − αVG."""
    return torch.addcmul(theta, (lr * v)[:, None], gradient, value=-1)


@dataclass(frozen=True)
class Simultaneous:
    """The paper's update: Θ ← PΘ − αV G(Θ)  (eq. update)."""

    def init(self, theta: Tensor) -> None:
        """No state."""

    def step(
        self, theta: Tensor, mix: Mix, gradient: Gradient, v: Tensor, lr: Tensor, state: None
    ) -> tuple[Tensor, None]:
        """One iteration."""
        return descend(mix(theta), v, lr, gradient(theta)), state


@dataclass(frozen=True)
class CombineThenAdapt:
    """Mix first, and take the gradient at the mixed model: Θ ← PΘ − αV G(PΘ)."""

    def init(self, theta: Tensor) -> None:
        """No state."""

    def step(
        self, theta: Tensor, mix: Mix, gradient: Gradient, v: Tensor, lr: Tensor, state: None
    ) -> tuple[Tensor, None]:
        """One iteration."""
        mixed = mix(theta)
        return descend(mixed, v, lr, gradient(mixed)), state


@dataclass(frozen=True)
class AdaptThenCombine:
    """Step first, and mix what comes out: Θ ← P(Θ − αV G(Θ))."""

    def init(self, theta: Tensor) -> None:
        """No state."""

    def step(
        self, theta: Tensor, mix: Mix, gradient: Gradient, v: Tensor, lr: Tensor, state: None
    ) -> tuple[Tensor, None]:
        """One iteration."""
        return mix(descend(theta, v, lr, gradient(theta))), state


RULES: dict[str, Rule] = {
    "simultaneous": Simultaneous(),
    "combine_then_adapt": CombineThenAdapt(),
    "adapt_then_combine": AdaptThenCombine(),
}
