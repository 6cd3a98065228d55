"""Learning rates α(k)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class LearningRate(Protocol):
    """α as a function of the iteration: (iterations,) integers -> (iterations,) float64."""

    def __call__(self, k: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Constant:
    """α(k) = value."""

    value: float

    def __call__(self, k: np.ndarray) -> np.ndarray:
        """α at each k."""
        return np.full(np.shape(k), self.value)


@dataclass(frozen=True)
class Diminishing:
    """α(k) = value / √(1 + k/γ), the paper's diminishing policy."""

    value: float
    gamma: float

    def __call__(self, k: np.ndarray) -> np.ndarray:
        """α at each k."""
        return np.asarray(self.value / np.sqrt(1.0 + np.asarray(k) / self.gamma))


@dataclass(frozen=True)
class Step:
    """α(k) = value · factor^⌊k / every⌋."""

    value: float
    every: int
    factor: float

    def __call__(self, k: np.ndarray) -> np.ndarray:
        """α at each k."""
        return np.asarray(self.value * self.factor ** (np.asarray(k) // self.every).astype(np.float64))
