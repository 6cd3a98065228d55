"""The events, minibatches and rates of one client are those of the whole run."""

import numpy as np
import pytest
import torch
from tests.engine.clients import CASES, DIRECTED, ITERATIONS, assert_events_are_the_engine_s, world
from tests.engine.test_activation import HOW, runs_with
from tests.worlds import BATCH, MODELS, advance

from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Client, all_clients
from dspodfl.network import DelayMeter, Events


@pytest.mark.parametrize("name", CASES)
def test_events_and_minibatches_are_the_engine_s(name):
    assert_events_are_the_engine_s(*world(name))


@pytest.mark.parametrize("name", ["dspodfl", "matcha", "pairwise_gossip"])
def test_delays_follow_from_the_events_of_clients(name):
    run, rule, model = world(name)
    clients = all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float64)
    graph, k = run.rates.graph, np.arange(ITERATIONS)
    v = np.array([[client.steps(t) for client in clients] for t in k])
    v_hat = np.array([[j in clients[i].fires(t) for i, j in graph.edges.tolist()] for t in k])
    _, _, degree = run.topology.at(k)
    meter = DelayMeter(graph.edges, graph.n)
    delays = meter.add(Events(v, v_hat), run.rates.sgd(k), run.rates.link(k), degree, None)
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    counted = looks[-1].counters
    assert (int(v.sum()), int(v_hat.sum())) == (counted.sgd_steps, counted.link_uses)
    assert delays.processing[-1] == pytest.approx(counted.delay_processing, rel=1e-12)
    assert delays.transmission[-1] == pytest.approx(counted.delay_transmission, rel=1e-12)


def test_events_are_the_same_whatever_was_asked_for_before():
    run, rule, model = world("matcha")
    client = Client(run, rule, model, 0, batch_size=BATCH)
    order = np.random.default_rng(0).permutation(600).tolist()
    found = {k: (client.fires(k), client.steps(k)) for k in order}
    other = Client(run, rule, model, 0, batch_size=BATCH)
    assert all(found[k] == (other.fires(k), other.steps(k)) for k in range(600))


@pytest.mark.parametrize("name", DIRECTED)
def test_events_of_directed_graphs_are_the_engine_s(name):
    assert_events_are_the_engine_s(*world(name, directed=True))


@pytest.mark.parametrize("how", HOW)
def test_clients_and_links_that_are_off_are_the_stacked_engine_s(how):
    model, dataset = MODELS["logistic"]()
    for run in runs_with(how, dataset):
        assert_events_are_the_engine_s(run, RULES["simultaneous"], model)


def test_the_mean_rate_of_links_is_that_of_the_own_links():
    run, rule, model = world("dspodfl")
    rate, edges = run.rates.link(np.array([7]))[0], run.rates.graph.edges
    for client in all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float64):
        own = (edges == client.i).any(axis=1)
        assert client.events.link_rate(7) == pytest.approx(rate[own].mean(), rel=1e-14)
