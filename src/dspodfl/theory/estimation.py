"""The constants of a real problem: exact, certified, or measured, and always labelled which.

- `ridge`: exact, from the shards' Hessians.
- `logistic`: certified bounds: β, ζ, δ and σ never below the true ones, μ exact.
- `measure_*`: what a trajectory shows. A measured β, δ, ζ or σ is a lower estimate (the true constant is at least that
  large), a measured μ an upper one; they can refute an assumption and never establish it.

F = (1/m) Σ_i F_i, F_i the mean over client i's samples. ζ differs between the families: ‖∇F − ∇F_i‖ ≤ δ_i +
ζ_i‖θ − θ*‖ for convex losses, ‖∇F_i‖ ≤ δ_i + ζ_i‖∇F‖ for non-convex ones; `Problem` has both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from dspodfl.errors import InputError
from dspodfl.problem import ClientSamples, logistic_gradient, logistic_minimum
from dspodfl.theory.formulas.constants import Constants, Floats, Rate

Kind = Literal["exact", "certified"]
Gradient = Floats | Callable[[Floats], Floats]
"""Gradients at the points of a trajectory (points, n), or a function from one point (n,) to its gradient (n,)."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Constants of every client, and θ*. Shapes: (m,) each; theta (n,); theta_error ≥ ‖theta − θ*‖."""

    kind: Kind
    mu: Floats
    beta: Floats
    delta: Floats
    zeta: Floats
    zeta_gradient: Floats
    theta: Floats
    theta_error: float

    def constants(
        self,
        rho_tilde: float,
        sigma: float,
        d_min: float = 1.0,
        d_max: float = 1.0,
        alpha: Rate | None = None,
        family: Literal["convex", "nonconvex"] = "convex",
    ) -> Constants:
        """Return the largest of the clients' constants (the least μ) for the formulas.

        Args:
            rho_tilde: The contraction ρ̃ of mixing.
            sigma: The deviation of the gradient noise.
            d_min: The least SGD probability.
            d_max: The largest SGD probability.
            alpha: The learning rate.
            family: Whose ζ is taken: ``convex`` or ``nonconvex``.

        Returns:
            The constants.
        """
        zeta = self.zeta if family == "convex" else self.zeta_gradient
        return Constants(
            m=len(self.mu),
            beta=float(self.beta.max()),
            rho_tilde=rho_tilde,
            mu=float(self.mu.min()),
            delta=float(self.delta.max()),
            zeta=float(zeta.max()),
            sigma=sigma,
            d_min=d_min,
            d_max=d_max,
            alpha=alpha,
        )


def _norm(matrix: Floats) -> float:
    """Spectral norm."""
    return float(np.linalg.norm(matrix, 2))


def _moments(shards: Sequence[ClientSamples]) -> Floats:
    """x_iᵀx_i / n_i. Shapes: -> (m, features, features)."""
    if not shards:
        raise InputError("shards", 0, "at least one client")
    for x, y in shards:
        if x.ndim != 2 or len(x) == 0 or y.shape != x.shape[:1]:
            raise InputError("shard", (x.shape, y.shape), "x (samples, features) and y (samples,), not empty")
    return np.stack([x.T @ x / len(x) for x, _ in ((np.asarray(x, float), y) for x, y in shards)])


# --- ridge regression ------------------------------------------------------------------------------------------------


