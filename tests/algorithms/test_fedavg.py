"""FedAvg: where it ends, whom it averages, and a plain loop."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import N, gradient
from tests.algorithms.served import SMALL, after_each, begun, of_server, random_events

from dspodfl.algorithms import Algorithm, make
from dspodfl.algorithms.methods.fedavg import FedAvg
from dspodfl.algorithms.star import Rounds
from dspodfl.algorithms.with_server import is_server, told
from dspodfl.errors import InputError
from dspodfl.network import Graph, Part
from dspodfl.network.laws import FixedValues
from dspodfl.network.rates import Rates

CONTRACT = {"graph": SMALL, "moves_the_mean": True, "settings": {"steps": 2}}


def final(rule, *, share=1.0, **how):
    return instance.models(rule, schedule=Rounds(rule.steps, share), **how)


@pytest.mark.parametrize(("alpha", "found"), [(0.1, 0.0196), (0.05, 0.0111), (0.025, 0.0059)])
def test_five_local_steps_stall_at_a_distance_that_halves_with_the_step(alpha, found):
    assert of_server(final(FedAvg(5), alpha=alpha, iterations=2000)) == pytest.approx(found, abs=1e-4)


def test_one_step_of_all_is_gradient_descent():
    theta, models = np.zeros(3), final(FedAvg(1), alpha=0.1, iterations=60)
    for _ in range(30):
        theta = theta - 0.1 * np.mean([gradient(i, theta) for i in range(N)], axis=0)
    assert np.abs(models[-1].numpy() - theta).max() < 1e-12
    assert of_server(final(FedAvg(1), alpha=0.1, iterations=2000)) < 1e-14


def loop(v, v_hat, steps, rate, alpha=0.05, *, everyone=False, stale=False):
    """The model of the server after every iteration."""
    theta, x = begun()
    joined, found = set(), []
    for k in range(len(v)):
        place = k % (steps + 1)
        if place == 0:
            joined = {i for i in range(N) if v_hat[k, i]}
            theta |= {} if stale else dict.fromkeys(joined, x)
        if place == steps:
            some = [i for i in range(N) if v_hat[k, i] and (everyone or i in joined)]
            x = x + rate * np.mean([theta[i] - x for i in some], axis=0) if some else x
        else:
            theta |= {i: theta[i] - alpha * gradient(i, theta[i]) for i in joined if v[k, i]}
        found.append(x)
    return np.array(found)


@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (3, 0.7)])
def test_it_is_a_plain_loop_whatever_fires(steps, rate):
    v, v_hat = random_events(60)
    models = after_each(FedAvg(steps, server_rate=rate), v, v_hat)[1:, N].numpy()
    assert np.abs(models - loop(v, v_hat, steps, rate)).max() < 1e-12
    assert np.abs(models - loop(v, v_hat, steps, rate, everyone=True)).max() > 1e-2
    assert np.abs(models - loop(v, v_hat, steps, rate, stale=True)).max() > 1e-2


@dataclass(frozen=True)
class Everybody(FedAvg):
    """Wrong: clients outside S are averaged in, with the models that they have."""

    def step(self, theta, state, at):
        server = is_server(at)
        place = at.k % (self.steps + 1)
        if place == 0:
            count, (received,) = told(at, server, theta)
            theta = received.where(count > 0, theta)
        if place == self.steps:
            total = (theta * ~server).sum(dim=0) / (at.n - 1)
            theta = total.expand(theta.shape).where(server, theta)
        return theta - at.gradient(theta, at.lr * at.v * ~server), state


def test_averaging_those_who_do_not_take_part_ends_elsewhere():
    """Clients that never take part hold the average at where they began."""
    v, v_hat = np.zeros((2400, N + 1), dtype=bool), np.zeros((2400, N), dtype=bool)
    v[:, :3], v_hat[:, :3] = True, True
    v[1::2] = False
    best = torch.from_numpy(instance.minimizer(np.arange(N) < 3))
    right, wrong = (after_each(rule, v, v_hat)[-1, N] for rule in (FedAvg(1), Everybody(1)))
    assert (right - best).norm() < 1e-10
    assert (wrong - best).norm() > 0.1


def test_a_round_has_its_clients_from_beginning_to_end():
    graph = Rounds().graph(Graph.from_edges(10, []))
    rates = Rates(graph, 0, FixedValues(1.0), FixedValues(0.5))
    k, part = np.arange(60), Part.whole(graph, 3)
    events = Rounds(4, 0.3)(k, part, rates)
    v, v_hat = events.v.reshape(12, 5, 11), events.v_hat.reshape(12, 5, 10)
    some = v_hat[:, 0]
    assert (some.sum(axis=1) == 3).all()
    assert len(np.unique(some, axis=0)) > 6
    assert (v_hat[:, 4] == some).all()
    assert not v_hat[:, 1:4].any()
    assert (v[:, :4, :10] == some[:, None]).all()
    assert not v[:, 4].any()
    assert not v[:, :, 10].any()
    assert len(np.unique(np.flatnonzero(some.any(axis=0)))) == 10


def test_events_do_not_depend_on_blocks_and_parts():
    graph = Rounds().graph(Graph.from_edges(6, []))
    rates = Rates(graph, 0, FixedValues(1.0), FixedValues(0.5))
    for share in (0.5, "rates"):
        schedule, part = Rounds(3, share), Part.whole(graph, 3)
        whole = schedule(np.arange(40), part, rates)
        pieces = [schedule(np.arange(a, a + 5), part, rates) for a in range(0, 40, 5)]
        assert np.array_equal(whole.v, np.concatenate([piece.v for piece in pieces]))
        assert np.array_equal(whole.v_hat, np.concatenate([piece.v_hat for piece in pieces]))


def test_by_rates_clients_take_part_as_often_as_their_links_can():
    graph = Rounds().graph(Graph.from_edges(3, []))
    rates = Rates(graph, 0, FixedValues(1.0), FixedValues([0.1, 0.5, 0.9]))
    events = Rounds(1, "rates")(np.arange(0, 8000, 2), Part.whole(graph, 0), rates)
    assert events.v_hat.mean(axis=0) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)


def test_a_round_sends_a_model_down_and_one_up():
    assert 2 * 2 * FedAvg().sent(10) == 2 * 40  # two uses, both ways counted


@pytest.mark.parametrize(
    ("key", "value"), [("steps", 0), ("share", 0), ("share", 1.5), ("share", "all"), ("server_rate", -1.0)]
)
def test_bad_settings_are_refused(key, value):
    with pytest.raises(InputError, match=key):
        make(Algorithm("fedavg", schedule="fedavg", rule="fedavg", settings={key: value}))


def test_scaffold_has_the_same_clients_in_its_rounds():
    (here, _), (there, _) = (
        make(Algorithm(name, schedule=name, rule=name, settings={"share": 0.5})) for name in ("fedavg", "scaffold")
    )
    graph = here.graph(Graph.from_edges(6, []))
    rates = Rates(graph, 0, FixedValues(1.0), FixedValues(0.5))
    both = [schedule(np.arange(60), Part.whole(graph, 3), rates).v for schedule in (here, there)]
    assert np.array_equal(*both)
