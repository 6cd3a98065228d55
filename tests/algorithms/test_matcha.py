"""MATCHA: matchings that fire as a whole, and the numbers that its probabilities and its weight reach."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.instance import DATA, MODEL, RING, N
from tests.worlds import advance, graphs, make_run, scattered

from dspodfl.algorithms import Constant, Draws, named
from dspodfl.algorithms.matchings import (
    MAX_CLIENTS,
    Matcha,
    best_weight,
    laplacian,
    matchings,
    misra_gries,
    plan,
    probabilities,
)
from dspodfl.engine import plain_loop
from dspodfl.errors import InputError
from dspodfl.network import Graph, Part, generate
from dspodfl.network.laws import FixedValues
from dspodfl.network.rates import Rates

LONG = 20_000
SIGMAS = 5
HALF = plan(RING, 0.5)


def fired(iterations, seed=0, budget=0.5, graph=RING):
    rates = Rates(graph, seed, FixedValues(1.0), FixedValues(1.0))
    return Matcha(Draws("matcha"), budget)(np.arange(iterations), Part.whole(graph, seed), rates)


@given(graphs(), st.booleans())
def test_no_two_links_of_a_matching_share_a_client_and_there_are_few(graph, second):
    found = (misra_gries if second else matchings)(graph)
    assert len(found) == graph.links
    for number in set(found.tolist()):
        ends = graph.edges[found == number].ravel()
        assert len(set(ends.tolist())) == len(ends)
    assert len(set(found.tolist())) <= graph.degree.max(initial=0) + 1
    assert set(found.tolist()) == set(range(len(set(found.tolist()))))


@pytest.mark.parametrize("seed", range(4))
def test_dense_graphs_need_at_most_one_matching_more_than_the_largest_degree(seed):
    graph = generate("erdos_renyi", 30, seed, p=0.6)
    for found in (misra_gries(graph), matchings(graph)):
        assert int(found.max()) + 1 <= int(graph.degree.max()) + 1


def test_the_links_of_a_matching_fire_together_and_matchings_independently():
    found = fired(LONG)
    assert found.v.all()
    of, p = HALF.of, HALF.probability
    for number in range(len(p)):
        together = found.v_hat[:, of == number]
        assert (together == together[:, :1]).all()
    one = np.stack([found.v_hat[:, of == number][:, 0] for number in range(len(p))], axis=1)
    assert (abs(one.mean(axis=0) - p) <= SIGMAS * np.sqrt(p * (1 - p) / LONG)).all()
    correlation = np.corrcoef(one.T) - np.eye(len(p))
    assert abs(correlation).max() < SIGMAS / np.sqrt(LONG)


def test_the_budget_is_kept():
    for budget in (0.2, 0.5, 0.9):
        p = plan(RING, budget).probability
        assert (p >= 0).all() and (p <= 1).all()
        assert p.sum() <= budget * len(p) + 1e-12 and p.sum() == pytest.approx(budget * len(p), abs=1e-4)


def test_the_radius_is_that_of_the_entry_and_uniform_probabilities_are_worse():
    assert HALF.radius == pytest.approx(0.752, abs=5e-4)
    uniform = best_weight(RING, HALF.of, np.full(len(HALF.probability), 0.5))
    assert uniform[1] == pytest.approx(0.761, abs=5e-4)


def test_the_radius_is_that_of_drawn_matrices():
    found = fired(4000, seed=3).v_hat
    total = np.zeros((N, N))
    for v_hat in found:
        p = np.eye(N) - HALF.weight * laplacian(RING, v_hat.astype(float))
        total += p @ p
    drawn = np.linalg.eigvalsh(total / len(found) - 1 / N)[-1]
    assert drawn == pytest.approx(HALF.radius, abs=0.015)


def test_no_probabilities_within_the_budget_connect_the_graph_better():
    def connected(p):
        return np.linalg.eigvalsh(laplacian(RING, p[HALF.of]))[1]

    best = connected(HALF.probability)
    random = np.random.default_rng(0)
    for _ in range(2000):
        p = np.clip(HALF.probability + 0.1 * random.normal(size=len(HALF.probability)), 0, 1)
        p *= min(1.0, 0.5 * len(p) / p.sum())
        assert connected(p) <= best * (1 + 2e-5)


def test_no_other_weight_contracts_faster():
    mean = laplacian(RING, HALF.probability[HALF.of])
    rest = laplacian(RING, (HALF.probability * (1 - HALF.probability))[HALF.of])
    for a in np.linspace(0.01, 1.0, 200):
        matrix = np.eye(N) - 1 / N - 2 * a * mean + a**2 * (mean @ mean + 2 * rest)
        assert np.linalg.eigvalsh(matrix)[-1] >= HALF.radius - 1e-9


def test_with_the_whole_budget_it_is_gossip_with_the_best_constant_weight():
    whole = plan(RING, 1.0)
    assert (whole.probability == 1).all() and fired(50, budget=1.0).v_hat.all()
    value = np.linalg.eigvalsh(laplacian(RING, np.ones(RING.links)))
    assert whole.weight == pytest.approx(2 / (value[1] + value[-1]), abs=1e-6)  # the known best constant weight


def test_on_graphs_that_are_not_connected_each_part_contracts():
    graph = Graph.from_edges(5, [(0, 1), (1, 2), (3, 4)])
    found = plan(graph, 0.5)
    assert 0 < found.weight < 1 and found.radius < 1
    assert plan(Graph.from_edges(3, []), 0.5).weight == 0 and fired(3, graph=Graph.from_edges(3, [])).v.all()


def test_large_graphs_are_refused_by_name():
    with pytest.raises(InputError, match=f"algorithms = 'matcha': must be used on a graph of at most {MAX_CLIENTS}"):
        plan(Graph.from_edges(MAX_CLIENTS + 1, [(0, 1)]), 0.5)


def test_probabilities_are_the_same_each_time():
    assert np.array_equal(probabilities(RING, HALF.of, 0.5), HALF.probability)


def test_matcha_is_its_plain_loop():
    run = make_run("dspodfl", 0, data=DATA, graph=RING, schedule=named("matcha"), learning_rate=Constant(0.05))
    assert (run.topology.at(np.arange(2))[1] == HALF.weight).all()
    start = scattered(MODEL, N, 0, torch.float64)
    *_, last = plain_loop(run, MODEL, start, iterations=50, batch_size=4)
    (found,) = (looks[-1].theta for looks in advance([run], MODEL, iterations=50, initial=[start]))
    assert (found - last).abs().max() < 1e-10