def ridge(shards: Sequence[ClientSamples], l2: float) -> Problem:
    """Compute the exact constants of F_i(θ) = mean ½(θᵀx − y)² + (l2/2)‖θ‖².

    H_i = x_iᵀx_i/n_i + l2 I, H = mean H_i; μ_i, β_i = extreme eigenvalues of H_i; Hθ* = mean x_iᵀy_i/n_i;
    ∇F_i(θ) = H_i(θ − θ*) + ∇F_i(θ*), so δ_i = ‖∇F_i(θ*)‖ with ζ_i = ‖H − H_i‖ (convex) or ‖H_i H⁻¹‖ (non-convex), and
    no smaller ζ_i serves with any δ_i.

    Args:
        shards: x, shape (samples, features), and y, shape (samples,), of each client.
        l2: The penalty, at least 0.

    Returns:
        The constants of every client, and θ*.

    Raises:
        InputError: There is no client, or a shape is wrong.
        LinAlgError: There is more than one minimizer.

    >>> one = (np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1.0, 2.0]))  # ½xᵀx has the eigenvalues ½ and 2
    >>> found = ridge([one], l2=0.5)
    >>> found.mu.tolist(), found.beta.tolist(), found.theta.tolist()
    ([1.0], [2.5], [0.5, 0.8])
    """
    hessians = _moments(shards) + l2 * np.eye(shards[0][0].shape[1])
    pulls = np.stack([np.asarray(x, float).T @ y / len(x) for x, y in shards])
    eigenvalues = np.asarray(np.linalg.eigvalsh(hessians), np.float64)
    mean = hessians.mean(axis=0)
    theta = np.linalg.solve(mean, pulls.mean(axis=0))
    error = np.linalg.norm(mean @ theta - pulls.mean(axis=0)) / np.linalg.eigvalsh(mean)[0]
    return Problem(
        kind="exact",
        mu=eigenvalues[:, 0],
        beta=eigenvalues[:, -1],
        delta=np.linalg.norm(hessians @ theta - pulls, axis=1),
        zeta=np.array([_norm(mean - h) for h in hessians]),
        zeta_gradient=np.array([_norm(np.linalg.solve(mean, h)) for h in hessians]),  # H⁻¹H_i is (H_iH⁻¹)ᵀ
        theta=theta,
        theta_error=float(error),
    )


def ridge_sigma(shards: Sequence[ClientSamples], batch: int, centre: Floats, reach: float) -> Floats:
    """Compute σ_i of minibatches drawn with replacement, as a maximum over the ball ‖θ − centre‖ ≤ reach.

    σ_i² = max V_i(θ)/batch, V_i(θ) = mean_s ‖(A_s − Ā)θ − (b_s − b̄)‖², A_s = x_s x_sᵀ, b_s = y_s x_s: a convex
    quadratic in θ, without a bound on the whole space (so that ridge regression has no σ there). Its maximum on a
    ball is min_{λ ≥ λmax(Q)} V_i(centre) + λ reach² + Σ_j q_j²/(λ − λ_j), Q and 2q being V_i's Hessian/2 and gradient
    at the centre; any λ gives an upper bound, so that the value is certified however well λ is found.

    Args:
        shards: x, shape (samples, features), and y, shape (samples,), of each client.
        batch: The samples of a minibatch.
        centre: The centre of the ball, shape (features,).
        reach: Its radius.

    Returns:
        σ_i, shape (m,).
    """
    out = []
    for x, y in ((np.asarray(x, float), np.asarray(y, float)) for x, y in shards):
        size, mean, pull = (x**2).sum(axis=1), x.T @ x / len(x), x.T @ y / len(x)
        square = (x * size[:, None]).T @ x / len(x) - mean @ mean
        line = square @ centre - ((x * size[:, None]).T @ y / len(x) - mean @ pull)
        here = _variance(x, y, centre)
        out.append(math.sqrt((here + _rise(square, line, reach)) / batch))
    return np.array(out)


def _variance(x: Floats, y: Floats, theta: Floats) -> float:
    """mean_s ‖g_s − ḡ‖² of the per-sample gradients at θ, for the squared loss."""
    g = x * (x @ theta - y)[:, None]
    return float(((g - g.mean(axis=0)) ** 2).sum(axis=1).mean())


def _rise(square: Floats, line: Floats, reach: float) -> float:
    """max_{‖u‖ ≤ reach} uᵀQu + 2qᵀu through its dual, which has no gap (S-lemma)."""
    values, vectors = np.linalg.eigh(square)
    weight, top = (vectors.T @ line) ** 2, max(float(values[-1]), 0.0)
    if reach == 0 or not weight.any():
        return top * reach**2

    def derivative(gap: float) -> float:
        return float((weight / (top + gap - values) ** 2).sum()) - reach**2

    high = math.sqrt(float(weight.sum())) / reach  # where the derivative is no longer positive
    low = max(high * 1e-9, top * 1e-12)
    gap = float(brentq(derivative, low, 2 * high)) if low < high and derivative(low) > 0 else low
    return float((top + gap) * reach**2 + (weight / (top + gap - values)).sum())


