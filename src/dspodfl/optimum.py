"""θ*, the minimizer of F = (1/m) Σ_i F_i, of linear models whose losses have one."""

from __future__ import annotations

import numpy as np

from dspodfl.data import Federation
from dspodfl.errors import InputError
from dspodfl.models import Model
from dspodfl.models.gradients import has_bias
from dspodfl.theory import estimate
from dspodfl.theory.constants import Floats

LARGEST, CLIENTS = 2**22, 1000
"""Samples × features × classes, and clients, up to which a study looks for the θ* of logistic regression by itself."""


def shards(model: Model, data: Federation) -> list[estimate.Shard]:
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
        return from_rows(model, estimate.logistic_minimum(shards(model, data), model.outputs, model.l2)[0])
    except InputError:  # it could not be found to this precision: a study goes on without
        return None
