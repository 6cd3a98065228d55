"""Push-sum SGD: models x and weights w are pushed along arcs, and x/w is the model."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import DIGRAPH, RING, Loop, N
from tests.algorithms.listed import arc_events, states
from tests.worlds import final, make_run

from dspodfl.algorithms import bytes_sent
from dspodfl.algorithms.methods.push_sum import PushSum
from dspodfl.algorithms.rules import AdaptThenCombine
from dspodfl.network.laws import FixedValues
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build

CONTRACT = {"pushes": True}
P = 20
START = torch.from_numpy(np.random.default_rng(0).normal(size=(N, P)))
_ZEROS = Dataset.from_arrays(*(np.zeros(shape, dtype=np.float32) for shape in ((N, P), N, (N, P), N)))


def averaged(rule, link=0.5, iterations=1000):
    """How far models are from the mean of those at the start, without gradients."""
    data = Federation(_ZEROS, tuple(np.arange(N)[:, None]), {})
    run = make_run("dspodfl", 0, data=data, graph=DIGRAPH, sgd=FixedValues(1.0), link=FixedValues(link))
    (theta,) = final([run], build("linear", (P,), 1), iterations=iterations, rule=rule, initial=[START])
    return float((theta - START.mean(dim=0)).norm(dim=1).max())


@dataclass(frozen=True)
class Bare(PushSum):
    """The wrong version that leaves the weights out."""

    def model(self, theta, state):
        return theta


@dataclass(frozen=True)
class Rows(PushSum):
    """The wrong version that averages what comes in."""

    def step(self, theta, state, at):
        change, _ = at.exchange(theta, lambda x, _: x, lambda x, mine, other, _, arc: (arc.row * (other - mine), None))
        return theta + change, state


@dataclass(frozen=True)
class AtX(PushSum):
    """The wrong version that takes gradients at x."""

    def step(self, theta, state, at):
        x, w = PushSum.step(self, theta - at.gradient(theta, at.lr * at.v), state, _Still(at))
        return x, w


class _Still:
    def __init__(self, at):
        self.exchange, self.v, self.lr = at.exchange, at.v, at.lr

    def gradient(self, x, scale=None):
        return torch.zeros_like(x)


def test_models_reach_the_mean_although_arcs_are_dropped_at_random():
    assert averaged(PushSum()) < 6e-14


def test_without_weights_or_with_rows_that_sum_to_one_they_do_not():
    assert averaged(Bare()) > 0.5
    assert averaged(Rows()) > 0.3


def test_gradients_are_at_the_ratio():
    """At x, clients with a large weight take larger steps, and pull the average to their own minimizer."""
    how = {"graph": DIGRAPH, "schedule": "dgd", "alpha": 0.005, "iterations": 3000}
    right, wrong = (instance.models(rule, **how).mean(dim=0) - instance.OPTIMUM for rule in (PushSum(), AtX()))
    assert right.norm() < 0.01
    assert wrong.norm() > 0.03


def test_on_an_undirected_graph_it_is_gossip_sgd_and_weights_stay_one():
    how = {"d": instance.D.tolist(), "b": instance.B.tolist(), "iterations": 300}
    pushed, mixed = (instance.models(rule, **how) for rule in (PushSum(), AdaptThenCombine()))
    assert (pushed - mixed).abs().max() < 1e-12
    weights = states(PushSum(), *arc_events(50, RING), graph=RING)[-1][1]["rule.0"]
    assert (weights - 1).abs().max() < 1e-12


def test_it_is_the_plain_loop_over_clients_and_arcs():
    events = arc_events(50, seed=3)
    found = states(PushSum(), *events, graph=DIGRAPH)
    loop = Loop(events)
    x, w = (dict(enumerate(rows)) for rows in (found[0][0].numpy(), np.ones(N)))
    for k in range(len(loop)):
        x = {i: x[i] - 0.05 * instance.gradient(i, x[i] / w[i]) if loop.steps(k, i) else x[i] for i in x}
        x, w = loop.pushed(k, x), loop.pushed(k, w)
    assert np.abs(found[-1][0].numpy() - np.stack([x[i] for i in range(N)])).max() < 1e-10
    assert np.abs(found[-1].models.numpy() - np.stack([x[i] / w[i] for i in range(N)])).max() < 1e-10


@pytest.mark.parametrize("p", [1, 10])
def test_a_model_and_a_number_are_sent(p):
    assert bytes_sent(PushSum(), p) == 4 * p + 4
