"""E[P], E[PᵀP] and ρ̃ against draws, against each other's way of computing, and against what the appendix says of b."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networkx.generators.atlas import graph_atlas_g

from dspodfl.errors import InputError
from dspodfl.network import Graph, generate
from dspodfl.network import weights as mixing
from dspodfl.theory.formulas import spectral

DRAWS = 4000
SIGMAS = 6.0  # with some 5 000 comparisons a run, a true statement fails once in 10⁵ runs


def metropolis(graph):
    return mixing.weights("metropolis", graph.n, graph.edges, graph.degree)


@st.composite
def worlds(draw):
    n = draw(st.integers(2, 9))
    seed = draw(st.integers(0, 2**20))
    tree = nx.random_labeled_tree(n, seed=seed) if n > 2 else nx.path_graph(n)
    more = nx.gnp_random_graph(n, draw(st.floats(0, 1)), seed=seed)
    graph = Graph.from_networkx(nx.compose(tree, more))
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["metropolis", "lazy_metropolis", "max_degree"]))
    return graph, mixing.weights(kind, n, graph.edges, graph.degree), rng.uniform(0, 1, graph.links), rng


def close_to_draws(sample, expected):
    """|mean − expected| within SIGMAS standard errors, plus rounding. Shapes: (draws, ...), (...)."""
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    return np.all(np.abs(sample.mean(axis=0) - expected) <= SIGMAS * error + 1e-9)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(worlds())
def test_expected_mixing_is_what_draws_average_to(world):
    graph, r, b, rng = world
    p = mixing.matrix(graph.n, graph.edges, r * (rng.random((DRAWS, graph.links)) < b))
    theta = rng.standard_normal((graph.n, 3))
    assert close_to_draws(p, spectral.expected(graph, r, b))
    assert close_to_draws(p.transpose(0, 2, 1) @ p, spectral.expected_square(graph, r, b))
    left = ((p @ theta - theta.mean(axis=0)) ** 2).sum(axis=(1, 2))
    assert close_to_draws(left, spectral.mixed_consensus(graph, r, b, theta))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(worlds())
def test_rho_tilde_is_the_least_contraction_constant(world):
    graph, r, b, rng = world
    rho = spectral.rho_tilde(graph, r, b)
    theta = rng.standard_normal((graph.n, 3))
    spread = ((theta - theta.mean(axis=0)) ** 2).sum()
    assert spectral.mixed_consensus(graph, r, b, theta) <= rho * spread + 1e-12
    values, vectors = np.linalg.eigh(spectral.expected_square(graph, r, b) - 1 / graph.n)
    assert np.abs(values).max() == pytest.approx(rho, abs=1e-12)  # spectral radius = top eigenvalue: R̃ is PSD
    worst = vectors[:, -1:]
    assert spectral.mixed_consensus(graph, r, b, worst) == pytest.approx(rho * (worst**2).sum(), abs=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(worlds())
def test_expected_matrices_are_doubly_stochastic_and_the_excess_sums_to_zero(world):
    graph, r, b, _ = world
    one = np.ones(graph.n)
    square, mean = spectral.expected_square(graph, r, b), spectral.expected(graph, r, b)
    np.testing.assert_allclose(spectral.excess(graph, r, b) @ one, 0, atol=1e-12)
    np.testing.assert_allclose(square @ one, one, atol=1e-12)
    assert square.min() >= -1e-15 and mean.min() >= -1e-15


@settings(max_examples=40, deadline=None, derandomize=True)
@given(worlds())
def test_all_links_always_give_rho_r_squared_and_no_link_ever_gives_one(world):
    graph, r, _, _ = world
    whole = mixing.matrix(graph.n, graph.edges, r)
    radius = np.abs(np.linalg.eigvalsh(whole - 1 / graph.n)).max()
    assert spectral.rho_r(graph, r) == pytest.approx(radius, abs=1e-7)
    assert spectral.rho_tilde(graph, r, 1.0) == pytest.approx(radius**2, abs=1e-12)
    assert spectral.rho_tilde(graph, r, 0.0) == 1.0
    assert spectral.rho_tilde(graph, r, 1e-6) > 1 - 1e-4


@settings(max_examples=30, deadline=None, derandomize=True)
@given(worlds())
def test_the_rate_in_mean_square_is_that_of_the_kronecker_square_and_rho_tilde_bounds_it(world):
    graph, r, b, _ = world
    n, mean = graph.n, spectral.expected(graph, r, b)
    square = np.kron(mean, mean)
    for (i, j), weight in zip(graph.edges, b * (1 - b) * r**2, strict=True):
        step = np.eye(n)[i] - np.eye(n)[j]
        square += weight * np.kron(np.outer(step, step), np.outer(step, step))
    off = np.kron(np.eye(n) - 1 / n, np.eye(n) - 1 / n)
    exact = np.abs(np.linalg.eigvalsh(off @ square @ off)).max()
    found = spectral.mean_square_rate(graph, r, b)
    assert found == pytest.approx(exact, abs=1e-6)
    assert np.abs(np.linalg.eigvalsh(mean - 1 / n)).max() ** 2 - 1e-6 <= found
    assert found <= spectral.rho_tilde(graph, r, b) + 1e-9


@pytest.mark.parametrize("b", [0.1, 0.5, 1.0])
def test_on_the_complete_graph_rho_tilde_is_the_rate_in_mean_square(b):
    graph = generate("complete", 6, seed=0)
    r = metropolis(graph)
    assert spectral.mean_square_rate(graph, r, b) == pytest.approx(spectral.rho_tilde(graph, r, b), abs=1e-12)


def test_more_links_are_not_always_better():
    graph = Graph.from_networkx(nx.complete_bipartite_graph(5, 5))
    r = metropolis(graph)
    assert spectral.rho_tilde(graph, r, 1.0) == pytest.approx(4 / 9)
    assert spectral.rho_tilde(graph, r, 0.8) == pytest.approx(0.2)


def test_of_all_connected_graphs_up_to_six_clients_only_k33_gains_from_fewer_exchanges():
    gaining = []
    for found in graph_atlas_g():
        if not 2 <= len(found) <= 6 or not nx.is_connected(found):
            continue
        graph = Graph.from_networkx(nx.convert_node_labels_to_integers(found))
        r = metropolis(graph)
        whole = spectral.rho_tilde(graph, r, 1.0)
        fewer = [np.where(np.arange(graph.links) == link, 0.75, 1.0) for link in range(graph.links)]
        if min(spectral.rho_tilde(graph, r, b) for b in (0.5, 0.7, 0.8, 0.86, 0.9, 0.97, *fewer)) < whole - 1e-9:
            gaining.append(found)
    assert len(gaining) == 1 and nx.is_isomorphic(gaining[0], nx.complete_bipartite_graph(3, 3))
    best = Graph.from_networkx(gaining[0])
    assert spectral.rho_tilde(best, metropolis(best), 1.0) == pytest.approx(0.25)
    assert spectral.rho_tilde(best, metropolis(best), 0.86) == pytest.approx(0.1744)


def test_being_doubly_stochastic_is_not_enough_for_contraction():
    pair = Graph.from_edges(2, [(0, 1)])
    assert spectral.rho_tilde(pair, np.ones(1), 1.0) == 1.0  # R swaps the two: doubly stochastic, mixes nothing
    assert spectral.rho_tilde(pair, np.ones(1), 0.5) == 1.0
    assert spectral.rho_tilde(pair, np.full(1, 0.5), 1.0) == 0.0  # and ρ_r = 0, which "0 < ρ_r" leaves out


def test_a_graph_that_is_disconnected_for_the_moment_does_not_contract():
    graph = Graph.from_edges(4, [(0, 1), (2, 3)])
    assert spectral.rho_tilde(graph, np.full(2, 0.5), 1.0) == pytest.approx(1.0)
    assert spectral.rho_tilde(graph, np.full(2, 0.5), 1.0, "lanczos") == 1.0


@pytest.mark.parametrize(
    ("kind", "options"), [("geometric", {"radius": 0.15}), ("regular", {"degree": 4}), ("ring", {})]
)
def test_dense_lanczos_and_inverse_agree(kind, options):
    graph = generate(kind, 400, seed=3, **options)
    r, b = metropolis(graph), np.random.default_rng(0).uniform(0.1, 1, graph.links)
    dense = spectral.rho_tilde(graph, r, b, "dense")
    assert spectral.rho_tilde(graph, r, b, "lanczos") == pytest.approx(dense, abs=1e-9)
    assert spectral.rho_tilde(graph, r, b, "inverse") == pytest.approx(dense, abs=1e-9)


def test_lanczos_meets_the_hypercube_of_131072_clients():
    size, b, r = 17, 0.7, 1 / 18
    low = np.arange(2**size)
    ends = [np.stack([low[low & bit == 0], low[low & bit == 0] | bit], axis=1) for bit in 2 ** np.arange(size)]
    edges = np.concatenate(ends)
    graph = Graph(2**size, edges[np.lexsort(edges.T[::-1])])
    k = np.arange(1, size + 1)  # the Laplacian's eigenvalues are 2k
    exact = ((1 - 2 * k * r * b) ** 2 + 2 * b * (1 - b) * r**2 * 2 * k).max()
    assert spectral.rho_tilde(graph, np.full(graph.links, r), b) == pytest.approx(exact, abs=1e-10)


def test_inverse_meets_the_ring_of_100_000_clients():
    n, b = 100_000, 0.5
    graph = Graph.from_edges(n, np.stack([np.arange(n), (np.arange(n) + 1) % n], axis=1).tolist())
    wave = 4 * np.sin(np.pi / n) ** 2
    exact = 2 * b / 3 * wave - (b / 3 * wave) ** 2 - 2 * b * (1 - b) / 9 * wave
    assert 1 - spectral.rho_tilde(graph, np.full(n, 1 / 3), b, "inverse") == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(("r", "b"), [([0.5], 0.5), ([0.5, 0.6], 0.5), ([0.3, 0.3], 1.5), ([-0.1, 0.3], 0.5)])
def test_weights_that_cannot_be_are_refused(r, b):
    with pytest.raises(InputError):
        spectral.rho_tilde(Graph.from_edges(3, [(0, 1), (1, 2)]), np.array(r), b)
