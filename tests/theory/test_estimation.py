"""Constants of real problems: exact, certified, measured."""

import math

import numpy as np
import pytest

from dspodfl.errors import InputError
from dspodfl.problem import optimum
from dspodfl.theory import estimation

L2 = 0.3


def make_shards(seed, labels=None, m=4, features=5):
    rng = np.random.default_rng(seed)
    shards = []
    for i in range(m):
        x = rng.normal(0.3 * i, rng.uniform(0.5, 1.5, features), (int(rng.integers(8, 30)), features))
        y = rng.normal(x @ rng.normal(0, 1, features), 0.5) if labels is None else rng.integers(0, labels, len(x))
        shards.append((x, y))
    return shards


def ridge_loss(shard, theta):
    x, y = shard
    return ((x @ theta - y) ** 2).mean() / 2 + L2 / 2 * theta @ theta


def ridge_gradient(shard, theta):
    x, y = shard
    return x.T @ (x @ theta - y) / len(x) + L2 * theta


def differentiate(f, at, step=1e-5):
    unit = np.eye(len(at)) * step
    return np.array([(f(at + e) - f(at - e)) / (2 * step) for e in unit])


@pytest.fixture(params=range(3))
def shards(request):
    return make_shards(request.param)


@pytest.fixture(params=[2, 3], scope="module")
def labelled(request):
    """Shards, number of classes, certified constants."""
    shards = make_shards(request.param, labels=request.param)
    return shards, request.param, estimation.logistic(shards, request.param, L2)


def test_the_ridge_minimum_is_stationary_and_least(shards):
    found = estimation.ridge(shards, L2)
    gradient = np.mean([ridge_gradient(s, found.theta) for s in shards], axis=0)
    assert np.linalg.norm(gradient) <= 1e-10 and found.theta_error <= 1e-10 and found.kind == "exact"
    numerical = np.mean([differentiate(lambda t, s=s: ridge_loss(s, t), found.theta) for s in shards], axis=0)
    assert np.linalg.norm(numerical) < 1e-7


def test_the_ridge_curvatures_are_those_of_numerical_differentiation(shards):
    found = estimation.ridge(shards, L2)
    at = np.random.default_rng(0).normal(size=5)
    hessians = [differentiate(lambda t, s=s: ridge_gradient(s, t), at) for s in shards]
    for i, h in enumerate(hessians):
        values = np.linalg.eigvalsh((h + h.T) / 2)
        assert (found.mu[i], found.beta[i]) == pytest.approx((values[0], values[-1]), rel=1e-6)
        assert found.zeta[i] == pytest.approx(np.linalg.norm(np.mean(hessians, axis=0) - h, 2), rel=1e-6)
        ratio = h @ np.linalg.inv(np.mean(hessians, axis=0))
        assert found.zeta_gradient[i] == pytest.approx(np.linalg.norm(ratio, 2), rel=1e-6)


def test_the_ridge_diversity_holds_everywhere_and_is_attained_far_out(shards):
    found = estimation.ridge(shards, L2)
    rng = np.random.default_rng(1)
    for reach in (0.01, 1.0, 100.0):
        for point in found.theta + reach * rng.normal(size=(200, 5)):
            each = np.stack([ridge_gradient(s, point) for s in shards])
            mean, far = each.mean(axis=0), np.linalg.norm(point - found.theta)
            assert (np.linalg.norm(mean - each, axis=1) <= found.delta + found.zeta * far + 1e-9).all()
            size = np.linalg.norm(mean)
            assert (np.linalg.norm(each, axis=1) <= found.delta + found.zeta_gradient * size + 1e-9).all()
    hessians = [s[0].T @ s[0] / len(s[0]) for s in shards]
    away = 1e8 * np.linalg.eigh(np.mean(hessians, axis=0) - hessians[0])[1]  # columns: directions
    each = np.stack([[ridge_gradient(s, u) for s in shards] for u in away.T])  # (directions, m, n)
    ratios = np.linalg.norm(each.mean(axis=1) - each[:, 0], axis=1) / 1e8
    assert ratios.max() == pytest.approx(found.zeta[0], rel=1e-6)


