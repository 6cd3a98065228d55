"""Each lemma against the exact expectation over every event of one iteration, on quadratic losses."""

import numpy as np
import pytest
from tests.theory.quadratics import random_world

from dspodfl.theory.formulas import convex, lemmas, pl

SEEDS = range(25)


def start(seed, world):
    rng = np.random.default_rng([seed, 1])
    scale = 10 ** rng.uniform(-2, 1, 2)
    return world.optimum + scale[0] * rng.standard_normal(2) + scale[1] * rng.standard_normal((3, 2))


def measured(seed):
    world = random_world(seed)
    fraction = np.random.default_rng([seed, 2]).uniform(0.01, 1)
    c = world.constants(1.0)
    alpha = float(fraction * 2 / (c.mu + c.beta))
    theta = start(seed, world)
    mean = theta.mean(axis=0)
    now = np.array([((mean - world.optimum) ** 2).sum(), ((theta - mean) ** 2).sum()])
    return world, c.at(alpha), theta, now, world.expectations(theta, alpha)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_lemma_bounds_the_exact_expectation(seed):
    world, c, theta, now, found = measured(seed)
    assert found["noise"] <= lemmas.noise_average(c) + 1e-12
    assert found["spread"] <= lemmas.noise_deviation(c) + 1e-12
    tight, printed = lemmas.gradient_deviation(c, *now), lemmas.printed_gradient_deviation(c, *now)
    assert found["deviation"] <= tight * (1 + 1e-12) <= printed * (1 + 1e-12)

    bound = convex.recursion(c).propagate(now, 1)[1]
    assert found["optimum"] <= bound[0] * (1 + 1e-12)  # lemma:optimization, α ≤ 2/(μ + β)
    assert found["consensus"] <= bound[1] * (1 + 1e-12)  # lemma:consensus

    excess = world.excess(theta.mean(axis=0))
    assert found["error"] <= pl.gradient_error(c, excess, now[1]) * (1 + 1e-12)
    assert found["half"] <= pl.half_gradient(c, excess, now[1]) * (1 + 1e-12)
    assert found["descent"] <= pl.descent(c, excess, now[1]) + 1e-12
    bound = pl.recursion(c).propagate(np.array([excess, now[1]]), 1)[1]
    assert found["excess"] <= bound[0] * (1 + 1e-12)
    assert found["consensus"] <= bound[1] * (1 + 1e-12)
    square = (world.gradients(theta) ** 2).sum(axis=1)
    distance = ((theta - world.optimum) ** 2).sum(axis=1)
    assert all(g <= lemmas.local_gradient(c, q) * (1 + 1e-12) for g, q in zip(square, distance, strict=True))


def test_the_average_model_lemma_needs_the_rate_limit_that_its_statement_omits():
    mu, beta = 0.5, 1.0
    alpha = 1.5 / beta  # above 2/(μ + β) = 1.33, below 1/μ
    shrink = (1 - alpha * beta) ** 2  # one client, H = diag(μ, β), error along the stiff axis
    printed = (1 + alpha * mu) * (1 - alpha * mu) ** 2
    assert shrink > printed
