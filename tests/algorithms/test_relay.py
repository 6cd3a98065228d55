"""RelaySGD: on a tree every client gets the mean of all models, also where links are silent."""

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import RING, N
from tests.algorithms.listed import random_events, states
from tests.worlds import final, make_run, scattered

from dspodfl.algorithms import bytes_sent
from dspodfl.algorithms.learning_rate import Constant
from dspodfl.algorithms.methods.relay import Relay
from dspodfl.errors import InputError
from dspodfl.network import Graph, generate
from dspodfl.network.laws import FixedValues
from dspodfl.network.topology import Static, WeightedTopology
from dspodfl.problem.data.dataset import Federation

TREE = Graph.from_edges(N, [(0, 1), (0, 6), (1, 2), (2, 3), (2, 4), (4, 5), (6, 7)])
CONTRACT = {"moves_the_mean": True, "graph": TREE}

LINK = {(i, j): e for e, (a, b) in enumerate(TREE.edges.tolist()) for i, j in ((a, b), (b, a))}
NEIGHBOURS = {i: [j for a, j in LINK if a == i] for i in range(N)}


def gradient(i, theta):
    return (instance.X[i] @ theta - instance.Y[i]) * instance.X[i] + instance.L2 * theta


def last_message(m, c, link, half, start):
    return m[link], c[link]


def loop(v, v_hat, start, alpha=0.05, missing=last_message):
    """The method with messages in a dictionary by (sender, receiver); ``missing`` is what stands for a silent link."""
    theta = {i: np.array(start[i]) for i in range(N)}
    m, c = {link: np.zeros(3) for link in LINK}, dict.fromkeys(LINK, 0)
    for k in range(len(v)):
        half = {i: theta[i] - alpha * gradient(i, theta[i]) if v[k, i] else theta[i] for i in theta}
        news = {}
        for i, j in LINK:
            others = [n for n in NEIGHBOURS[i] if n != j]
            sent = half[i] + sum(m[n, i] for n in others), 1 + sum(c[n, i] for n in others)
            news[i, j] = sent if v_hat[k, LINK[i, j]] else missing(m, c, (i, j), half, start)
        m, c = ({link: news[link][n] for link in LINK} for n in (0, 1))
        for i in range(N):
            if v[k, i] or any(v_hat[k, LINK[i, j]] for j in NEIGHBOURS[i]):
                theta[i] = (N - sum(c[j, i] for j in NEIGHBOURS[i])) * half[i] + sum(m[j, i] for j in NEIGHBOURS[i])
                theta[i] = theta[i] / N
    return np.stack([theta[i] for i in range(N)])


def test_it_is_its_plain_loop():
    v, v_hat = random_events(50, TREE)
    start = scattered(instance.MODEL, N, 0, torch.float64)
    found = states(Relay(), v, v_hat, graph=TREE, start=start)[-1][0]
    assert np.abs(found.numpy() - loop(v, v_hat, start.numpy())).max() < 1e-10


@pytest.mark.parametrize("b", [1.0, 0.7])
def test_it_is_exact_where_every_client_steps_whatever_links_are_silent(b):
    assert instance.error(instance.models(Relay(), graph=TREE, alpha=0.1, b=b, iterations=1500)) < 1e-14


def test_where_clients_are_sporadic_it_is_not():
    theta = instance.models(Relay(), graph=TREE, alpha=0.02, d=instance.D.tolist(), iterations=3000)
    to_busy = instance.minimizer(instance.D)
    assert instance.error(theta.mean(dim=0)[None]) > 2 * instance.error(theta.mean(dim=0)[None], torch.tensor(to_busy))


def own_model(m, c, link, half, start):
    """Wrong: the receiver's model, as one model, in place of what is missing."""
    return half[link[1]], 1


def initial_model(m, c, link, half, start):
    """Wrong: the models of the beginning in place of what is missing."""
    return c[link] * start[link[0]], c[link]


@pytest.mark.parametrize(
    ("missing", "start", "least"), [(own_model, 0.0, 0.15), (initial_model, 0.0, 0.3), (initial_model, 1.0, 0.9)]
)
def test_anything_but_the_last_message_of_a_silent_link_ends_elsewhere(missing, start, least):
    v, v_hat = np.ones((1000, N), dtype=bool), np.random.default_rng(0).random((1000, TREE.links)) < 0.7
    begin = np.full((N, 3), start)
    assert instance.error(torch.from_numpy(loop(v, v_hat, begin, alpha=0.05, missing=missing))) > least
    assert instance.error(torch.from_numpy(loop(v, v_hat, begin, alpha=0.05))) < 1e-5


def test_two_clients_that_always_exchange_descend_along_the_mean_gradient():
    pair = Graph.from_edges(2, [(0, 1)])
    data = Federation(instance.DATA.dataset, (np.array([0]), np.array([5])), {})
    run = make_run(
        "dgd", data=data, graph=pair, sgd=FixedValues(1.0), link=FixedValues(1.0), learning_rate=Constant(0.1)
    )
    (found,) = final([run], instance.MODEL, iterations=50, rule=Relay(), initial=[torch.zeros(2, 3)])
    theta = np.zeros(3)
    for _ in range(50):
        theta = theta - 0.1 * (gradient(0, theta) + gradient(5, theta)) / 2
    assert np.abs(found.numpy() - theta).max() < 1e-12


def test_on_a_ring_it_would_diverge():
    assert instance.models(Relay(), iterations=40).abs().max() > 1e10


def wired(graph):
    return WeightedTopology(Static(graph), "metropolis")


@pytest.mark.parametrize("graph", [RING, generate("ring", 5, 0), Graph.from_edges(4, [(0, 1), (1, 2), (0, 2)])])
def test_a_graph_that_is_no_tree_is_refused(graph):
    with pytest.raises(InputError, match=r"relay.*tree"):
        Relay().check(wired(graph), None)


@pytest.mark.parametrize("graph", [TREE, generate("path", 5, 0), generate("star", 6, 0), Graph.from_edges(1, [])])
def test_a_tree_is_taken(graph):
    Relay().check(wired(graph), None)


def test_a_message_is_a_model_and_a_count():
    assert bytes_sent(Relay(), 10) == 44