def added_sigma(deviation: float, parameters: int) -> float:
    """Compute σ of noise with a known standard deviation in every coordinate: σ² = E‖ε‖² = n·deviation².

    >>> added_sigma(0.5, parameters=4)
    1.0
    """
    return deviation * math.sqrt(parameters)


# --- multinomial logistic regression ---------------------------------------------------------------------------------


def logistic(shards: Sequence[ClientSamples], classes: int, l2: float, tolerance: float = 1e-10) -> Problem:
    """Compute certified constants of F_i(θ) = mean [ln Σ_c e^{θ_cᵀx} − θ_yᵀx] + (l2/2)‖θ‖², l2 > 0.

    ∇²F_i = mean (diag p − ppᵀ) ⊗ xxᵀ + l2 I. For a unit vector u, uᵀ(diag p − ppᵀ)u = Var_p(u) ≤ (max u − min u)²/4
    ≤ (max² + min²)/2 ≤ ½ (Popoviciu), so 0 ≼ ∇²F_i − l2 I ≼ ½ I ⊗ M_i with M_i = x_iᵀx_i/n_i, whence

    β_i ≤ ½λmax(M_i) + l2;   μ_i = l2, exactly: the same shift of every θ_c leaves the loss unchanged;
    ζ_i ≤ max{½(1 − 1/m)λmax(M_i), ½λmax(Σ_{j≠i} M_j)/m}, from −(1 − 1/m)S_i ≼ ∇²F − ∇²F_i ≼ (1/m) Σ_{j≠i} S_j;
    ζ_i (non-convex) ≤ min{β_i/l2, 1 + ζ_i/l2}, from ‖θ − θ*‖ ≤ ‖∇F(θ)‖/l2;
    δ_i ≤ ‖∇F_i(θ̂)‖ + β_i‖∇F(θ̂)‖/l2, θ̂ found by Newton steps until ‖∇F(θ̂)‖ ≤ tolerance, so ‖θ̂ − θ*‖ ≤ ‖∇F(θ̂)‖/l2.

    Args:
        shards: x, shape (samples, features), and y, shape (samples,), classes from 0, of each client.
        classes: The number of classes.
        l2: The penalty, above 0.
        tolerance: The gradient norm at which θ̂ is accepted.

    Returns:
        The constants of every client, and θ̂, shape (classes · features,).

    Raises:
        InputError: ``l2`` is not above 0, there is no client, or a shape is wrong.
    """
    if l2 <= 0:
        raise InputError("l2", l2, "above 0: without it there is neither strong convexity nor, in general, a minimum")
    moments, m = _moments(shards), len(shards)
    tops = np.linalg.eigvalsh(moments)[:, -1]
    others = np.linalg.eigvalsh((moments.sum(axis=0) - moments) / m)[:, -1]
    beta = tops / 2 + l2
    zeta = np.maximum((1 - 1 / m) * tops / 2, np.maximum(others, 0) / 2)
    theta, residual = logistic_minimum(shards, classes, l2, tolerance)
    gradients = np.stack([logistic_gradient(shard, theta, classes, l2) for shard in shards])
    return Problem(
        kind="certified",
        mu=np.full(m, l2),
        beta=beta,
        delta=np.linalg.norm(gradients, axis=1) + beta * residual / l2,
        zeta=zeta,
        zeta_gradient=np.minimum(beta / l2, 1 + zeta / l2),
        theta=theta,
        theta_error=residual / l2,
    )


def logistic_sigma(shards: Sequence[ClientSamples], batch: int) -> Floats:
    """Bound σ_i² ≤ 2 mean‖x‖²/batch for minibatches drawn with replacement, at every θ.

    The gradient of one sample is (p − e_y) ⊗ x and ‖p − e_y‖² ≤ 2; a variance is at most a second moment.

    Args:
        shards: x, shape (samples, features), and y, shape (samples,), of each client.
        batch: The samples of a minibatch.

    Returns:
        The bound of σ_i, shape (m,).

    >>> logistic_sigma([(np.array([[3.0, 4.0]]), np.array([0]))], batch=2).tolist()
    [5.0]
    """
    return np.array([math.sqrt(2 * (np.asarray(x, float) ** 2).sum(axis=1).mean() / batch) for x, _ in shards])


