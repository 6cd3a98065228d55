"""The linear recursion ν ← Φν + Ψ that the convex and PL families share, and what follows from it.

ν(k+1) ≤ Φ ν(k) + Ψ entrywise, Φ ≥ 0 of shape (2, 2), Ψ ≥ 0 of shape (2,) (eq. recursive_ineqs). ν is the error of the
average model and the consensus error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dspodfl.errors import InputError
from dspodfl.theory.formulas.constants import Floats

BLOCK = 1024


@dataclass(frozen=True)
class Hypothesis:
    """One inequality that a result needs: ``left`` < ``right``.

    >>> Hypothesis("learning-rate condition", 0.01, 0.015).holds
    True
    """

    name: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """Whether left < right."""
        return self.left < self.right


def radius(phi: Floats) -> Floats:
    """ρ(Φ) of non-negative 2×2 matrices: the larger eigenvalue, always real (step 1). Shapes: (..., 2, 2) -> (...,)."""
    a, b, c, d = phi[..., 0, 0], phi[..., 0, 1], phi[..., 1, 0], phi[..., 1, 1]
    return np.asarray((a + d + np.hypot(a - d, 2.0 * np.sqrt(b * c))) / 2.0)


def propagate(phi: Floats, psi: Floats, nu: Floats) -> Floats:
    """Propagate ν(k+1) = Φ(k)ν(k) + Ψ(k) exactly (eq. explicit_ineqs).

    Args:
        phi: Φ(0) … Φ(K − 1), shape (K, 2, 2).
        psi: Ψ(0) … Ψ(K − 1), shape (K, 2).
        nu: ν(0), shape (2,).

    Returns:
        ν(0) … ν(K), shape (K + 1, 2).
    """
    out = np.empty((len(psi) + 1, 2))
    out[0] = nu
    for k, (matrix, force) in enumerate(zip(phi, psi, strict=True)):
        out[k + 1] = matrix @ out[k] + force
    return out


@dataclass(frozen=True, eq=False)
class Recursion:
    """Φ and Ψ of one family at one learning rate: ν ← Φν + Ψ.

    Args:
        phi: Φ ≥ 0, shape (2, 2).
        psi: Ψ ≥ 0, shape (2,).

    >>> half = Recursion(np.diag([0.5, 0.25]), np.array([1.0, 3.0]))
    >>> half.radius, half.gap.tolist()
    (0.5, [2.0, 4.0])
    >>> half.propagate(np.array([10.0, 0.0]), 2).tolist()
    [[10.0, 0.0], [6.0, 3.0], [4.0, 3.75]]
    >>> half.iterations_to(np.array([10.0, 0.0]), 2.5)
    4

    The printed closed form ρ(Φ)ᵏ ν(0) is no bound: here an error of 0 becomes 0.5, where it prints 0.

    >>> skew = Recursion(np.array([[0.9, 0.1], [0.5, 0.3]]), np.zeros(2))
    >>> float(skew.propagate(np.array([1.0, 0.0]), 1)[1, 1]), float(skew.printed(np.array([1.0, 0.0]), 1)[1, 1])
    (0.5, 0.0)
    """

    phi: Floats
    psi: Floats

    @property
    def radius(self) -> float:
        """ρ(Φ), by the formula for a non-negative 2×2 matrix: the larger eigenvalue, which is real (step 1)."""
        return float(radius(self.phi))

    @property
    def gap(self) -> Floats:
        """(I − Φ)⁻¹Ψ, the limit of the recursion; infinite where ρ(Φ) ≥ 1. Shapes: -> (2,)."""
        if self.radius >= 1.0:
            return np.full(2, np.inf)
        return np.asarray(np.linalg.solve(np.eye(2) - self.phi, self.psi))

    @property
    def printed_gap(self) -> Floats:
        """Ψ / (1 − ρ(Φ)), which the paper prints for the limit; not an entrywise bound of it. Shapes: -> (2,)."""
        return self.psi / (1.0 - self.radius) if self.radius < 1.0 else np.full(2, np.inf)

    def propagate(self, nu: Floats, iterations: int) -> Floats:
        """ν(0), …, ν(K) with ν(k+1) = Φν(k) + Ψ, exactly (eq. explicit_ineqs). Shapes: (2,) -> (K + 1, 2)."""
        return propagate(np.broadcast_to(self.phi, (iterations, 2, 2)), np.broadcast_to(self.psi, (iterations, 2)), nu)

    def printed(self, nu: Floats, iterations: int) -> Floats:
        """ρ(Φ)ᵏ ν(0) + Ψ / (1 − ρ(Φ)) (eq. geometric_rate), k = 0 … K: no entrywise bound, as Φ is not normal.

        Shapes: (2,) -> (K + 1, 2).
        """
        power = self.radius ** np.arange(iterations + 1)
        return np.asarray(power[:, None] * nu + self.printed_gap)

    @property
    def perron(self) -> Floats:
        """W ≥ 0 with wᵀΦ = ρ(Φ)wᵀ and w₁ + w₂ = 1: the norm in which the printed rate is right. Shapes: -> (2,)."""
        (a, b), (c, d) = self.phi.tolist()
        w = max((c, self.radius - a), (self.radius - d, b), key=sum)
        return np.array(w) / sum(w) if sum(w) > 0 else np.array([0.5, 0.5])

    def weighted(self, nu: Floats, iterations: int) -> Floats:
        """wᵀν(k) ≤ ρᵏ wᵀν(0) + (1 − ρᵏ)/(1 − ρ) wᵀΨ with w the Perron vector, an identity of the recursion.

        The geometric rate of theorem:constant, corrected; wᵀν / w_i bounds entry i. Shapes: (2,) -> (K + 1,).
        """
        k, rho, w = np.arange(iterations + 1), self.radius, self.perron
        sums = k if rho == 1.0 else (1.0 - rho**k) / (1.0 - rho)
        return np.asarray(rho**k * (w @ nu) + sums * (w @ self.psi))

    def iterations_to(self, nu: Floats, error: float, entry: int = 0, limit: int = 10_000_000) -> int | None:
        """Count the iterations until an entry of ν is small enough.

        It computes blocks of powers of Φ: ν(k + j) = Φʲν(k) + (I + … + Φʲ⁻¹)Ψ.

        Args:
            nu: ν(0), shape (2,).
            error: The error to reach, above 0.
            entry: 0: the error of the average model; 1: the consensus error.
            limit: The largest k that is tried.

        Returns:
            The first k at which the entry of ν(k) is at most ``error``; None if it is not within ``limit``.

        Raises:
            InputError: ``error`` is not above 0.
        """
        if not error > 0:
            raise InputError("error", error, "above 0")
        power, forced = np.empty((BLOCK, 2, 2)), np.zeros((BLOCK, 2))
        power[0] = np.eye(2)
        for j in range(1, BLOCK):
            power[j] = self.phi @ power[j - 1]
            forced[j] = self.phi @ forced[j - 1] + self.psi
        here = np.asarray(nu, dtype=np.float64)
        for first in range(0, limit + 1, BLOCK):
            with np.errstate(over="ignore", invalid="ignore"):  # ρ(Φ) > 1 overflows, and then reaches nothing
                ahead = power @ here + forced  # (BLOCK, 2)
            met = np.flatnonzero(ahead[:, entry] <= error)
            if met.size:
                return first + int(met[0])
            if not np.isfinite(ahead[-1]).all():
                return None
            last, here = here, self.phi @ ahead[-1] + self.psi
            if np.array_equal(last, here):
                return None
        return None


def largest_root(margin: Callable[[float], float], upper: float) -> float:
    """Find the α at which a margin that is positive for small α falls through zero, by bisection to the last bit.

    Args:
        margin: The margin as a function of α; it falls through zero once.
        upper: An α at which it is not positive.

    Returns:
        That α; 0 where the margin is never positive.

    >>> round(largest_root(lambda alpha: 2.0 - alpha**2, 2.0), 6)
    1.414214
    """
    low, high = 0.0, upper
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (middle, high) if margin(middle) > 0.0 else (low, middle)
        if high < upper * 1e-15:
            return 0.0
    return float(low)
