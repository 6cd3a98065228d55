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
"""α: a number, or a schedule (iterations,) integers -> (iterations,) float64."""


@dataclass(frozen=True)
class Constants:
    """What a bound is a function of; what a theorem does not need may stay at its default.

    Assumptions 4.1 (convex) or 4.2 (non-convex), 4.3 and 4.4: ``beta`` smoothness, ``mu`` strong convexity or the PL
    constant, ``delta`` and ``zeta`` gradient diversity, ``sigma`` the deviation of the gradient noise (its variance is
    σ²), ``rho_tilde`` the contraction ρ̃ of mixing (lemma:rho_tilde), ``d_min`` ≤ d_i ≤ ``d_max`` the SGD
    probabilities, ``alpha`` the learning rate. ζ means ‖∇F − ∇F_i‖ ≤ δ + ζ‖θ − θ*‖ in the convex family and
    ‖∇F_i‖ ≤ δ + ζ‖∇F‖ in the non-convex one: the number is the caller's to choose for the family at hand.

    >>> Constants(m=10, beta=2.0, rho_tilde=0.8, mu=1.0, zeta=0.5, d_min=0.5).at(0.01).alpha
    0.01
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
        """The same problem with another learning rate."""
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
        """α(k) of a number or a schedule. Shapes: (iterations,) -> (iterations,)."""
        if self.alpha is None:
            raise InputError("alpha", None, "given: a number, or a schedule")
        found = self.alpha(k) if callable(self.alpha) else np.full(np.shape(k), self.alpha)
        return np.asarray(found, dtype=np.float64)


def _check(field: str, value: float, allowed: bool, words: str) -> None:
    if not (allowed and math.isfinite(value)):
        raise InputError(field, value, words)
