"""Pairwise gossip: one link an iteration, both ends equal afterwards, and the bound on the distance from consensus."""

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, MODEL, RING, D, N
from tests.algorithms.listed import still
from tests.worlds import advance, make_run, scattered

from dspodfl.algorithms import RULES, Constant, named
from dspodfl.algorithms.clocks import PairwiseGossip, shares, wakes
from dspodfl.engine import plain_loop
from dspodfl.network import Graph, Part
from dspodfl.network.laws import FixedValues
from dspodfl.network.rates import Rates

LONG = 20_000
SIGMAS = 5


def events(schedule, iterations, *, graph=RING, d=1.0, seed=0):
    rates = Rates(graph, seed, FixedValues(d), FixedValues(1.0))
    return schedule(np.arange(iterations), Part.whole(graph, seed), rates)


def neighbours(graph, i):
    return sorted({b for a, b in graph.edges.tolist() if a == i} | {a for a, b in graph.edges.tolist() if b == i})


def test_one_link_fires_at_an_iteration_and_its_two_ends_step():
    found = events(PairwiseGossip(), 500)
    assert (found.v_hat.sum(axis=1) == 1).all() and (found.v.sum(axis=1) == 2).all()
    for v, v_hat in zip(found.v, found.v_hat, strict=True):
        assert np.array_equal(np.flatnonzero(v), RING.edges[v_hat.argmax()])


def test_alone_the_client_that_wakes_steps_or_each_end_by_its_rate():
    both, alone = events(PairwiseGossip(), LONG), events(PairwiseGossip(steps="waker"), LONG)
    assert np.array_equal(both.v_hat, alone.v_hat) and (alone.v.sum(axis=1) == 1).all() and (both.v >= alone.v).all()
    drawn = events(PairwiseGossip(steps="drawn"), LONG, d=D.tolist())
    assert np.array_equal(drawn.v_hat, both.v_hat) and (drawn.v <= both.v).all()
    share, count = drawn.v.sum(axis=0) / both.v.sum(axis=0), both.v.sum(axis=0)
    assert (abs(share - D) <= SIGMAS * np.sqrt(D * (1 - D) / count)).all()


@pytest.mark.parametrize(("clocks", "rate"), [("uniform", np.ones(N)), ("rates", D)])
def test_links_fire_as_often_as_clocks_and_neighbours_say(clocks, rate):
    found = events(PairwiseGossip(clocks), LONG, d=D.tolist()).v_hat.mean(axis=0)
    wake = rate / rate.sum()
    q = np.array([wake[i] / RING.degree[i] + wake[j] / RING.degree[j] for i, j in RING.edges])
    assert (abs(found - q) <= SIGMAS * np.sqrt(q * (1 - q) / LONG)).all()


def test_clocks_follow_rates_that_change():
    rates = Rates(RING, 0, FixedValues(D.tolist()), FixedValues(1.0), growth=lambda k: 1.0 / (1.0 + np.asarray(k)))
    k = np.array([0, 10**6])
    share = shares(k, rates, "rates")
    assert np.allclose(share, [D / D.sum(), np.full(N, 1 / N)], atol=1e-5)
    assert [int(i) for i in wakes(k, 3, share)[0]] == [
        int(wakes(k[n : n + 1], 3, share[n : n + 1])[0][0]) for n in (0, 1)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_both_ends_are_equal_to_the_bit_afterwards(seed):
    model, data = still(20)
    run = make_run("pairwise_gossip", seed, data=data, graph=RING)
    looks = advance([run], model, iterations=40, every=1, rule="adapt_then_combine")[0]
    fired = events(PairwiseGossip(), 40, seed=seed).v_hat.argmax(axis=1)
    assert len(looks) == 41
    for look in looks[1:]:
        i, j = RING.edges[fired[look.iteration - 1]]
        assert torch.equal(look.theta[i], look.theta[j])


def test_both_ends_are_equal_after_a_step_and_an_average_too():
    run = make_run("pairwise_gossip", 1, data=DATA, graph=RING, learning_rate=Constant(0.05))
    looks = advance([run], MODEL, iterations=40, every=1, rule="adapt_then_combine")[0]
    fired = events(PairwiseGossip(), 40, seed=1).v_hat.argmax(axis=1)
    for look in looks[1:]:
        i, j = RING.edges[fired[look.iteration - 1]]
        assert torch.equal(look.theta[i], look.theta[j])


def expected_matrix(graph):
    """E[W] = I − (1/2n)(D − Q − Qᵀ): Q_ij is the probability that i picks j, D the row sums of Q + Qᵀ."""
    q = np.zeros((graph.n, graph.n))
    for i in range(graph.n):
        for j in neighbours(graph, i):
            q[i, j] = 1 / graph.degree[i]
    both = q + q.T
    return np.eye(graph.n) - (np.diag(both.sum(axis=1)) - both) / (2 * graph.n)


def second_eigenvector():
    value, vectors = np.linalg.eigh(expected_matrix(RING))
    return value[-2], vectors[:, -2]


def squared_distance(weight, seeds=300, iterations=20):
    """The mean of ‖X(20) − X̄‖² from the second eigenvector, over seeds, by a plain loop over the events."""
    _, start = second_eigenvector()
    found = []
    for seed in range(seeds):
        x = start.copy()
        for e in events(PairwiseGossip(), iterations, seed=seed).v_hat.argmax(axis=1):
            i, j = RING.edges[e]
            gap = weight(e) * (x[j] - x[i])
            x[i], x[j] = x[i] + gap, x[j] - gap
        found.append(((x - x.mean()) ** 2).sum())
    return float(np.mean(found))


def test_the_distance_from_consensus_falls_as_the_second_eigenvalue_says():
    value, _ = second_eigenvector()
    assert value**20 == pytest.approx(0.483, abs=5e-4)
    found = squared_distance(lambda e: 0.5)
    assert found < value**20 and found == pytest.approx(0.313, abs=0.03)


def test_metropolis_weights_in_place_of_one_half_are_slower_than_pairwise_gossip():
    """The wrong version: the weights of the graph."""
    metropolis = make_run("dgd", 0, data=DATA, graph=RING).topology.at(np.arange(1))[1][0]
    assert squared_distance(lambda e: metropolis[e]) > 1.15 * squared_distance(lambda e: 0.5)
    run = make_run("pairwise_gossip", 0, data=DATA, graph=RING)
    assert (run.topology.at(np.arange(3))[1] == 0.5).all()


@pytest.mark.parametrize("order", RULES)
@pytest.mark.parametrize("steps", ["both", "waker", "drawn"])
def test_pairwise_gossip_is_its_plain_loop(order, steps):
    schedule = named("pairwise_gossip", steps=steps)
    run = make_run("dspodfl", 0, data=DATA, graph=RING, schedule=schedule, learning_rate=Constant(0.05))
    start = scattered(MODEL, N, 0, torch.float64)
    *_, last = plain_loop(run, MODEL, start, iterations=50, batch_size=4, order=order)
    (found,) = (looks[-1].theta for looks in advance([run], MODEL, iterations=50, rule=order, initial=[start]))
    assert (found - last).abs().max() < 1e-10


def test_a_client_without_neighbours_wakes_and_steps_alone():
    graph = Graph.from_edges(3, [(0, 1)])
    found = events(PairwiseGossip(), 300, graph=graph)
    lonely = found.v[:, 2]
    assert lonely.any() and not found.v_hat[lonely].any() and found.v_hat[~lonely].all()
    assert not events(PairwiseGossip(), 5, graph=Graph.from_edges(2, [])).v_hat.any()