def test_the_ridge_noise_is_the_largest_in_its_ball(shards):
    centre, reach, batch = np.full(5, 0.2), 2.0, 4
    found = estimation.ridge_sigma(shards, batch, centre, reach)
    rng = np.random.default_rng(2)
    directions = rng.normal(size=(20_000, 5))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for i, (x, y) in enumerate(shards):
        points = centre + reach * directions
        left = points @ x.T - y  # (points, samples)
        g2 = (left**2 * (x**2).sum(axis=1)).mean(axis=1) - ((left @ x / len(x)) ** 2).sum(axis=1)
        brute = math.sqrt(g2.max() / batch)
        assert brute <= found[i] <= 1.1 * brute
        inside = math.sqrt(max(estimation._variance(x, y, centre + 0.3 * reach * u) for u in directions[:100]) / batch)
        assert inside <= found[i]


def test_the_ridge_noise_grows_without_bound_with_the_ball(shards):
    sigmas = [estimation.ridge_sigma(shards, 1, np.zeros(5), reach).max() for reach in (0.0, 1.0, 10.0, 100.0)]
    assert sigmas == sorted(sigmas) and sigmas[3] > 5 * sigmas[2]
    x, y = shards[0]
    assert estimation.ridge_sigma([(x, y)], 1, np.zeros(5), 0.0)[0] ** 2 == pytest.approx(
        estimation._variance(x, y, np.zeros(5)), rel=1e-12
    )


def test_the_ridge_noise_is_that_of_minibatches_drawn_with_replacement(shards):
    x, y = shards[0]
    rng, theta = np.random.default_rng(3), np.full(5, 0.2)
    rows = rng.integers(0, len(x), (40_000, 4))
    g = np.einsum("dbf,db->df", x[rows], x[rows] @ theta - y[rows]) / 4
    full = x.T @ (x @ theta - y) / len(x)
    measured = estimation.measure_sigma(g[None], full[None])
    assert measured == pytest.approx(estimation.ridge_sigma([(x, y)], 4, theta, 0.0)[0], rel=0.02)


def test_the_top_of_a_quadratic_on_a_ball_is_found_in_the_hard_case_too():
    assert estimation._rise(np.diag([1.0, 3.0]), np.zeros(2), 2.0) == pytest.approx(12.0, rel=1e-9)
    # q ⟂ the top eigenvector: u = (1/2, ±√(4 − 1/4)), value 3·(15/4) + 1/4 + 1
    assert estimation._rise(np.diag([1.0, 3.0]), np.array([1.0, 0.0]), 2.0) == pytest.approx(12.5, rel=1e-6)
    assert estimation._rise(np.zeros((2, 2)), np.array([3.0, 4.0]), 2.0) == pytest.approx(20.0, rel=1e-6)


def test_added_noise_has_the_sigma_of_all_its_coordinates():
    noise = np.random.default_rng(0).normal(0, 0.5, (200_000, 9))
    assert estimation.added_sigma(0.5, 9) == 1.5
    assert math.sqrt((noise**2).sum(axis=1).mean()) == pytest.approx(1.5, rel=0.01)


def test_the_logistic_gradient_is_that_of_numerical_differentiation(labelled):
    shards, classes, found = labelled
    at = found.theta + np.random.default_rng(0).normal(size=found.theta.size)
    numerical = differentiate(lambda t: optimum.logistic_loss(shards[0], t, classes, L2), at)
    assert np.allclose(optimum.logistic_gradient(shards[0], at, classes, L2), numerical, atol=1e-7)


def test_the_logistic_minimum_is_stationary_to_ten_digits(labelled):
    shards, classes, found = labelled
    gradient = np.mean([optimum.logistic_gradient(s, found.theta, classes, L2) for s in shards], axis=0)
    assert np.linalg.norm(gradient) <= 1e-10 and found.theta_error <= 1e-10 / L2
    other = estimation.logistic(shards, classes, L2, tolerance=1e-12)
    assert np.linalg.norm(other.theta - found.theta) <= found.theta_error + other.theta_error


def test_the_logistic_bounds_really_bound_at_random_points(labelled):
    shards, classes, found = labelled
    rng = np.random.default_rng(4)
    for reach in (0.1, 1.0, 10.0):
        for _ in range(20):
            point = found.theta + reach * rng.normal(size=found.theta.size)
            each = np.stack([optimum.logistic_gradient(s, point, classes, L2) for s in shards])
            mean, far = each.mean(axis=0), np.linalg.norm(point - found.theta)
            assert (np.linalg.norm(mean - each, axis=1) <= found.delta + found.zeta * far).all()
            assert (np.linalg.norm(each, axis=1) <= found.delta + found.zeta_gradient * np.linalg.norm(mean)).all()
            hessians = [
                differentiate(lambda t, s=s: optimum.logistic_gradient(s, t, classes, L2), point) for s in shards
            ]
            values = np.linalg.eigvalsh((np.array(hessians) + np.array(hessians).transpose(0, 2, 1)) / 2)
            assert (values[:, -1] <= found.beta + 1e-6).all()
            assert values[:, 0] == pytest.approx(found.mu, rel=1e-5)
            apart = [np.linalg.norm(np.mean(hessians, axis=0) - h, 2) for h in hessians]
            assert (np.array(apart) <= found.zeta + 1e-6).all()


