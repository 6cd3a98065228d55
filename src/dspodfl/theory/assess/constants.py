"""The constants of a problem that the theorems need, each with where it comes from.

Exact for linear regression with a squared error, certified for regularized logistic regression; for any other model
measured along a trajectory, as lower estimates, which can refute an assumption and never establish it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from dspodfl import rng
from dspodfl.errors import InputError
from dspodfl.problem import optimum
from dspodfl.problem.data import Federation
from dspodfl.problem.models import Model
from dspodfl.rng import Stream
from dspodfl.theory import estimation
from dspodfl.theory.formulas.constants import Floats

EXACT, CERTIFIED, MEASURED = "exact", "certified bound", "measured lower estimate"
FULL = "exact: full gradients have no noise"
_SAMPLES_PER_BATCH = 512
_MAX_NUMBERS = 2**26
"""Numbers in the gradients of all clients at all points (512 MB)."""
_ZETAS = (0.0, 0.5, 1.0)
"""The ζ that a measured δ is found for: the bound takes the pair that serves it best."""
_DRAWS = 16
"""Minibatches drawn at a point to measure σ."""


@dataclass(frozen=True, eq=False)
class ProblemConstants:
    """The constants of one seed's problem, and where each comes from.

    Unlike `dspodfl.theory.formulas.Constants`, they are of the problem alone: no ρ̃, no d_min, no learning rate.

    Attributes:
        kind: ``exact``, ``certified bound`` or ``measured lower estimate``.
        m: The number of clients.
        beta: Smoothness, the largest over clients.
        sigma: The deviation of the minibatch noise, the largest over clients.
        pairs: (ζ, δ) of the non-convex diversity ‖∇F_i‖ ≤ δ + ζ‖∇F‖; a bound takes the pair that serves it best.
        excess: At least F(θ(0)) − F*.
        source: Where each constant comes from, by name, in words.
        mu: Strong convexity, the least over clients; None where it is not claimed.
        zeta: ζ of the convex diversity ‖∇F − ∇F_i‖ ≤ δ + ζ‖θ − θ*‖; None where it is not claimed.
        delta: δ of the same.
        distance: ‖θ(0) − θ*‖²; None where θ* is not known.
        reach: The radius of the ball that σ is a maximum over; None where σ holds everywhere.
    """

    kind: str
    m: int
    beta: float
    sigma: float
    pairs: tuple[tuple[float, float], ...]
    excess: float
    source: dict[str, str]
    mu: float | None = None
    zeta: float | None = None
    delta: float | None = None
    distance: float | None = None
    reach: float | None = None

    @property
    def guaranteed(self) -> bool:
        """Whether bounds from these constants are guarantees."""
        return self.kind != MEASURED


def estimate(
    model: Model,
    data: Federation,
    seed: int,
    batch: int,
    alpha: float,
    reach: float | None,
    points: int,
    on_share: Callable[[float], None] | None = None,
) -> ProblemConstants:
    """Estimate the constants of a model on the data of a seed.

    They are exact for linear regression with a squared error, certified bounds for regularized logistic regression, and
    lower estimates along a trajectory of gradient descent for any other model.

    Args:
        model: The model, with its loss and penalty.
        data: The data of the clients.
        seed: The seed, which decides the initial model and the minibatches that are drawn.
        batch: The samples of a minibatch; 0: full gradients, whose σ is 0.
        alpha: The learning rate of the trajectory.
        reach: The radius of the ball around θ* over which σ of linear regression is the maximum; None: ‖θ(0) − θ*‖.
        points: The number of points of the trajectory.
        on_share: Called with the share of the points that is done.

    Returns:
        The constants, each with its source.

    Raises:
        InputError: The problem has more than one minimizer, the trajectory does not stay finite, or it would need too
            much memory.
    """
    if not batch:
        noisy = estimate(model, data, seed, 1, alpha, reach, points, on_share)
        return replace(noisy, sigma=0.0, source=noisy.source | {"sigma": FULL})
    if model.is_linear and model.loss == "squared_error":
        return _ridge(model, data, seed, batch, reach)
    if optimum.is_logistic(model):
        return _logistic(model, data, seed, batch)
    return _measured(model, data, seed, batch, alpha, points, on_share)


def _ridge(model: Model, data: Federation, seed: int, batch: int, reach: float | None) -> ProblemConstants:
    shards = optimum.shards(model, data)
    try:
        found = estimation.ridge(shards, model.l2)
    except np.linalg.LinAlgError:
        allowed = "above 0: without a penalty these data have more than one minimizer"
        raise InputError("model.l2", model.l2, allowed) from None
    start = model.initial(seed).double().numpy()
    distance = float(((start - found.theta) ** 2).sum())
    radius = float(np.sqrt(distance)) if reach is None else reach
    sigma = float(estimation.ridge_sigma(shards, batch, found.theta, radius).max())
    hessian = np.mean([x.T @ x / len(x) for x, _ in shards], axis=0) + model.l2 * np.eye(len(start))
    step = start - found.theta
    mu = float(found.mu.min())
    strong = mu > 1e-12 * float(found.beta.max())
    source = dict.fromkeys(("mu", "beta", "delta", "zeta", "zeta_gradient", "theta"), EXACT)
    return ProblemConstants(
        kind=EXACT,
        m=len(shards),
        beta=float(found.beta.max()),
        sigma=sigma,
        pairs=((float(found.zeta_gradient.max()), float(found.delta.max())),),
        excess=float(step @ hessian @ step / 2),
        source=source | {"sigma": f"exact maximum over the ball ‖θ − θ*‖ ≤ {radius:.4g}"},
        mu=mu if strong else None,
        zeta=float(found.zeta.max()),
        delta=float(found.delta.max()),
        distance=distance,
        reach=radius,
    )


def _logistic(model: Model, data: Federation, seed: int, batch: int) -> ProblemConstants:
    shards = optimum.shards(model, data)
    found = estimation.logistic(shards, model.outputs, model.l2)
    start = model.initial(seed).double().numpy()
    # F(θ̂) − F* ≤ ‖∇F(θ̂)‖²/(2μ)
    slack = model.l2 * found.theta_error**2 / 2
    gap = _loss(shards, optimum.to_rows(model, start), model) - _loss(shards, found.theta, model) + slack
    source = {"mu": EXACT, "theta": f"found to {found.theta_error:.1e}"}
    source |= dict.fromkeys(("beta", "delta", "zeta", "zeta_gradient", "sigma"), CERTIFIED)
    return ProblemConstants(
        kind=CERTIFIED,
        m=len(shards),
        beta=float(found.beta.max()),
        sigma=float(estimation.logistic_sigma(shards, batch).max()),
        pairs=((float(found.zeta_gradient.max()), float(found.delta.max())),),
        excess=max(gap, 0.0),
        source=source,
        mu=float(found.mu.min()),
        zeta=float(found.zeta.max()),
        delta=float(found.delta.max()),
        distance=float(((start - optimum.from_rows(model, found.theta)) ** 2).sum()),
    )


def _loss(shards: Sequence[optimum.ClientSamples], theta: Floats, model: Model) -> float:
    return float(np.mean([optimum.logistic_loss(shard, theta, model.outputs, model.l2) for shard in shards]))


# --- any other model --------------------------------------------------------------------------------------------


def _measured(
    model: Model,
    data: Federation,
    seed: int,
    batch: int,
    alpha: float,
    points: int,
    on_share: Callable[[float], None] | None = None,
) -> ProblemConstants:
    m, n = data.clients, model.parameters
    if m * points * n > _MAX_NUMBERS:
        most = _MAX_NUMBERS // (m * n)
        if most < 2:
            raise InputError("model.name", model.name, f"smaller: {m} × {n:,} parameters are too many to be measured")
        raise InputError("--points", points, f"at most {most} with {m} clients and {n:,} parameters")
    exact = model.to("cpu", torch.float64)
    losses = [_objective(exact, data, rows) for rows in data.shards]
    theta = model.initial(seed).double()
    where, gradients, first = [], [], 0.0
    for step in range(points):
        if on_share:
            on_share(step / points)
        found = [loss(theta) for loss in losses]
        first = float(np.mean([value for value, _ in found])) if step == 0 else first
        each = torch.stack([gradient for _, gradient in found])
        where.append(theta.numpy())
        gradients.append(each.numpy())
        theta = theta - alpha * each.mean(dim=0)
    path, along = np.stack(where), np.stack(gradients, axis=1)  # (points, n), (m, points, n)
    if not np.isfinite(along).all():
        raise InputError("train.learning_rate", alpha, f"such that {points} steps of gradient descent stay finite")
    beta = max(estimation.measure_beta(along[i], path) for i in range(m))
    if beta == 0.0:
        raise InputError("--points", points, "enough for the gradients to change along the trajectory")
    how = f"{MEASURED}, {points} points"
    source = dict.fromkeys(("beta", "delta", "zeta_gradient", "sigma"), how)
    some = sorted({0, points // 2, points - 1})
    sigma = max(_sigma(exact, data, i, seed, batch, path[some], along[i][some]) for i in range(m))
    return ProblemConstants(
        kind=MEASURED,
        m=m,
        beta=beta,
        sigma=sigma,
        pairs=tuple((zeta, estimation.measure_delta(list(along), path, zeta)) for zeta in _ZETAS),
        excess=first,
        source=source | ({"beta": f"{how}; the hinge loss has none"} if model.loss == "hinge" else {}),
    )


def _batch(model: Model, data: Federation, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    dataset = data.dataset
    x = torch.from_numpy(dataset.normalized(dataset.x_train[rows])).double()
    y = torch.from_numpy(dataset.y_train[rows])
    return (x.flatten(1) if model.is_linear else x), y.double() if y.is_floating_point() else y


def _objective(model: Model, data: Federation, rows: np.ndarray) -> Callable[[Tensor], tuple[float, Tensor]]:
    """F_i and ∇F_i over a whole shard, some samples at a time."""

    def found(theta: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(theta)
        for first in range(0, len(rows), _SAMPLES_PER_BATCH):
            some = rows[first : first + _SAMPLES_PER_BATCH]
            point = theta.clone().requires_grad_(True)
            loss = model.objective(point, *_batch(model, data, some)) * (len(some) / len(rows))
            (here,) = torch.autograd.grad(loss, point)
            value, gradient = value + float(loss.detach()), gradient + here
        return value, gradient

    return found


def _sigma(model: Model, data: Federation, client: int, seed: int, batch: int, path: Floats, full: Floats) -> float:
    """σ_i from minibatches as the run draws them, addresses of iterations 0 … 15."""
    rows, gradient = data.shards[client], grad(model.objective)
    word = rng.words(seed, Stream.BATCH, client, k=np.arange(_DRAWS), slots=batch)
    batches = [_batch(model, data, rows[some]) for some in np.asarray(rng.index_below(word, len(rows)))]
    draws = np.stack([[gradient(torch.from_numpy(p), *b).numpy() for b in batches] for p in path])
    return estimation.measure_sigma(draws, full)
