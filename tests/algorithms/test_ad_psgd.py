"""AD-PSGD: gradients that are as old as a client's last step, and where unequal clocks lead."""

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, EDGES, L2, MODEL, OPTIMUM, RING, D, N, X, Y, minimizer, models
from tests.algorithms.listed import random_events, states
from tests.worlds import advance, make_run, scattered

from dspodfl.algorithms import RULES, Algorithm, Constant, bytes_sent, make, named
from dspodfl.algorithms.methods.ad_psgd import StaleGradients
from dspodfl.network import Events, Graph, Part
from dspodfl.network.laws import FixedValues

RULE = StaleGradients()


def gradient(i, theta):
    return X[i] * (X[i] @ theta - Y[i]) + L2 * theta


def reference(v, v_hat, start, alpha=0.05):
    """A plain loop with dictionaries: the model that each client had when it began is remembered. Simultaneous mixing
    by Metropolis weights, as the tests of rules have it."""
    theta = {i: start[i].copy() for i in range(N)}
    began = {i: start[i].copy() for i in range(N)}
    degree = {i: sum(i in edge for edge in EDGES) for i in range(N)}
    for fires, uses in zip(v, v_hat, strict=True):
        before = {i: theta[i].copy() for i in theta}
        for (i, j), used in zip(EDGES, uses, strict=True):
            if used:
                gap = (before[j] - before[i]) / (1 + max(degree[i], degree[j]))
                theta[i] = theta[i] + gap
                theta[j] = theta[j] - gap
        for i in range(N):
            if fires[i]:
                theta[i] = theta[i] - alpha * gradient(i, began[i])
                began[i] = theta[i].copy()
    return np.stack([theta[i] for i in range(N)])


def test_the_rule_is_its_plain_loop_under_random_events():
    v, v_hat = random_events(50, seed=4)
    start = scattered(MODEL, N, 0, torch.float64)
    found = states(RULE, v, v_hat, start=start)[-1][0]
    assert np.abs(found.numpy() - reference(v, v_hat, start.numpy())).max() < 1e-10


def test_a_gradient_is_taken_at_the_model_after_the_last_step_of_its_client():
    """The staleness of a client is the number of iterations since its last step."""
    v, v_hat = random_events(30, seed=2, share=0.3)
    found = states(RULE, v, v_hat)
    for k in range(30):
        for i in range(N):
            last = max((t + 1 for t in range(k) if v[t, i]), default=0)
            assert torch.equal(found[k].clients["rule.0"][i], found[last].theta[i])


def pairwise(schedule, rule, iterations=200, start=None, d=1.0):
    return models(rule, schedule=schedule, iterations=iterations, start=start, d=d)


class OneClock:
    """Client 0 alone wakes, and averages with its neighbours in turn."""

    def __call__(self, k, part, rates):
        links = [e for e, (i, _) in enumerate(EDGES) if i == 0]
        picked = np.array(links)[np.asarray(k) % len(links)]
        return Events(np.tile(part.client == 0, (len(k), 1)), part.link == picked[:, None])


def test_with_one_clock_no_gradient_is_stale():
    assert (pairwise(OneClock(), RULE) - pairwise(OneClock(), RULES["simultaneous"])).abs().max() < 1e-12


def test_with_one_clock_and_no_links_it_is_sgd_of_that_client():
    graph = Graph.from_edges(N, [])

    class Alone:
        def __call__(self, k, part, rates):
            return Events(np.tile(part.client == 3, (len(k), 1)), np.zeros((len(k), 0), dtype=bool))

    found = models(RULE, schedule=Alone(), iterations=300, graph=graph)
    theta = np.zeros(3)
    for _ in range(300):
        theta = theta - 0.05 * gradient(3, theta)
    assert np.abs(found[3].numpy() - theta).max() < 1e-12
    assert (found[[0, 1, 2, 4, 5, 6, 7]] == 0).all()


