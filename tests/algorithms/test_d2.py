"""D²: exact where everything fires and λ_min(W) > −1/3; other weights are refused."""

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, L2, MODEL, RING, error, models, worst
from tests.algorithms.loops import corrected, fired, gradient, mixed, played, random_events, weights
from tests.worlds import final, make_run

from dspodfl import InputError
from dspodfl.algorithms import Algorithm, Constant, bytes_sent, make
from dspodfl.algorithms.methods.d2 import D2, smallest_eigenvalue
from dspodfl.network import Graph, Static, WeightedTopology, generate
from dspodfl.problem.data.dataset import Dataset, Federation

CONTRACT = {"moves_the_mean": True}  # V h does not sum to 0, where clients draw; its own schedule has V = I
BIPARTITE = Graph.from_edges(10, [(i, j) for i in range(5) for j in range(5, 10)])


def ended_on_a_bipartite_graph(rule, iterations=3000):
    """The models on K₅,₅, whose λ_min(W) is −2/3, and the solution there."""
    i = np.arange(10)
    x = np.stack([np.cos(i), np.sin(2 * i), np.cos(3 * i)], axis=1).astype(np.float32)
    y = (i - 3.5).astype(np.float32)
    data = Federation(Dataset.from_arrays(x, y, x, y), tuple(i[:, None]), {})
    run = make_run("dgd", data=data, graph=BIPARTITE, learning_rate=Constant(0.05))
    (found,) = final([run], MODEL, iterations=iterations, rule=rule, initial=[torch.zeros(10, 3)])
    x = x.astype(float)
    return found, torch.from_numpy(np.linalg.solve(x.T @ x + 10 * L2 * np.eye(3), x.T @ y.astype(float)))


def test_it_ends_at_the_solution():
    schedule, rule = make(Algorithm("a", schedule="d2", rule="d2"))
    assert rule == D2()
    assert worst(rule, schedule=schedule, iterations=2000, below=1e-11) < 1e-11


def test_on_a_bipartite_graph_it_diverges():
    assert not error(*ended_on_a_bipartite_graph(D2(), 1000)) < 1e3


def checked(graph, weights="metropolis"):
    run = make_run(data=DATA, graph=RING)
    D2().check(WeightedTopology(Static(graph), weights), run.rates)


def test_weights_for_which_it_diverges_are_refused_and_the_message_says_what_to_do():
    with pytest.raises(InputError, match=r"algorithms.*d2.*λ_min\(W\) > −1/3 \(here -0\.667\).*lazy_metropolis"):
        checked(BIPARTITE)
    checked(BIPARTITE, "lazy_metropolis")
    checked(RING)


def test_a_ring_of_even_length_is_at_the_bound_and_refused():
    with pytest.raises(InputError, match=r"here -0\.333"):
        checked(generate("ring", 8, 0))
    checked(generate("ring", 7, 0))


@pytest.mark.parametrize("n", [1, 5, 30, 600])
def test_the_smallest_eigenvalue_is_that_of_the_matrix(n):
    graph = generate("erdos_renyi", n, 0, p=min(1.0, 6 / n)) if n > 1 else Graph.from_edges(1, [])
    w = np.eye(n)
    for (i, j), r in weights(graph).items():
        w[i, j] = w[j, i] = r
        w[i, i], w[j, j] = w[i, i] - r, w[j, j] - r
    found = smallest_eigenvalue(WeightedTopology(Static(graph), "metropolis"))
    assert found == pytest.approx(np.linalg.eigvalsh(w)[0], abs=1e-9)


def published(iterations, alpha=0.05):
    """Θ ← W(2Θ − Θ₋ − α(G − G₋)), Θ₁ = W(Θ₀ − αG₀), as its authors write it."""
    links, r = fired(np.ones(RING.links)), weights()
    theta = {i: np.zeros(3) for i in range(RING.n)}
    last = {i: theta[i] + alpha * np.zeros(3) for i in theta}
    before = {i: np.zeros(3) for i in theta}
    for _ in range(iterations):
        new = {i: gradient(i, theta[i]) for i in theta}
        half = {i: 2 * theta[i] - last[i] - alpha * (new[i] - before[i]) for i in theta}
        last, before, theta = theta, new, mixed(half, links, r)
    return np.array([theta[i] for i in range(RING.n)])


@pytest.mark.parametrize("iterations", [1, 2, 50])
def test_it_is_the_published_form(iterations):
    assert np.abs(models(D2(), schedule="dgd", iterations=iterations).numpy() - published(iterations)).max() < 1e-12


def test_the_rule_is_a_loop_over_clients_and_links():
    v, v_hat = random_events()
    factor = {tuple(edge): 1.0 for edge in RING.edges.tolist()}
    assert np.abs(played(D2(), v, v_hat) - corrected(v, v_hat, factor=factor, s=1.0)).max() < 1e-10


def test_a_use_sends_one_model():
    assert bytes_sent(D2(), 10) == 4 * 10
