"""Cycles of local steps and exchanges: counts in closed form, and what they are where they degenerate."""

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, MODEL, RING, N, X, Y, models
from tests.worlds import advance, make_run

from dspodfl.algorithms import RULES, Constant, make
from dspodfl.algorithms.base import Algorithm
from dspodfl.algorithms.cycles import AveragingCycle, averages_at, complete, cycle
from dspodfl.algorithms.rules import adapt_then_combine
from dspodfl.engine import plain_loop
from dspodfl.errors import InputError

PAIRS = N * (N - 1) // 2


def schedule_of(name, **settings):
    return make(Algorithm(name, schedule=name, rule=name, settings=settings))[0]


def counted(schedule, iterations):
    """Steps and link uses of a run on the instance, as the engine counts them."""
    run = make_run("dspodfl", 0, data=DATA, graph=RING, schedule=schedule, learning_rate=Constant(0.05))
    counters = advance([run], MODEL, iterations=iterations)[0][-1].counters
    return counters.sgd_steps, counters.link_uses


def plain(schedule, iterations, order="adapt_then_combine", alpha=0.05, start=None):
    """The models of the plain loop over clients and links, in float64."""
    run = make_run("dspodfl", 0, data=DATA, graph=RING, schedule=schedule, learning_rate=Constant(alpha))
    start = torch.zeros(N, 3, dtype=torch.float64) if start is None else start
    *_, last = plain_loop(run, MODEL, start, iterations=iterations, batch_size=4, order=order)
    return last


def gradient_descent(iterations, alpha=0.05):
    """Full gradients of the mean of all F_i, written out. Shape: (3,)."""
    theta = np.zeros(3)
    for _ in range(iterations):
        theta = theta - alpha * ((X.T @ (X @ theta - Y)) / N + 0.5 * theta)
    return torch.from_numpy(theta)


