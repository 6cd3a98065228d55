"""SCAFFOLD: exact although few clients take part, and a plain loop."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.algorithms import instance
from tests.algorithms.instance import N, gradient
from tests.algorithms.served import SMALL, after_each, begun, of_server, random_events

from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.algorithms.methods.fedavg import FedAvg
from dspodfl.algorithms.methods.scaffold import Scaffold
from dspodfl.algorithms.star import Rounds
from dspodfl.algorithms.with_server import told

CONTRACT = {"graph": SMALL, "moves_the_mean": True, "settings": {"steps": 2}}
THREE_OF_8 = Rounds(5, 3 / 8)


@dataclass(frozen=True)
class WholeMean(Scaffold):
    """Wrong: c takes the mean over those who take part, not |S|/n of it."""

    def _end(self, theta, c, start, common, taken, joined, at):
        before = c
        theta, c = super()._end(theta, c, start, common, taken, joined, at)
        count, _ = told(at, joined, theta)
        return theta, (before + (c - before) * (at.n - 1) / count.clamp(min=1)).where(count > 0, c)


def test_it_is_exact_with_three_of_eight_clients_where_fedavg_stalls():
    right, other = (
        of_server(instance.models(rule, schedule=THREE_OF_8, alpha=0.1, iterations=6000))
        for rule in (Scaffold(), FedAvg())
    )
    assert right < 1e-14
    assert other > 0.1


def test_it_is_exact_where_the_number_of_clients_in_a_round_varies():
    """The wrong c is n/|S| times the mean of all c_i, which is 0 where that is, as long as |S| is always the same."""
    right, wrong = (
        of_server(instance.models(rule, schedule=Rounds(5, "rates"), alpha=0.1, b=0.4, iterations=6000))
        for rule in (Scaffold(), WholeMean())
    )
    assert right < 1e-14
    assert not wrong < 1e-2


def loop(v, v_hat, steps, rate, alpha):
    """The model of the server, and c, after every iteration."""
    theta, x = begun()
    c, own = np.zeros(3), {i: np.zeros(3) for i in range(N)}
    start, common, taken, joined, found = {}, {}, {}, set(), []
    for k in range(len(v)):
        place = k % (steps + 1)
        if place == 0:
            joined = {i for i in range(N) if v_hat[k, i]}
            for i in joined:
                theta[i], start[i], common[i], taken[i] = x, x, c, 0.0
        if place < steps:
            for i in joined:
                if v[k, i]:
                    theta[i] = theta[i] - alpha(k) * (gradient(i, theta[i]) - own[i] + common[i])
                    taken[i] += alpha(k)
        elif some := [i for i in joined if v_hat[k, i]]:
            new = {i: own[i] - common[i] + (start[i] - theta[i]) / taken[i] if taken[i] else own[i] for i in some}
            x = x + rate * np.mean([theta[i] - start[i] for i in some], axis=0)
            c = c + len(some) / N * np.mean([new[i] - own[i] for i in some], axis=0)
            own |= new
        found.append((x, c, np.mean(list(own.values()), axis=0)))
    return np.array(found)


@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (3, 0.7)])
def test_it_is_a_plain_loop_whatever_fires_and_c_is_the_mean_of_all(steps, rate):
    v, v_hat = random_events(60)
    falling = Diminishing(0.1, gamma=10.0)
    models = after_each(Scaffold(steps, server_rate=rate), v, v_hat, falling)[1:, N].numpy()
    found = loop(v, v_hat, steps, rate, lambda k: float(falling(np.array([k]))[0]))
    assert np.abs(models - found[:, 0]).max() < 1e-10
    assert np.abs(found[:, 1] - found[:, 2]).max() < 1e-10


def test_without_variates_the_first_round_is_that_of_fedavg():
    v, v_hat = np.ones((6, N + 1), dtype=bool), np.ones((6, N), dtype=bool)
    here, there = (after_each(rule, v, v_hat)[-1, N] for rule in (Scaffold(5), FedAvg(5)))
    assert (here - there).abs().max() < 1e-12


def test_a_round_sends_two_models_down_and_two_up():
    assert 2 * 2 * Scaffold().sent(10) == 4 * 40  # two uses, both ways counted