def test_the_logistic_noise_bound_holds_at_random_points(labelled):
    shards, classes, found = labelled
    bounds = estimation.logistic_sigma(shards, batch=3)
    rng = np.random.default_rng(5)
    for (x, y), bound in zip(shards, bounds, strict=True):
        for point in 5 * rng.normal(size=(10, found.theta.size)):
            g = np.stack([optimum.logistic_gradient((x[[s]], y[[s]]), point, classes, L2) for s in range(len(x))])
            assert ((g - g.mean(axis=0)) ** 2).sum(axis=1).mean() / 3 <= bound**2


def test_a_two_class_problem_nearly_attains_the_smoothness_bound():
    shards = [(np.array([[1.0], [1.0]]), np.array([0, 1]))]
    found = estimation.logistic(shards, 2, L2)
    assert found.beta[0] == 0.5 + L2 and found.zeta[0] == 0.0 and np.allclose(found.theta, 0, atol=1e-9)
    points = np.array([[1e-4, -1e-4], [0.0, 0.0]])
    measured = estimation.measure_beta(lambda t: optimum.logistic_gradient(shards[0], t, 2, L2), points)
    assert measured == pytest.approx(found.beta[0], rel=1e-6)


def test_measured_estimates_never_exceed_the_exact_or_certified_constants(shards, labelled):
    rng = np.random.default_rng(6)
    some, classes, certified = labelled
    cases = [
        (estimation.ridge(shards, L2), [lambda t, s=s: ridge_gradient(s, t) for s in shards]),
        (certified, [lambda t, s=s: optimum.logistic_gradient(s, t, classes, L2) for s in some]),
    ]
    for found, gradients in cases:
        points = found.theta + rng.normal(0, 2, (30, found.theta.size))
        for i, gradient in enumerate(gradients):
            assert estimation.measure_beta(gradient, points) <= found.beta[i] * (1 + 1e-12)
            assert estimation.measure_mu(gradient, points) >= found.mu[i] * (1 - 1e-12)
        as_arrays = [np.stack([g(p) for p in points]) for g in gradients]
        delta = found.delta.max() + 1e-12
        assert estimation.measure_delta(gradients, points, found.zeta.max(), found.theta) <= delta
        assert estimation.measure_delta(as_arrays, points, found.zeta_gradient.max()) <= delta
        assert estimation.measure_delta(gradients, found.theta[None], 0.0, found.theta) == pytest.approx(
            found.delta.max(), rel=1e-6
        )


def test_a_negative_measured_mu_refutes_convexity_and_one_point_shows_nothing():
    points = np.array([[-0.1], [0.1], [0.1]])
    assert estimation.measure_mu(lambda t: -t, points) == -1.0
    assert estimation.measure_beta(lambda t: -t, points) == pytest.approx(1.0)
    assert estimation.measure_beta(lambda t: t, points[:1]) == 0.0
    assert estimation.measure_mu(lambda t: t, points[:1]) == math.inf


def test_constants_take_the_worst_client_and_the_familys_zeta(shards):
    found = estimation.ridge(shards, L2)
    convex = found.constants(0.5, 0.1, d_min=0.7, alpha=0.01)
    assert (convex.m, convex.mu, convex.beta) == (4, found.mu.min(), found.beta.max())
    assert (convex.zeta, convex.delta, convex.sigma) == (found.zeta.max(), found.delta.max(), 0.1)
    assert found.constants(0.5, 0.1, family="nonconvex").zeta == found.zeta_gradient.max() >= 1


def test_unusable_input_is_refused_by_name():
    x, y = np.ones((3, 2)), np.zeros(3, int)
    with pytest.raises(InputError, match="shards"):
        estimation.ridge([], L2)
    with pytest.raises(InputError, match="shard"):
        estimation.ridge([(x, y[:2])], L2)
    with pytest.raises(InputError, match="l2"):
        estimation.logistic([(x, y)], 2, 0.0)
    with pytest.raises(InputError, match="tolerance"):
        estimation.logistic([(x, y)], 2, L2, tolerance=0.0)
    with pytest.raises(InputError, match="gradient"):
        estimation.measure_beta(np.zeros((2, 2)), np.zeros((3, 2)))
