"""Schedules with a graph or weights of their own: what the engine gets of them."""

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, MODEL, RING, N
from tests.engine.test_sharded import assert_the_same, split_up
from tests.worlds import MODELS, advance, make_run, scattered

from dspodfl.algorithms import named, own_graph, own_topology
from dspodfl.algorithms.schedules import dgd
from dspodfl.engine import Stack, plain_loop
from dspodfl.errors import InputError
from dspodfl.network import OwnWeights, Part, Static, WeightedTopology
from dspodfl.network.topology import BernoulliLinks

BASE = WeightedTopology(Static(RING), "metropolis")


class Weighted:
    """DGD with weights that change with the iteration, the rates and the seed."""

    def __call__(self, k, part, rates):
        return dgd(k, part, rates)

    def weights(self, k, graph, base, rates, seed):
        assert base is BASE or base.rule == "metropolis"
        return base.at(k)[1] * rates.link(k) * (1 + np.asarray(k)[:, None] + seed) / (2 + np.asarray(k)[:, None] + seed)


def test_a_schedule_without_either_keeps_the_topology_of_the_study():
    run = make_run("dgd", 0, data=DATA, graph=RING)
    assert own_graph(dgd, RING) is None
    assert own_topology(dgd, BASE, run.rates, 0) is BASE


def test_a_graph_that_is_that_of_the_study_is_none_of_its_own():
    class Same:
        def graph(self, base):
            return base

    class Attribute:
        graph = RING
        weights = np.ones(3)

    assert own_graph(Same(), RING) is None and own_graph(Attribute(), RING) is None
    assert own_topology(Attribute(), BASE, None, 0) is BASE


def test_weights_that_change_reach_the_models():
    run = make_run("dspodfl", 3, data=DATA, graph=RING, schedule=Weighted())
    assert isinstance(run.topology, OwnWeights) and not run.topology.constant
    weight = run.topology.at(np.array([0, 7]))[1]
    assert np.allclose(weight / BASE.at(np.arange(1))[1] / run.rates.link(np.arange(1)), [[4 / 5], [11 / 12]])
    start = scattered(MODEL, N, 0, torch.float64)
    found = advance([run], MODEL, iterations=40, initial=[start])[0][-1].theta
    *_, last = plain_loop(run, MODEL, start, iterations=40, batch_size=4)
    assert (found - last).abs().max() < 1e-10


def test_runs_on_different_graphs_are_stacked_and_give_what_they_give_alone():
    names = ("dspodfl", "local_sgd", "gossip_pga", "pairwise_gossip", "swift", "matcha")
    runs = [make_run(name, seed, data=DATA, graph=RING) for name in names for seed in (0, 1)]
    together = advance(runs, MODEL, iterations=30)
    for run, looks in zip(runs, together, strict=True):
        alone = advance([run], MODEL, iterations=30)[0][-1]
        assert torch.equal(alone.theta, looks[-1].theta)
        assert vars(alone.counters) == vars(looks[-1].counters)
    assert Stack(runs).all_links == 2 * (4 * RING.links + 2 * N * (N - 1) // 2)


def test_weights_of_its_own_stand_beside_links_that_come_and_go():
    links = BernoulliLinks(RING, 0, 0.5)
    run = make_run("pairwise_gossip", 0, data=DATA, topology=links)
    k = np.arange(400)
    present, weight, _ = run.topology.at(k)
    assert not run.topology.constant and (weight == 0.5).all() and np.array_equal(present, links.present(k))
    uses = advance([run], MODEL, iterations=400)[0][-1].counters.link_uses
    events = run.schedule(k, Part.whole(RING, 0), run.rates)
    assert uses == (events.v_hat & present).sum() < 400


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (np.ones((1, 3)), r"weights = 'of shape \(1, 3\)': must be of shape \(iterations or 1, 10\)"),
        (np.full((1, 10), 1.5), r"weights = 1.5: must be in \[0, 1\]"),
        (np.full((1, 10), np.nan), r"must be in \[0, 1\]"),
    ],
)
def test_weights_of_another_shape_or_size_are_refused(weights, says):
    with pytest.raises(InputError, match=says):
        OwnWeights(Static(RING), "metropolis", lambda k: weights)


@pytest.mark.parametrize("name", ["pairwise_gossip", "matcha", "local_sgd"])
def test_a_run_with_its_own_network_that_is_split_over_ranks_is_whole(name):
    model, data = MODELS["svm"]()
    runs = [make_run(name, seed, n=7, data=data) for seed in range(2)]
    looks, _, _ = split_up(runs, model, 3)
    assert_the_same(runs, model, looks, close=1e-9)


def test_schedules_that_share_clocks_wake_the_same_clients():
    rates = make_run("dgd", 0, data=DATA, graph=RING).rates
    one = named("swift")(np.arange(100), Part.whole(RING, 0), rates)
    other = named("ad_psgd")(np.arange(100), Part.whole(RING, 0), rates)
    assert np.array_equal(one.v, other.v)
