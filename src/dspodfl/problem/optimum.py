"""θ*, the minimizer of F = (1/m) Σ_i F_i, of linear models whose losses have one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg

from dspodfl.errors import InputError
from dspodfl.problem.data import Federation
from dspodfl.problem.models import Model
from dspodfl.problem.models.linear import has_bias

Floats = NDArray[np.float64]
ClientSamples = tuple[np.ndarray, np.ndarray]
"""One client's samples: x (samples, features) and y (samples,), targets or labels."""
LARGEST, CLIENTS = 2**22, 1000
"""Samples × features × classes, and clients, up to which a study looks for the θ* of logistic regression by itself."""


def shards(model: Model, data: Federation) -> list[ClientSamples]:
    """Each client's samples as a linear model sees them: flat, in float64, with a 1 where there is a bias."""
    dataset, out = data.dataset, []
    for rows in data.shards:
        x = dataset.normalized(dataset.x_train[rows]).reshape(len(rows), -1).astype(np.float64)
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1) if has_bias(model) else x
        y = dataset.y_train[rows]
        out.append((x, y if dataset.classes is not None else y.astype(np.float64)))
    return out


def from_rows(model: Model, theta: Floats) -> Floats:
    """Rows (w_c, b_c) one after the other in the model's own order, [W, b]. Shapes: (p,) -> (p,)."""
    if not has_bias(model):
        return theta
    rows = theta.reshape(model.outputs, -1)
    return np.concatenate([rows[:, :-1].ravel(), rows[:, -1]])


def to_rows(model: Model, theta: Floats) -> Floats:
    """The inverse of `from_rows`."""
    if not has_bias(model):
        return theta
    return np.concatenate(
        [theta[: -model.outputs].reshape(model.outputs, -1), theta[-model.outputs :, None]], 1
    ).ravel()


def is_logistic(model: Model) -> bool:
    """Whether this is logistic regression with a penalty, which has one minimizer."""
    return model.is_linear and model.loss == "cross_entropy" and model.l2 > 0


def minimizer(model: Model, data: Federation) -> Floats | None:
    """θ* of regularized logistic regression, ‖∇F(θ*)‖ ≤ 1e-10; None for other models, and where it would take long."""
    if not is_logistic(model):
        return None
    numbers = int(data.sizes.sum()) * int(np.prod(model.input_shape)) * model.outputs
    if numbers > LARGEST or data.clients > CLIENTS:
        return None
    try:
        return from_rows(model, logistic_minimum(shards(model, data), model.outputs, model.l2)[0])
    except InputError:  # it could not be found to this precision: a study continues without it
        return None


def least_squares(model: Model, data: Federation) -> Floats | None:
    """Return θ* of linear regression in closed form.

    Args:
        model: The model.
        data: The samples of each client.

    Returns:
        The minimizer of (1/m) Σ_i (1/2n_i) ‖X_iθ − y_i‖² + (l2/2) ‖θ‖², (p,); None for other models, and where it is
        not unique.
    """
    if not model.is_linear or model.loss != "squared_error" or model.outputs != 1:
        return None
    clients = shards(model, data)
    hessian = np.mean([x.T @ x / len(x) for x, _ in clients], axis=0)
    linear = np.mean([x.T @ y / len(x) for x, y in clients], axis=0)
    try:
        theta = np.linalg.solve(hessian + model.l2 * np.eye(len(hessian)), linear)
        return from_rows(model, theta.astype(np.float64))
    except np.linalg.LinAlgError:
        return None


# --- regularized logistic regression ---------------------------------------------------------------------------------


def logistic_loss(shard: ClientSamples, theta: Floats, classes: int, l2: float) -> float:
    """F_i(θ). Shapes: theta (classes · features,)."""
    x, y = shard
    scores = x @ theta.reshape(classes, -1).T
    top = scores.max(axis=1)
    log = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    return float((log - scores[np.arange(len(y)), y]).mean() + l2 / 2 * theta @ theta)


def logistic_gradient(shard: ClientSamples, theta: Floats, classes: int, l2: float) -> Floats:
    """Return ∇F_i(θ) = mean (p − e_y) ⊗ x + l2 θ of logistic regression.

    Args:
        shard: The samples of a client: x (samples, features), y (samples,).
        theta: The parameters, shape (classes · features,).
        classes: The number of classes.
        l2: The weight of the penalty.

    Returns:
        The gradient, in the shape of ``theta``.

    >>> logistic_gradient((np.ones((1, 1)), np.array([0])), np.zeros(2), classes=2, l2=0.0).tolist()
    [-0.5, 0.5]
    """
    x, y = shard
    p = _softmax(x, theta, classes)
    p[np.arange(len(y)), y] -= 1
    return np.asarray((p.T @ x / len(x)).ravel() + l2 * theta)


def _softmax(x: Floats, theta: Floats, classes: int) -> Floats:
    scores = x @ theta.reshape(classes, -1).T
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def logistic_minimum(
    shards: Sequence[ClientSamples], classes: int, l2: float, tolerance: float = 1e-10
) -> tuple[Floats, float]:
    """Minimize F = (1/m) Σ_i F_i of regularized logistic regression.

    Newton steps by conjugate gradients, halved until F falls enough.

    Args:
        shards: The samples of each client: x (samples, features), y (samples,).
        classes: The number of classes.
        l2: The weight of the penalty, above 0.
        tolerance: The largest norm of the gradient at the result.

    Returns:
        θ̂, shape (classes · features,), and ‖∇F(θ̂)‖ ≤ tolerance.

    Raises:
        InputError: The tolerance is not reached in 200 steps.

    >>> theta, norm = logistic_minimum([(np.ones((2, 1)), np.array([0, 0]))], classes=2, l2=1.0)
    >>> bool(theta[0] > 0), norm <= 1e-10
    (True, True)
    """
    theta = np.zeros(classes * shards[0][0].shape[1])

    def loss(at: Floats) -> float:
        return float(np.mean([logistic_loss(shard, at, classes, l2) for shard in shards]))

    for _ in range(200):
        gradient = np.mean([logistic_gradient(shard, theta, classes, l2) for shard in shards], axis=0)
        size = float(np.linalg.norm(gradient))
        if size <= tolerance:
            return theta, size
        probabilities = [_softmax(x, theta, classes) for x, _ in shards]

        def curve(u: Floats, probabilities: Sequence[Floats] = probabilities) -> Floats:
            out = l2 * u
            for (x, _), p in zip(shards, probabilities, strict=True):
                score = p * (x @ u.reshape(classes, -1).T)
                score -= p * score.sum(axis=1, keepdims=True)
                out = out + (score.T @ x / len(x)).ravel() / len(shards)
            return np.asarray(out)

        hessian = LinearOperator((theta.size, theta.size), matvec=curve, dtype=float)
        step, _ = cg(hessian, -gradient, rtol=min(0.1, size), maxiter=10 * theta.size)
        before, directional, share = loss(theta), float(gradient @ step), 1.0
        # near the minimum F no longer resolves the gain: a step that small is taken whole
        while (
            share > 1e-6
            and -directional > 1e-12 * max(1.0, before)
            and loss(theta + share * step) > before + 1e-4 * share * directional
        ):
            share /= 2
        theta = theta + share * step
    raise InputError("tolerance", tolerance, f"reachable: after 200 Newton steps the gradient's norm is {size:.3g}")