@pytest.mark.parametrize("iterations", [1, 4, 5, 23])
def test_local_sgd_steps_always_and_all_pairs_meet_at_every_period(iterations):
    assert counted(schedule_of("local_sgd", period=5), iterations) == (N * iterations, PAIRS * (iterations // 5))
    near = schedule_of("local_sgd", period=5, average="neighbours")
    assert counted(near, iterations) == (N * iterations, RING.links * (iterations // 5))


@pytest.mark.parametrize("iterations", [3, 4, 25])
def test_ldsgd_uses_links_in_the_last_iterations_of_a_cycle(iterations):
    found = counted(schedule_of("ldsgd", local_steps=3, gossip_steps=2), iterations)
    assert found == (N * iterations, RING.links * (2 * (iterations // 5) + max(0, iterations % 5 - 3)))


@pytest.mark.parametrize("iterations", [6, 7, 10, 31])
def test_post_local_uses_links_always_and_then_at_every_period(iterations):
    found = counted(schedule_of("post_local", start=7, period=4), iterations)
    assert found == (N * iterations, PAIRS * (min(iterations, 7) + max(0, iterations - 7) // 4))


@pytest.mark.parametrize("iterations", [5, 6, 20])
def test_gossip_pga_uses_the_graph_and_all_pairs_at_every_period(iterations):
    wide = iterations // 6
    found = counted(schedule_of("gossip_pga", period=6), iterations)
    assert found == (N * iterations, RING.links * (iterations - wide) + PAIRS * wide)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("local_sgd", {"period": 4}),
        ("local_sgd", {"period": 4, "average": "neighbours"}),
        ("ldsgd", {"local_steps": 2, "gossip_steps": 2}),
        ("post_local", {"start": 9, "period": 3}),
        ("gossip_pga", {"period": 4}),
    ],
)
@pytest.mark.parametrize("order", ["adapt_then_combine", "simultaneous"])
def test_a_cycle_is_its_plain_loop(name, settings, order):
    schedule = schedule_of(name, **settings)
    assert (models(RULES[order], schedule=schedule, iterations=50) - plain(schedule, 50, order)).abs().max() < 1e-10


def test_ldsgd_without_local_steps_is_dgd_to_the_bit():
    found = models(adapt_then_combine, schedule=schedule_of("ldsgd", local_steps=0), iterations=60)
    assert torch.equal(found, models(adapt_then_combine, schedule="dgd", iterations=60))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("gossip_pga", {"period": 1}), ("local_sgd", {"period": 1}), ("post_local", {"start": 1000})],
)
def test_an_average_of_all_at_every_iteration_is_gradient_descent(name, settings):
    found = models(adapt_then_combine, schedule=schedule_of(name, **settings), iterations=200)
    assert (found - gradient_descent(200)).abs().max() < 1e-12


def test_models_are_equal_right_after_a_global_average_and_not_before():
    for name in ("local_sgd", "gossip_pga"):
        schedule = schedule_of(name, period=5)
        apart = [float((t - t.mean(dim=0)).abs().max()) for t in (plain(schedule, k) for k in (4, 5))]
        assert apart[0] > 0.01 and apart[1] < 1e-12


def test_averaging_with_the_weights_of_a_graph_rule_that_is_not_one_over_n_would_not_be_gradient_descent():
    """The wrong version: lazy Metropolis on the complete graph, 1/(2(n − 1))."""

    class Wrong(AveragingCycle):
        def weights(self, k, graph):
            return np.full((1, graph.links), 0.5 / (graph.n - 1))

    found = models(adapt_then_combine, schedule=Wrong(((1, True, True),)), iterations=200)
    assert (found - gradient_descent(200)).abs().max() > 0.01


def test_the_delay_of_gossip_pga_follows_the_links_of_the_iteration():
    """With all rates 1, an exchange of everything takes 1 whatever the graph: normalized delays are 2 an iteration."""
    run = make_run("dspodfl", 0, data=DATA, graph=RING, schedule=schedule_of("gossip_pga", period=3))
    look = advance([run], MODEL, iterations=7)[0][-1].counters
    assert look.delay_processing_normalized + look.delay_transmission_normalized == pytest.approx(14, abs=1e-12)
    one = make_run("dspodfl", 0, data=DATA, graph=RING, schedule=schedule_of("gossip_pga", period=9))
    dgd = make_run("dgd", 0, data=DATA, graph=RING)
    same = [advance([r], MODEL, iterations=7)[0][-1].counters.delay_transmission for r in (one, dgd)]
    assert same[0] == pytest.approx(same[1], rel=1e-12)


def test_gossip_pga_mixes_by_the_weights_of_the_graph_between_averages():
    for rule in ("metropolis", "lazy_metropolis"):
        run = make_run("dspodfl", 0, data=DATA, graph=RING, weights=rule, schedule=schedule_of("gossip_pga", period=2))
        base = make_run("dgd", 0, data=DATA, graph=RING, weights=rule)
        present, weight, degree = run.topology.at(np.arange(2))
        links = {tuple(edge) for edge in RING.edges.tolist()}
        there = np.array([tuple(edge) in links for edge in run.rates.graph.edges.tolist()])
        assert np.array_equal(present, [there, np.ones(PAIRS, dtype=bool)])
        assert np.array_equal(weight[0, there], base.topology.at(np.arange(1))[1][0])
        assert (weight[0, ~there] == 0).all() and (weight[1] == 1 / N).all()
        assert np.array_equal(degree, [RING.degree, np.full(N, N - 1)])


def test_the_complete_graph_keeps_what_is_known_of_the_clients():
    found = complete(RING)
    assert found.links == PAIRS and found.positions is RING.positions and found.labels is RING.labels
    assert averages_at(np.array([0, 4, 5, 9]), 5).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("phases", "more"),
    [([], {}), ([(0, True, True)], {}), ([(-1, True, True)], {}), ([(2, True, True)], {"before": -1})],
)
def test_a_cycle_without_iterations_is_refused(phases, more):
    with pytest.raises(InputError, match="cycle"):
        cycle(phases, **more)


def test_somebody_else_cannot_average():
    with pytest.raises(InputError, match="average = 'some': must be one of all, neighbours"):
        cycle([(1, True, True)], average="some")


def test_a_cycle_of_one_kind_of_iteration_is_constant():
    run = make_run("dspodfl", 0, data=DATA, graph=RING)
    assert cycle([(3, True, True)], before=4).constant(run.rates)
    assert not cycle([(3, True, False)], before=4).constant(run.rates)
    assert not cycle([(3, True, False), (1, True, True)]).constant(run.rates)
