"""The constants that the paper's assumptions name, checked once so that every bound may rely on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dspodfl.errors import InputError

Floats = NDArray[np.float64]
Rate = float | Callable[[NDArray[np.int64]], Floats]
"""α: a number, or a function of iterations. Shapes: (iterations,) integers -> (iterations,) float64."""


@dataclass(frozen=True)
class Constants:
    """The constants that a bound is a function of: assumptions 4.1 (convex) or 4.2 (non-convex), 4.3 and 4.4.

    Those that a theorem does not need may stay at their defaults. ζ means ‖∇F − ∇F_i‖ ≤ δ + ζ‖θ − θ*‖ in the convex
    family and ‖∇F_i‖ ≤ δ + ζ‖∇F‖ in the non-convex one: the caller gives the number that the family needs.

    Args:
        m: The number of clients.
        beta: Smoothness β.
        rho_tilde: The contraction ρ̃ of mixing (lemma:rho_tilde), from 0 to below 1.
        mu: Strong convexity or the PL constant μ, at most β; None where there is none.
        delta: The constant part δ of the gradient diversity.
        zeta: The other part ζ of the gradient diversity.
        sigma: The deviation σ of the gradient noise; its variance is σ².
        d_min: The least SGD probability of a client.
        d_max: The largest.
        alpha: The learning rate: a number, or a function of iterations.

    Raises:
        InputError: A number is out of its range.

    >>> c = Constants(m=10, beta=2.0, rho_tilde=0.8, mu=1.0, zeta=0.5, d_min=0.5)
    >>> c.at(0.01).step
    0.01
    >>> c.at(lambda k: 0.1 / np.sqrt(1 + k)).steps(np.array([0, 3]))
    array([0.1 , 0.05])
    """

    m: int
    beta: float
    rho_tilde: float
    mu: float | None = None
    delta: float = 0.0
    zeta: float = 0.0
    sigma: float = 0.0
    d_min: float = 1.0
    d_max: float = 1.0
    alpha: Rate | None = None

    def __post_init__(self) -> None:
        if isinstance(self.m, bool) or not isinstance(self.m, int) or self.m < 1:
            raise InputError("m", self.m, "a whole number of clients, at least 1")
        _check("beta", self.beta, self.beta > 0, "a finite number above 0")
        _check("rho_tilde", self.rho_tilde, 0 <= self.rho_tilde < 1, "from 0 to below 1")
        if self.mu is not None:
            _check("mu", self.mu, 0 < self.mu <= self.beta, f"above 0 and at most beta, {self.beta}")
        for name, value in (("delta", self.delta), ("zeta", self.zeta), ("sigma", self.sigma)):
            _check(name, value, value >= 0, "a finite number, at least 0")
        _check("d_max", self.d_max, 0 < self.d_max <= 1, "above 0 and at most 1")
        _check("d_min", self.d_min, 0 <= self.d_min <= self.d_max, f"from 0 to d_max, {self.d_max}")
        if self.alpha is not None and not callable(self.alpha):
            _check("alpha", self.alpha, self.alpha > 0, "a finite number above 0, or a schedule")

    def at(self, alpha: Rate) -> Constants:
        """Return the same constants with another learning rate."""
        return replace(self, alpha=alpha)

    @property
    def strong(self) -> float:
        """μ, for the theorems that need it."""
        if self.mu is None:
            raise InputError("mu", None, "given: this bound needs strong convexity or the PL constant")
        return self.mu

    @property
    def step(self) -> float:
        """α, for the theorems with a constant learning rate."""
        if self.alpha is None or callable(self.alpha):
            raise InputError("alpha", self.alpha, "one number: this bound needs a constant learning rate")
        return self.alpha

    def steps(self, k: NDArray[np.int64]) -> Floats:
        """Return α(k) of a number or a function. Shapes: k (iterations,) -> (iterations,)."""
        if self.alpha is None:
            raise InputError("alpha", None, "given: a number, or a schedule")
        found = self.alpha(k) if callable(self.alpha) else np.full(np.shape(k), self.alpha)
        return np.asarray(found, dtype=np.float64)


def _check(field: str, value: float, allowed: bool, words: str) -> None:
    if not (allowed and math.isfinite(value)):
        raise InputError(field, value, words)
