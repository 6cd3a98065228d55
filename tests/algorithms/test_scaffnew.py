"""Scaffnew: averages with a probability; exact, and where its wrong versions end at ϖ = 0.1."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.algorithms.instance import L2, N, X, error, models
from tests.algorithms.loops import COMPLETE, as_array, descended, gradient, played, rates, start, zeros

from dspodfl.algorithms import Algorithm, bytes_sent, make
from dspodfl.algorithms.common_draw import fires, server
from dspodfl.algorithms.corrections import Together
from dspodfl.network import Static, WeightedTopology

CONTRACT = {"moves_the_mean": True}  # V h does not sum to 0, where clients draw; its own schedule has V = I
SMOOTHNESS = 2.618


def made(probability):
    return make(Algorithm("a", schedule="scaffnew", rule="scaffnew", settings={"probability": probability}))


def ended(rule, alpha=0.1, iterations=2000, seed=0, probability=0.1):
    return models(rule, schedule=server(probability), graph=COMPLETE, alpha=alpha, iterations=iterations, seed=seed)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 1 / SMOOTHNESS])
def test_it_ends_at_the_solution(alpha):
    schedule, rule = made(0.1)
    assert (schedule, rule) == (server(0.1), Together(1.0, 0.1))
    assert error(ended(rule, alpha, iterations=2000 if alpha < 0.2 else 4000)) < 1e-13


def test_it_ends_there_for_several_seeds():
    assert max(error(ended(Together(1.0, 0.1), seed=seed)) for seed in (1, 2, 3)) < 1e-13


@dataclass(frozen=True)
class WithoutCorrection(Together):
    def step(self, theta, h, at):
        return super().step(theta, h, at)[0], h


def test_without_the_correction_clients_drift_apart():
    assert error(ended(WithoutCorrection(1.0, 0.1), alpha=1 / SMOOTHNESS)) == pytest.approx(1.3, abs=0.1)


def test_a_correction_that_counts_in_full_diverges():
    assert not error(ended(Together(1.0, 1.0))) < 10


@dataclass(frozen=True)
class StartsAtOne(Together):
    """1ᵀh ≠ 0 before the first step: it stays so for ever."""

    def init(self, theta, links):
        return theta.new_ones(theta.shape)


def test_corrections_that_do_not_sum_to_zero_move_the_solution():
    """By H⁻¹ 1, where H is the Hessian of F."""
    off = np.linalg.norm(np.linalg.solve(X.T @ X / N + L2 * np.eye(3), np.ones(3)))
    assert error(ended(StartsAtOne(1.0, 0.1))) == pytest.approx(off, abs=1e-9)


def test_with_probability_one_it_is_gradient_descent():
    found = ended(Together(1.0, 1.0), iterations=50, probability=1.0)
    assert np.abs(found.numpy() - descended(np.zeros(3), 50, 0.1)).max() < 1e-12


def loop(exchange, probability):
    theta, h = start(), zeros()
    for k, alpha in enumerate(rates()):
        half = {i: theta[i] - alpha * (gradient(i, theta[i]) - h[i]) for i in range(N)}
        average = sum(half.values()) / N
        theta = {i: average.copy() for i in range(N)} if exchange[k] else half
        h = {i: h[i] + probability / alpha * (theta[i] - half[i]) for i in range(N)}
    return as_array(theta)


def test_the_rule_is_a_loop_over_clients():
    exchange = fires(np.arange(50), 0, 0.3)
    v, v_hat = np.ones((50, N), dtype=bool), np.repeat(exchange[:, None], COMPLETE.links, 1)
    found = played(Together(1.0, 0.3), v, v_hat, graph=COMPLETE, q=0.3)
    assert np.abs(found - loop(exchange, 0.3)).max() < 1e-10


def test_the_weights_of_the_schedule_are_those_of_the_instance():
    at = np.zeros(1, dtype=np.int64)
    metropolis = WeightedTopology(Static(COMPLETE), "metropolis").at(at)[1]
    assert np.allclose(server().weights(at, COMPLETE), metropolis, rtol=0, atol=1e-16)


def test_a_use_sends_one_model():
    assert bytes_sent(made(0.1)[1], 10) == 4 * 10
