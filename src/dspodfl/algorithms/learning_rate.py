"""Learning rates α(k).

To add one, add a class here under ``@LEARNING_RATES.register()``: its first docstring line is what users read, its
fields are its parameters, each annotated with its range and a `Doc`, and calling it maps iterations to values.
Configuration, template, docs, JSON schema and ``dspodfl list`` follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Protocol

import numpy as np

from dspodfl.errors import Count, Doc, Positive, Probability, Registry


class LearningRate(Protocol):
    """α as a function of the iteration: (iterations,) integers -> (iterations,) float64."""

    def __call__(self, k: np.ndarray) -> np.ndarray: ...


LEARNING_RATES: Registry[LearningRate] = Registry("train.learning_rate.kind")
"""The learning rates that a configuration can name. There is no context."""

First = Annotated[Positive, Doc("α(0), the learning rate at the first iteration")]


@LEARNING_RATES.register("constant")
@dataclass(frozen=True)
class Constant:
    """α(k) = value."""

    value: First = 0.01

    def __call__(self, k: np.ndarray) -> np.ndarray:
        """α at each k."""
        return np.full(np.shape(k), self.value)


@LEARNING_RATES.register("diminishing")
@dataclass(frozen=True)
class Diminishing:
    """α(k) = value / √(1 + k/gamma).

    The paper's diminishing policy; gamma is its γ.
    """

    value: First = 0.01
    gamma: Annotated[Positive, Doc("how slowly it falls, in iterations", example=200.0)] = field(kw_only=True)

    def __call__(self, k: np.ndarray) -> np.ndarray:
        """α at each k."""
        return np.asarray(self.value / np.sqrt(1.0 + np.asarray(k) / self.gamma))


@LEARNING_RATES.register("step")
@dataclass(frozen=True)
class Step:
    """α(k) = value · factor^⌊k/every⌋."""

    value: First = 0.01
    every: Annotated[Count, Doc("iterations between two steps", example=500)] = field(kw_only=True)
    factor: Annotated[Probability, Doc("what it is multiplied by at each step", example=0.5)] = field(kw_only=True)

    def __call__(self, k: np.ndarray) -> np.ndarray:
        """α at each k."""
        return np.asarray(self.value * self.factor ** (np.asarray(k) // self.every).astype(np.float64))
