"""K-GT: gradient tracking with local steps; exact, also where clients take unequally many steps a round."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.algorithms.instance import RING, D, N, error, models, worst
from tests.algorithms.listed import Listed
from tests.algorithms.loops import (
    as_array,
    fired,
    gradient,
    mixed,
    played,
    random_events,
    rates,
    start,
    states,
    weights,
    zeros,
)

from dspodfl import InputError
from dspodfl.algorithms import Algorithm, bytes_sent, make
from dspodfl.algorithms.methods.gradient_tracking import Tracking
from dspodfl.algorithms.methods.kgt import Kgt
from dspodfl.algorithms.schedules import dfedavg

CONTRACT = {"settings": {"period": 3}}


@pytest.mark.parametrize("settings", [{"period": 5}, {"period": 1}, {"period": 5, "eta": 0.6}])
def test_it_ends_at_the_solution(settings):
    schedule, rule = make(Algorithm("a", schedule="kgt", rule="kgt", settings=settings))
    assert worst(rule, schedule=schedule, alpha=0.02, iterations=5000, below=1e-11) < 1e-11


def sporadic_rounds(iterations=4000, seed=0):
    """Clients step with d_i; every sixth iteration all links exchange."""
    v = np.random.default_rng(seed).random((iterations, N)) < D
    exchange = np.arange(iterations) % 6 == 5
    v[exchange] = False
    return Listed(v, np.repeat(exchange[:, None], RING.links, 1))


@dataclass(frozen=True)
class AlwaysCorrects(Kgt):
    """V on the gradient alone: a client that does not compute moves along its correction."""

    def step(self, theta, state, at):
        c, start, far = state
        waiting = at.lr * (1 - at.v) * (at.k % 6 != 5)
        return super().step(theta - waiting * c, (c, start, far + waiting), at)


def test_the_mutant_without_skipped_steps_is_the_rule():
    one, other = (models(rule, schedule=dfedavg(5), iterations=60) for rule in (Kgt(), AlwaysCorrects()))
    assert (one - other).abs().max() < 1e-12


def test_clients_may_take_unequally_many_steps_a_round_if_what_they_skip_vanishes_at_the_solution():
    rounds = sporadic_rounds()
    right, wrong = (
        error(models(rule, schedule=rounds, alpha=0.02, iterations=4000)) for rule in (Kgt(), AlwaysCorrects())
    )
    assert right < 1e-10
    assert wrong > 0.05


def test_a_step_and_an_exchange_in_every_iteration_are_gradient_tracking():
    one, other = (models(rule, schedule="dgd", iterations=60) for rule in (Kgt(), Tracking("atc")))
    assert (one - other).abs().max() < 1e-12


def loop(v, v_hat, eta):
    theta, c, r = start(), zeros(), weights()
    begun, far = start(), dict.fromkeys(range(N), 0.0)
    for k, alpha in enumerate(rates()):
        for i in range(N):
            if v[k, i]:
                theta[i] = theta[i] - alpha * (gradient(i, theta[i]) + c[i])
                far[i] += alpha
        links = fired(v_hat[k])
        z = {i: (begun[i] - theta[i]) / far[i] if far[i] else np.zeros(3) for i in range(N)}
        there = {i: begun[i] - eta * (begun[i] - theta[i]) for i in range(N)}
        at_neighbours, gradients = mixed(there, links, r), mixed(z, links, r)
        for i in {end for link in links for end in link}:
            theta[i], c[i] = at_neighbours[i], c[i] - z[i] + gradients[i]
            begun[i], far[i] = theta[i].copy(), 0.0
    return as_array(theta)


@pytest.mark.parametrize("eta", [1.0, 0.6])
def test_the_rule_is_a_loop_over_clients_and_links(eta):
    v, v_hat = random_events()
    assert np.abs(played(Kgt(eta), v, v_hat) - loop(v, v_hat, eta)).max() < 1e-10


def test_corrections_always_sum_to_zero():
    for after in states(Kgt(), *random_events())[20::10]:
        c = after.clients["rule.0"]
        assert c.sum(dim=0).abs().max() < 1e-12 < c.abs().max()


def test_a_use_sends_model_and_mean_gradient():
    assert bytes_sent(Kgt(), 10) == 4 * (10 + 10)


@pytest.mark.parametrize(("key", "value"), [("eta", 0), ("eta", float("inf")), ("eta", True), ("period", 0)])
def test_settings_out_of_range_are_refused(key, value):
    with pytest.raises(InputError, match=rf"algorithms\.settings\.{key}"):
        make(Algorithm("a", schedule="kgt", rule="kgt", settings={key: value}))