# --- measured along a trajectory -------------------------------------------------------------------------------------


def _at(gradient: Gradient, points: Floats) -> Floats:
    """Gradients at the points. Shapes: points (points, n) -> (points, n)."""
    found = np.stack([gradient(p) for p in points]) if callable(gradient) else np.asarray(gradient, float)
    if found.shape != points.shape:
        raise InputError("gradient", found.shape, f"of the shape of the points, {points.shape}")
    return found


def _pairs(points: Floats, gradients: Floats) -> tuple[Floats, Floats, Floats]:
    """‖x − y‖², ‖∇F(x) − ∇F(y)‖² and ⟨∇F(x) − ∇F(y), x − y⟩ of every pair of distinct points."""
    rows = []
    for i in range(len(points) - 1):
        dx, dg = points[i + 1 :] - points[i], gradients[i + 1 :] - gradients[i]
        rows.append(np.stack([(dx**2).sum(axis=1), (dg**2).sum(axis=1), (dg * dx).sum(axis=1)]))
    every = np.concatenate(rows, axis=1) if rows else np.zeros((3, 0))
    apart, change, along = every[:, every[0] > 0]
    return apart, change, along


def measure_beta(gradient: Gradient, points: Floats) -> float:
    """Estimate β from below: max ‖∇F(x) − ∇F(y)‖/‖x − y‖ over pairs of points.

    Args:
        gradient: Gradients at the points, shape (points, n), or a function from a point to its gradient.
        points: The points, shape (points, n).

    Returns:
        The estimate; 0 where no two points differ.

    >>> points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> measure_beta(lambda x: np.array([3.0, 1.0]) * x, points), measure_mu(lambda x: np.array([3.0, 1.0]) * x, points)
    (3.0, 1.0)
    """
    apart, change, _ = _pairs(points, _at(gradient, points))
    return float(np.sqrt(change / apart).max()) if len(apart) else 0.0


def measure_mu(gradient: Gradient, points: Floats) -> float:
    """Estimate μ from above: min ⟨∇F(x) − ∇F(y), x − y⟩/‖x − y‖² over pairs; below 0 it refutes convexity.

    Args:
        gradient: Gradients at the points, shape (points, n), or a function from a point to its gradient.
        points: The points, shape (points, n).

    Returns:
        The estimate; infinite where no two points differ.
    """
    apart, _, along = _pairs(points, _at(gradient, points))
    return float((along / apart).min()) if len(apart) else math.inf


def measure_delta(gradients: Sequence[Gradient], points: Floats, zeta: float, theta: Floats | None = None) -> float:
    """Estimate from below the δ that goes with ζ: the most that ζ leaves unexplained at any client and point.

    max ‖∇F − ∇F_i‖ − ζ‖x − θ*‖ where θ* is given (convex), max ‖∇F_i‖ − ζ‖∇F‖ where it is not (non-convex); at least 0.

    Args:
        gradients: Of each client, its gradients at the points, shape (points, n), or a function that gives them.
        points: The points, shape (points, n).
        zeta: ζ.
        theta: θ*, shape (n,); None: the non-convex diversity.

    Returns:
        The estimate.
    """
    each = np.stack([_at(g, points) for g in gradients])  # (m, points, n)
    mean = each.mean(axis=0)
    if theta is None:
        left = np.linalg.norm(each, axis=-1) - zeta * np.linalg.norm(mean, axis=-1)
    else:
        left = np.linalg.norm(mean - each, axis=-1) - zeta * np.linalg.norm(points - theta, axis=-1)
    return max(float(left.max()), 0.0)


def measure_sigma(draws: Floats, gradients: Floats) -> float:
    """Estimate σ: max over points of √mean‖g − ∇F_i‖²; a lower estimate but for sampling error.

    Args:
        draws: Stochastic gradients, shape (points, draws, n).
        gradients: The full gradients, shape (points, n).

    Returns:
        The estimate.
    """
    return math.sqrt(float(((draws - gradients[:, None]) ** 2).sum(axis=-1).mean(axis=-1).max()))
