"""SWIFT: only the client that wakes changes; weights that keep the expected matrix symmetric."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, EDGES, L2, MODEL, RING, D, N, X, Y, minimizer
from tests.algorithms.listed import random_events, states
from tests.worlds import advance, make_run, scattered

from dspodfl.algorithms import Constant, bytes_sent, named
from dspodfl.algorithms.clocks import Swift
from dspodfl.algorithms.methods.swift import Pull
from dspodfl.network import Part, Static, WeightedTopology
from dspodfl.network.laws import FixedValues, Uniform

CONTRACT = {"moves_the_mean": True}
RULE = Pull()
SHARE = D / D.sum()
DEGREE = {i: sum(i in edge for edge in EDGES) for i in range(N)}


def make(schedule=None, alpha=0.05, d=D, **how):
    schedule = schedule or named("swift")
    how = {"sgd": FixedValues(np.asarray(d).tolist()), "link": FixedValues(1.0), "seed": 0} | how
    return make_run("dspodfl", data=DATA, graph=RING, schedule=schedule, learning_rate=Constant(alpha), **how)


def events(run, iterations):
    return run.schedule(np.arange(iterations), Part.whole(run.rates.graph, run.seed), run.rates)


def r(i, j):
    return 1 / (1 + max(DEGREE[i], DEGREE[j]))


def gradient(i, theta):
    return X[i] * (X[i] @ theta - Y[i]) + L2 * theta


def test_one_client_wakes_and_the_links_to_all_of_its_neighbours_fire():
    found = events(make(), 400)
    assert (found.v.sum(axis=1) == 1).all()
    for v, v_hat in zip(found.v, found.v_hat, strict=True):
        assert v_hat.tolist() == [int(v.argmax()) in edge for edge in EDGES]
    assert found.v_hat.sum() == RING.degree[found.v.argmax(axis=1)].sum()


def test_clients_wake_as_often_as_their_clocks_say():
    for clocks, share in (("rates", SHARE), ("uniform", np.full(N, 1 / N))):
        found = events(make(named("swift", clocks=clocks)), 20_000).v.mean(axis=0)
        assert (abs(found - share) <= 5 * np.sqrt(share * (1 - share) / 20_000)).all()


def test_the_expected_matrix_is_symmetric():
    """Of the weights as the engine gets them, iteration by iteration, weighted by how often clients wake."""
    run = make()
    waker, weight = events(run, 3000).v.argmax(axis=1), run.topology.at(np.arange(3000))[1]
    expected = np.zeros((N, N))
    for i in range(N):
        at = np.flatnonzero(waker == i)
        assert (weight[at] == weight[at[0]]).all()
        for (a, b), w in zip(EDGES, weight[at[0]], strict=True):
            if i in (a, b):
                expected[i, a + b - i] = SHARE[i] * w
    assert np.abs(expected - expected.T).max() < 1e-15
    assert expected[0, 1] == pytest.approx(r(0, 1) * min(SHARE[0], SHARE[1]), abs=1e-15)
    plain = np.array([[SHARE[i] * r(i, j) * (expected[i, j] > 0) for j in range(N)] for i in range(N)])
    assert np.abs(plain - plain.T).max() > 0.01  # the wrong version: the weights of the graph


def test_only_the_client_that_wakes_changes():
    run = make()
    waker = events(run, 30).v.argmax(axis=1)
    looks = advance([run], MODEL, iterations=30, every=1, rule=RULE)[0]
    for before, after in pairwise(looks):
        changed = (before.theta != after.theta).any(dim=1).numpy()
        assert np.flatnonzero(changed).tolist() == [waker[before.iteration]]


def reference(run, iterations, start, alpha=0.05):
    """A plain loop with dictionaries over the clients that wake."""
    theta = {i: start[i].copy() for i in range(N)}
    fired = events(run, iterations)
    for v, v_hat in zip(fired.v, fired.v_hat, strict=True):
        i = int(v.argmax())
        new = theta[i] - alpha * gradient(i, theta[i])
        for (a, b), used in zip(EDGES, v_hat, strict=True):
            if used:
                j = a + b - i
                new = new + r(i, j) * min(SHARE[i], SHARE[j]) / SHARE[i] * (theta[j] - theta[i])
        theta[i] = new
    return np.stack([theta[i] for i in range(N)])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_swift_is_its_plain_loop(every):
    run = make(named("swift", every=every))
    start = scattered(MODEL, N, 0, torch.float64)
    found = advance([run], MODEL, iterations=120, rule=RULE, initial=[start])[0][-1].theta
    assert np.abs(found.numpy() - reference(run, 120, start.numpy())).max() < 1e-10


def test_the_rule_is_its_plain_loop_under_random_events():
    v, v_hat = random_events(50, seed=4)
    start = scattered(MODEL, N, 0, torch.float64)
    theta = {i: start[i].numpy().copy() for i in range(N)}
    for fires, uses in zip(v, v_hat, strict=True):
        before = {i: theta[i].copy() for i in theta}
        for i in range(N):
            if fires[i]:
                theta[i] = before[i] - 0.05 * gradient(i, before[i])
        for (i, j), used in zip(EDGES, uses, strict=True):
            for here, there in ((i, j), (j, i)):
                if used and fires[here]:
                    theta[here] = theta[here] + r(i, j) * (before[there] - before[here])
    found = states(RULE, v, v_hat, start=start)[-1][0]
    assert np.abs(found.numpy() - np.stack([theta[i] for i in range(N)])).max() < 1e-10


def expected_mean(alpha, weight):
    """The mean of the average model in the long run: wakes are independent and steps affine in Θ. Shape: (3,)."""
    matrix, shift = np.zeros((3 * N, 3 * N)), np.zeros(3 * N)
    for i in range(N):
        p, move, pull = np.eye(N), np.zeros((3 * N, 3 * N)), np.zeros(3 * N)
        for j in {a + b - i for a, b in EDGES if i in (a, b)}:
            p[i, j] += weight(i, j)
            p[i, i] -= weight(i, j)
        here = slice(3 * i, 3 * i + 3)
        move[here, here] = alpha * (np.outer(X[i], X[i]) + L2 * np.eye(3))
        pull[here] = alpha * X[i] * Y[i]
        matrix, shift = matrix + SHARE[i] * (np.kron(p, np.eye(3)) - move), shift + SHARE[i] * pull
    return np.linalg.solve(np.eye(3 * N) - matrix, shift).reshape(N, 3).mean(axis=0)


def balanced(i, j):
    return r(i, j) * min(SHARE[i], SHARE[j]) / SHARE[i]


@pytest.mark.parametrize(("alpha", "near", "plain"), [(0.05, 0.093, 0.353), (0.02, 0.054, 0.357)])
def test_in_expectation_it_is_near_the_minimizer_weighted_by_wakes_and_with_plain_weights_it_is_not(alpha, near, plain):
    assert np.linalg.norm(expected_mean(alpha, balanced) - minimizer(D)) == pytest.approx(near, abs=1.5e-3)
    assert np.linalg.norm(expected_mean(alpha, r) - minimizer(D)) == pytest.approx(plain, abs=1.5e-3)


def average_model(runs, iterations=3000):
    """The average model over the second half of some runs. Shape: (3,)."""
    start = [torch.zeros(N, 3, dtype=torch.float64)] * len(runs)
    looks = advance(runs, MODEL, iterations=iterations, every=50, rule=RULE, initial=start)
    found = [look.theta.mean(dim=0) for one in looks for look in one if look.iteration > iterations // 2]
    return torch.stack(found).mean(dim=0).numpy()


def test_runs_end_where_the_expectation_says_with_these_weights_and_with_plain_ones():
    runs = [make(seed=seed) for seed in range(12)]
    assert np.linalg.norm(average_model(runs) - expected_mean(0.05, balanced)) < 0.03
    topology = WeightedTopology(Static(RING), "metropolis")  # the wrong version
    plain = average_model([replace(run, topology=topology) for run in runs])
    assert np.linalg.norm(plain - expected_mean(0.05, r)) < 0.03
    assert np.linalg.norm(plain - minimizer(D)) > 0.3


@pytest.mark.parametrize("every", [2, 3])
def test_links_fire_at_every_second_or_third_wake_of_a_client_however_blocks_are_cut(every):
    schedule = Swift(every=every)
    run = make(schedule)
    found = events(run, 9000)
    for i in range(N):
        at = np.flatnonzero(found.v[:, i])
        uses = found.v_hat[at].any(axis=1)
        assert np.array_equal(np.flatnonzero(uses), np.arange(every - 1, len(at), every))
    late = Swift(every=every)(np.arange(8900, 8950), Part.whole(RING, 0), run.rates)
    assert np.array_equal(late.v_hat, found.v_hat[8900:8950])
    some = schedule(np.array([4095, 4096, 8191, 8192]), Part.of(RING, 0, [0, 3]), run.rates)
    part = Part.of(RING, 0, [0, 3])
    assert np.array_equal(some.v_hat, found.v_hat[[4095, 4096, 8191, 8192]][:, part.link])


def test_weights_follow_rates_that_are_drawn_again():
    run = make_run("swift", 1, data=DATA, graph=RING, sgd=Uniform(), refresh=5)
    k = np.arange(20)
    weight, share = run.topology.at(k)[1], run.rates.sgd(k)
    waker = events(run, 20).v.argmax(axis=1)
    for t in k:
        for e, (a, b) in enumerate(EDGES):
            ratio = min(share[t, a], share[t, b]) / share[t, waker[t]] if waker[t] in (a, b) else 1.0
            assert weight[t, e] == pytest.approx(r(a, b) * ratio, rel=1e-12)


def test_one_of_the_two_ends_sends_a_model():
    assert 2 * bytes_sent(RULE, 10) == 40
