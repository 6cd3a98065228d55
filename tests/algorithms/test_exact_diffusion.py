"""Exact diffusion: exact where everything fires, with the step sizes of gradient descent whatever the graph."""

import numpy as np
import pytest
from tests.algorithms.instance import RING, error, models, worst
from tests.algorithms.loops import corrected, fired, gradient, mixed, played, random_events, weights
from tests.algorithms.test_d2 import ended_on_a_bipartite_graph

from dspodfl.algorithms import Algorithm, bytes_sent, make
from dspodfl.algorithms.corrections import Extra, Together

CONTRACT = {"moves_the_mean": True}  # V h does not sum to 0, where clients draw; its own schedule has V = I
SCHEDULE, RULE = make(Algorithm("a", schedule="exact_diffusion", rule="exact_diffusion"))


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.9 / 2.618])
def test_it_ends_at_the_solution_for_steps_up_to_those_of_gradient_descent(alpha):
    assert Together(0.5) == RULE
    assert worst(RULE, schedule=SCHEDULE, alpha=alpha, iterations=3000, below=1e-11) < 1e-11


def test_extra_does_not_take_steps_as_large():
    assert not error(models(Extra(), schedule=SCHEDULE, alpha=1.9 / 2.618, iterations=1000)) < 1e3


def test_a_graph_with_very_negative_eigenvalues_does_not_matter():
    assert error(*ended_on_a_bipartite_graph(RULE)) < 1e-11


def published(iterations, alpha=0.05):
    """ψ = Θ − αG, φ = ψ + Θ − ψ₋, Θ ← ½(I + W)φ: adapt, correct, combine, as its authors write it."""
    links, r = fired(np.ones(RING.links)), weights()
    theta = {i: np.zeros(3) for i in range(RING.n)}
    last = {i: value.copy() for i, value in theta.items()}
    for _ in range(iterations):
        psi = {i: theta[i] - alpha * gradient(i, theta[i]) for i in theta}
        phi = {i: psi[i] + theta[i] - last[i] for i in theta}
        through = mixed(phi, links, r)
        theta, last = {i: 0.5 * (phi[i] + through[i]) for i in theta}, psi
    return np.array([theta[i] for i in range(RING.n)])


@pytest.mark.parametrize("iterations", [1, 2, 50])
def test_it_is_adapt_correct_combine(iterations):
    found = models(RULE, schedule=SCHEDULE, iterations=iterations).numpy()
    assert np.abs(found - published(iterations)).max() < 1e-12


def test_the_rule_is_a_loop_over_clients_and_links():
    v, v_hat = random_events()
    factor = {tuple(edge): 1.0 for edge in RING.edges.tolist()}
    assert np.abs(played(RULE, v, v_hat) - corrected(v, v_hat, factor=factor)).max() < 1e-10


def test_a_use_sends_one_model():
    assert bytes_sent(RULE, 10) == 4 * 10