def test_with_fresh_gradients_and_equal_clocks_it_is_pairwise_gossip():
    """The degenerate case: S = Θ, in place of the last step's model."""

    class Fresh(StaleGradients):
        def step(self, theta, state, at):
            new, _ = super().step(theta, theta, at)
            return new, new

    start = scattered(MODEL, N, 0, torch.float64)
    alone = named("pairwise_gossip", steps="waker")
    equal = named("ad_psgd", clocks="uniform")
    assert (
        pairwise(equal, Fresh(), start=start) - pairwise(alone, RULES["simultaneous"], start=start)
    ).abs().max() < 1e-12
    assert (pairwise(equal, RULE, start=start) - pairwise(alone, RULES["simultaneous"], start=start)).abs().max() > 1e-3


def expected_mean(alpha, clock):
    """The mean of the average model in the long run: events are independent and steps affine in (Θ, S)."""
    half, total = 3 * N, 6 * N
    matrix, shift = np.zeros((total, total)), np.zeros(total)
    for i in range(N):
        near = sorted({b for a, b in EDGES if a == i} | {a for a, b in EDGES if b == i})
        for j in near:
            p = np.eye(N)
            p[[i, i, j, j], [i, j, i, j]] = 0.5
            a, c = np.eye(total), np.zeros(total)
            a[:half, :half] = np.kron(p, np.eye(3))
            here, held = slice(3 * i, 3 * i + 3), slice(half + 3 * i, half + 3 * i + 3)
            a[here, held] -= alpha * (np.outer(X[i], X[i]) + L2 * np.eye(3))
            c[here] = alpha * X[i] * Y[i]
            a[held], c[held] = a[here], c[here]
            weight = clock[i] / clock.sum() / len(near)
            matrix, shift = matrix + weight * a, shift + weight * c
    return np.linalg.solve(np.eye(total) - matrix, shift)[:half].reshape(N, 3).mean(axis=0)


def long_run(clocks, alpha=0.02, iterations=8000, seeds=12):
    """The average model over the second half of runs of several seeds. Shape: (3,)."""
    schedule = named("ad_psgd", clocks=clocks)
    how = {"sgd": FixedValues(D.tolist()), "link": FixedValues(1.0), "learning_rate": Constant(alpha)}
    runs = [make_run("dspodfl", seed, data=DATA, graph=RING, schedule=schedule, **how) for seed in range(seeds)]
    start = [torch.zeros(N, 3, dtype=torch.float64)] * seeds
    looks = advance(runs, MODEL, iterations=iterations, every=20, rule=RULE, initial=start)
    return torch.stack(
        [look.theta.mean(dim=0) for one in looks for look in one if look.iteration > iterations // 2]
    ).mean(0)


def test_it_goes_near_the_minimizer_in_which_clients_count_as_often_as_they_wake():
    """The distances are .357 and .017 in expectation; one stream of 40,000 iterations gave .366 and .025."""
    exact = expected_mean(0.02, D)
    assert np.linalg.norm(exact - OPTIMUM.numpy()) == pytest.approx(0.357, abs=5e-4)
    assert np.linalg.norm(exact - minimizer(D)) == pytest.approx(0.017, abs=5e-4)
    found = long_run("rates").numpy()
    assert np.linalg.norm(found - exact) < 0.03
    assert np.linalg.norm(found - OPTIMUM.numpy()) == pytest.approx(0.366, abs=0.03)


def test_with_equal_clocks_it_goes_near_the_minimizer_of_the_mean():
    exact = expected_mean(0.02, np.ones(N))
    assert np.linalg.norm(exact - OPTIMUM.numpy()) == pytest.approx(0.010, abs=5e-4)
    assert np.linalg.norm(long_run("uniform").numpy() - exact) < 0.03


def test_one_client_steps_at_an_iteration_over_one_link():
    schedule, rule = make(Algorithm("a", schedule="ad_psgd", rule="ad_psgd"))
    run = make_run("dspodfl", 0, data=DATA, graph=RING, schedule=schedule)
    events = schedule(np.arange(200), Part.whole(RING, 0), run.rates)
    assert (events.v.sum(axis=1) == 1).all() and (events.v_hat.sum(axis=1) == 1).all()
    assert (run.topology.at(np.arange(1))[1] == 0.5).all()
    assert bytes_sent(rule, 10) == 40
