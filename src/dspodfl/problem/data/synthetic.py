"""Data made up from addressed normals: Gaussian classes, and linear regression whose optimum is known exactly."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from dspodfl import rng
from dspodfl.errors import Doc, InputError, NonNegative, Positive, Size
from dspodfl.problem.data.dataset import MAX_CLASSES, Dataset, Federation
from dspodfl.problem.data.validation import number, whole
from dspodfl.rng import Stream

_CLASSES, _CLIENTS, _COMMON = 0, 1, 2  # j of an address: Gaussian classes; a client of `ridge`; what all share
_MAX_ELEMENTS_PER_CHUNK = 2**19


def synthetic(
    seed: int,
    samples: Annotated[Size, Doc("training samples")] = 6000,
    test_samples: Annotated[Size, Doc("test samples")] = 1000,
    features: Annotated[Size, Doc("numbers per sample")] = 32,
    classes: Annotated[int, Ge(2), Le(MAX_CLASSES), Doc("number of classes")] = 10,
    separation: Annotated[NonNegative, Doc("how far the means of the classes are apart")] = 2.0,
    noise: Annotated[Positive, Doc("the standard deviation within a class")] = 1.0,
) -> Dataset:
    """Gaussian classes, drawn for each seed.

    The classes are around random means, with as many samples of each as the numbers allow.

    x = separation · e_c + noise · z, with e_c a random unit vector for class c and z standard normal

    Two means are about √2 · separation apart. Sample s has the label s mod classes, and the same features whatever the
    number of samples.

    Args:
        seed: The seed of the draws.
        samples: The number of training samples.
        test_samples: The number of test samples.
        features: Numbers per sample.
        classes: The number of classes.
        separation: How far the means of the classes are apart.
        noise: The standard deviation within a class.

    Returns:
        The dataset: x (samples, features), float32, y (samples,), int64.

    Raises:
        InputError: A number is out of range.

    >>> synthetic(seed=0, samples=20, features=3).x_train.shape
    (20, 3)
    """
    samples, test_samples = whole("data.samples", samples), whole("data.test_samples", test_samples)
    features, classes = whole("data.features", features), whole("data.classes", classes)
    separation = number("data.separation", separation, zero=True)
    noise = number("data.noise", noise, zero=True)
    means = rng.normal(seed, Stream.DATA, i=np.arange(classes), j=_CLASSES, k=2, count=features)
    means *= separation / np.linalg.norm(means, axis=1, keepdims=True)
    (x_train, y_train), (x_test, y_test) = (
        _classified(seed, k, count, means, noise) for k, count in enumerate((samples, test_samples))
    )
    return Dataset("synthetic", x_train, y_train, x_test, y_test, classes)


def _classified(seed: int, k: int, count: int, means: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    classes, features = means.shape
    x = np.empty((count, features), dtype=np.float32)
    y = np.arange(count) % classes
    step = max(1, _MAX_ELEMENTS_PER_CHUNK // features)
    for first in range(0, count, step):
        some = np.arange(first, min(first + step, count))
        x[some] = means[y[some]] + noise * rng.normal(seed, Stream.DATA, i=some, j=_CLASSES, k=k, count=features)
    return x, y


def ridge(
    seed: int,
    clients: int,
    samples: int = 100,
    dimension: int = 20,
    heterogeneity: float = 1.0,
    noise: float = 0.1,
    l2: float = 0.1,
    test_samples: int = 1000,
) -> Federation:
    """Draw a linear regression with different clients, and compute the exact minimizer of its objective.

    y = xᵀw_i + noise · z,  w_i = w_0 + heterogeneity · u_i,  x of client i scaled by s_i per feature,

    F(θ) = (1/m) Σ_i [ (1/2n_i) ‖X_iθ − y_i‖² + (l2/2) ‖θ‖² ]

    w_0 and u_i are normal with mean square norm 1; s_i is uniform in 1 ± h/(2 + 2h), h the heterogeneity. The test
    samples follow w_0, unscaled. A client's samples do not depend on the number of clients. The model has no bias.

    Args:
        seed: The seed of the draws.
        clients: The number of clients, m.
        samples: Training samples of each client, n_i.
        dimension: Numbers per sample.
        heterogeneity: How different the clients are; 0: all alike.
        noise: The standard deviation of the targets.
        l2: The weight of the penalty.
        test_samples: The number of test samples.

    Returns:
        The data of the clients: x (clients · samples, dimension), optimum (dimension,), float64.

    Raises:
        InputError: A number is out of range, or the minimizer is not unique.

    >>> federation = ridge(seed=0, clients=3, samples=5, dimension=2)
    >>> federation.clients, federation.optimum.shape
    (3, (2,))
    """
    clients, samples = whole("clients.count", clients), whole("data.samples", samples)
    dimension, test_samples = whole("data.dimension", dimension), whole("data.test_samples", test_samples)
    heterogeneity = number("data.heterogeneity", heterogeneity, zero=True)
    noise, l2 = number("data.noise", noise, zero=True), number("data.l2", l2, zero=True)
    if l2 == 0 and clients * samples < dimension:
        raise InputError("data.l2", 0, f"above 0 where all clients have fewer samples than {dimension} dimensions")
    common = _normals(seed, 0, _COMMON, 0, dimension) / np.sqrt(dimension)  # w_0
    x = np.empty((clients, samples, dimension), dtype=np.float32)
    y = np.empty((clients, samples), dtype=np.float32)
    for client in range(clients):
        own = common + heterogeneity * _normals(seed, client, _CLIENTS, 2, dimension) / np.sqrt(dimension)
        spread = 2 * rng.uniform(seed, Stream.DATA, i=client, j=_CLIENTS, k=3, count=dimension) - 1
        scales = 1 + 0.5 * heterogeneity / (1 + heterogeneity) * spread
        x[client] = _normals(seed, client, _CLIENTS, 0, samples, dimension) * scales
        y[client] = x[client].astype(np.float64) @ own + noise * _normals(seed, client, _CLIENTS, 1, samples)
    x_test = _normals(seed, 0, _COMMON, 1, test_samples, dimension).astype(np.float32)
    y_test = x_test.astype(np.float64) @ common + noise * _normals(seed, 0, _COMMON, 2, test_samples)
    dataset = Dataset.from_arrays(x.reshape(-1, dimension), y.reshape(-1), x_test, y_test, name="ridge")
    shards = tuple(np.arange(clients * samples).reshape(clients, samples))
    return Federation(dataset, shards, {"l2": l2}, _minimizer(x, y, l2))


def _normals(seed: int, i: int, j: int, k: int, *shape: int) -> np.ndarray:
    return np.asarray(rng.normal(seed, Stream.DATA, i=i, j=j, k=k, count=int(np.prod(shape)))).reshape(shape)


def _minimizer(x: np.ndarray, y: np.ndarray, l2: float) -> np.ndarray:
    """θ* with ((1/m) Σ_i X_iᵀX_i/n_i + l2 I) θ* = (1/m) Σ_i X_iᵀy_i/n_i, in float64. Shapes: (m, n, p), (m, n)."""
    clients, samples, dimension = x.shape
    hessian, linear = l2 * np.eye(dimension), np.zeros(dimension)
    for x_i, y_i in zip(x.astype(np.float64), y.astype(np.float64), strict=True):
        hessian += x_i.T @ x_i / (clients * samples)
        linear += x_i.T @ y_i / (clients * samples)
    return np.linalg.solve(hessian, linear)
