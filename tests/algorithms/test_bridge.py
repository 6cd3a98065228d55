"""BRIDGE-T: trimmed means against NumPy's sort, and where it cannot average."""

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.attacked import COMPLETE, HONEST, START, N, P, consensus, trained
from tests.algorithms.listed import random_events, still
from tests.engine.test_sharded import assert_the_same, split_up
from tests.engine.test_state import assert_any_state_is_gone_on_from
from tests.worlds import MODELS, erdos_renyi, final, make_run, scattered

from dspodfl.algorithms import Algorithm, bytes_sent, make
from dspodfl.algorithms.methods.bridge import Bridge
from dspodfl.errors import InputError
from dspodfl.network import Graph

CONTRACT = {"settings": {"b": 0}, "moves_the_mean": True}  # clients of the ring have two neighbours


def plain_loop(graph, v, v_hat, start, b, alpha=0.05):
    """Client by client, with NumPy's sort."""
    theta = start.numpy().copy()
    for k in range(len(v)):
        new = theta.copy()
        for i in range(graph.n):
            near = [sum(edge) - i for e, edge in enumerate(graph.edges.tolist()) if v_hat[k, e] and i in edge]
            if len(near) >= 2 * b + 1:
                kept = np.sort(theta[near], axis=0)[b : len(near) - b]
                new[i] = np.concatenate([kept, theta[i][None]]).mean(axis=0)
            if v[k, i]:
                x, y = instance.X[i], instance.Y[i]
                new[i] -= alpha * (x * (x @ theta[i] - y) + instance.L2 * theta[i])
        theta = new
    return torch.from_numpy(theta)


@pytest.mark.parametrize("b", [0, 1, 2])
def test_it_is_a_plain_loop_with_numpys_sort(b):
    graph = erdos_renyi(8, 2, p=0.8)
    v, v_hat = random_events(50, graph=graph, share=0.7)
    start = scattered(instance.MODEL, 8, 0, torch.float64)
    found = trained(Bridge(b), v, v_hat, graph=graph, start=start)
    assert (found - plain_loop(graph, v, v_hat, start, b)).abs().max() < 1e-10


def test_it_may_drop_other_neighbours_in_each_coordinate():
    """Whole models ranked by their length would give something else."""
    start = torch.tensor([[0.0, 0.0], [9.0, 1.0], [1.0, 9.0], [2.0, 2.0]], dtype=torch.float64)
    complete = Graph.from_edges(4, [(i, j) for i in range(4) for j in range(i + 1, 4)])
    found = consensus(Bridge(1), start=start, graph=complete, rounds=1)
    assert found[0].tolist() == [1.0, 1.0]  # the mean of 0 and 2 in both


def test_without_trimming_it_averages_with_equal_weights():
    found = consensus(Bridge(0), rounds=1)
    assert (found - START.mean(dim=0)).abs().max() < 1e-14


def test_with_fewer_than_two_b_and_one_links_a_client_keeps_its_model_and_still_steps():
    v, v_hat = np.ones((5, 8), dtype=bool), np.ones((5, 10), dtype=bool)
    start = scattered(instance.MODEL, 8, 0, torch.float64)
    found = trained(Bridge(2), v, v_hat, start=start)  # five neighbours are needed, and nobody has them
    alone = trained(Bridge(2), v, ~v_hat, start=start)
    assert torch.equal(found, alone) and not torch.equal(found, start)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_b_attackers_do_no_harm_whatever_they_send(value):
    class Kind:
        alters_data, by_receiver = False, True

        def messages(self, x, attacker, at):
            return torch.full_like(x, value)

    found = consensus(Bridge(2), Kind(), rounds=100)[HONEST]
    assert found.isfinite().all() and (found - found.mean(dim=0)).abs().max() < 1e-9
    inside = (found >= START[HONEST].min(dim=0).values) & (found <= START[HONEST].max(dim=0).values)
    assert inside.all()


def test_graphs_with_too_few_neighbours_are_refused():
    _, data = still(P, N)
    run = make_run("dspodfl", 0, data=data, graph=COMPLETE)
    Bridge(4).check(run.topology, run.rates)
    with pytest.raises(
        InputError, match=r"algorithms = 'bridge': must be on a graph .* 2b \+ 1 = 11 .* client 0 has 9"
    ):
        Bridge(5).check(run.topology, run.rates)
    ring = make_run("dspodfl", 0, data=instance.DATA, graph=instance.RING)
    with pytest.raises(InputError, match="client 1 has 2"):
        Bridge(1).check(ring.topology, ring.rates)


@pytest.mark.parametrize("bad", [-1, 0.5, True, "one"])
def test_b_is_an_integer_of_at_least_0(bad):
    with pytest.raises(InputError, match=r"algorithms.settings.b"):
        make(Algorithm("mine", schedule="bridge", rule="bridge", settings={"b": bad}))


def test_it_trims_stacked_split_and_resumed_as_alone():
    model, data = MODELS["svm"]()
    runs = [make_run("dspodfl", seed, n=7, data=data, graph=erdos_renyi(7, seed, p=0.9)) for seed in range(2)]
    for run, found in zip(runs, final(runs, model, iterations=30, rule=Bridge()), strict=True):
        assert torch.equal(final([run], model, iterations=30, rule=Bridge())[0], found)
    looks, _, _ = split_up(runs, model, 3, rule=Bridge())
    assert_the_same(runs, model, looks, rule=Bridge(), close=1e-9)
    assert_any_state_is_gone_on_from(runs, model, rule=Bridge())


def test_it_sends_one_model():
    assert bytes_sent(Bridge(), 10) == 40
