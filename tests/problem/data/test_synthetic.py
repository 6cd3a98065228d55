"""Made-up data: the optimum is the optimum, and nothing depends on what else there is."""

import numpy as np
import pytest

from dspodfl.errors import InputError
from dspodfl.problem.data import ridge, synthetic


def gradient(federation, theta, l2):
    x, y = federation.dataset.x_train.astype(np.float64), federation.dataset.y_train.astype(np.float64)
    parts = [x[s].T @ (x[s] @ theta - y[s]) / len(s) + l2 * theta for s in federation.shards]
    return np.mean(parts, axis=0)


@pytest.mark.parametrize(("l2", "heterogeneity"), [(0.1, 1.0), (0.0, 0.0), (1e-6, 10.0)])
def test_the_gradient_vanishes_at_the_optimum_of_ridge_regression(l2, heterogeneity):
    federation = ridge(3, clients=7, l2=l2, heterogeneity=heterogeneity)
    assert federation.optimum.dtype == np.float64
    assert federation.optimum.shape == (20,)
    assert np.abs(gradient(federation, federation.optimum, l2)).max() < 1e-13 * (1 + heterogeneity)
    assert np.abs(gradient(federation, np.zeros(20), l2)).max() > 1e-3


def test_a_client_of_ridge_regression_has_the_same_samples_among_few_and_many():
    few, many = ridge(1, clients=2, samples=5), ridge(1, clients=9, samples=5)
    for client in range(2):
        a, b = few.shards[client], many.shards[client]
        assert np.array_equal(few.dataset.x_train[a], many.dataset.x_train[b])
        assert np.array_equal(few.dataset.y_train[a], many.dataset.y_train[b])
    assert np.array_equal(few.dataset.x_test, many.dataset.x_test)
    assert np.array_equal(few.dataset.y_test, many.dataset.y_test)


def test_clients_without_heterogeneity_share_one_model():
    federation = ridge(0, clients=4, heterogeneity=0.0, noise=0.0, l2=0.0)
    data = federation.dataset
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert np.allclose(x @ federation.optimum, y, atol=1e-5)
    spread = [data.x_train[shard].std() for shard in federation.shards]
    assert np.allclose(spread, 1, atol=0.1)


def test_heterogeneity_sets_the_clients_apart():
    federation = ridge(0, clients=30, samples=200, heterogeneity=2.0, noise=0.0)
    data = federation.dataset
    own = np.stack([np.linalg.lstsq(data.x_train[s], data.y_train[s], rcond=None)[0] for s in federation.shards])
    assert (own - own.mean(axis=0)).std() == pytest.approx(2 / np.sqrt(20), rel=0.1)


def test_ridge_regression_is_decided_by_its_seed():
    one, same, other = (ridge(seed, clients=3).dataset.x_train for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_shards_of_ridge_regression_are_each_clients_own_rows():
    federation = ridge(0, clients=3, samples=4)
    assert [shard.tolist() for shard in federation.shards] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert federation.dataset.classes is None
    assert federation.report == {"l2": 0.1}


def test_gaussian_classes_are_balanced_and_apart_by_the_separation():
    data = synthetic(0, samples=5000, classes=5, separation=3.0)
    assert data.input_shape == (32,)
    assert np.bincount(data.y_train).tolist() == [1000] * 5
    means = np.stack([data.x_train[data.y_train == label].mean(axis=0) for label in range(5)])
    assert np.allclose(np.linalg.norm(means, axis=1), 3, atol=0.2)
    assert (data.x_train - means[data.y_train]).std() == pytest.approx(1, rel=0.02)
    nearest = ((data.x_test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == data.y_test).mean() > 0.9


def test_gaussian_classes_are_decided_by_their_seed_and_not_by_how_many_samples_there_are():
    one, same, other = (synthetic(seed, samples=50).x_train for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert np.array_equal(synthetic(1, samples=200_000, features=3).x_train[:50], synthetic(1, 50, features=3).x_train)
    assert not np.array_equal(synthetic(1, samples=50, test_samples=50).x_test, one)


@pytest.mark.parametrize(
    ("make", "arguments", "field"),
    [
        (synthetic, {"samples": 0}, "data.samples"),
        (synthetic, {"test_samples": 1.0}, "data.test_samples"),
        (synthetic, {"features": -1}, "data.features"),
        (synthetic, {"classes": 0}, "data.classes"),
        (synthetic, {"separation": float("inf")}, "data.separation"),
        (synthetic, {"noise": -0.1}, "data.noise"),
        (ridge, {"clients": 0}, "clients.count"),
        (ridge, {"clients": 2, "dimension": 0}, "data.dimension"),
        (ridge, {"clients": 2, "heterogeneity": -1}, "data.heterogeneity"),
        (ridge, {"clients": 2, "l2": -1}, "data.l2"),
        (ridge, {"clients": 2, "samples": 5, "l2": 0}, "data.l2"),
    ],
)
def test_an_impossible_request_is_refused_by_the_name_of_its_field(make, arguments, field):
    with pytest.raises(InputError) as caught:
        make(0, **arguments)
    assert caught.value.field == field
