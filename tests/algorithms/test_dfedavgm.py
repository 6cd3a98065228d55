"""DFedAvgM: momentum within a round of local steps, which starts again at 0 after each exchange."""

import numpy as np
import pytest
from tests.algorithms import instance
from tests.algorithms.instance import EDGES, N
from tests.algorithms.listed import random_events, states
from tests.algorithms.loops import beginning, gradient, mixed

from dspodfl.algorithms import Algorithm, bytes_sent, local, make, with_local
from dspodfl.algorithms.methods.dfedavgm import RoundMomentum
from dspodfl.algorithms.rules import RULES
from dspodfl.errors import InputError


def made(**settings):
    return make(Algorithm("x", schedule="dfedavgm", rule="dfedavgm", settings=settings))


def ends(rule, alpha=0.02):
    schedule, _ = made(period=5)
    return instance.error(instance.models(rule, schedule=schedule, alpha=alpha, iterations=3000))


KEPT = with_local(RULES["adapt_then_combine"], local.momentum(0.9))
"""The plausible wrong version: momentum is kept across rounds."""


@pytest.mark.parametrize(
    ("rule", "error"),
    [(RoundMomentum(0.0), 0.334), (RoundMomentum(0.9), 0.543), (KEPT, 0.651)],
    ids=["without", "with", "kept"],
)
def test_it_ends_where_momentum_within_a_round_takes_it(rule, error):
    assert abs(ends(rule) - error) < 6e-4


def test_the_settings_are_those_of_the_rule_and_of_the_schedule():
    schedule, rule = made(period=3, beta=0.5)
    assert rule == RoundMomentum(0.5) and schedule.probabilities.period == 3


def plain_loop(start, v, v_hat, alpha, beta):
    theta, delta = {i: start[i] for i in range(N)}, {i: np.zeros(3) for i in range(N)}
    for k in range(len(v)):
        for i in range(N):
            if v[k, i]:
                delta[i] = beta * delta[i] - alpha * gradient(i, theta[i])
                theta[i] = theta[i] + delta[i]
        fired = [edge for e, edge in enumerate(EDGES) if v_hat[k, e]]
        theta = mixed(theta, fired)
        delta |= {i: np.zeros(3) for edge in fired for i in edge}
    return np.stack([theta[i] for i in range(N)])


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_it_is_its_plain_loop_under_any_events(share):
    v, v_hat = random_events(50, share=share)
    start = beginning()
    found = states(RoundMomentum(0.9), v, v_hat, start=start, alpha=0.1)[-1][0].numpy()
    assert np.abs(found - plain_loop(start.numpy(), v, v_hat, 0.1, 0.9)).max() < 1e-10


def test_without_momentum_it_is_dfedavg():
    schedule, _ = made(period=4)
    plain, ours = (
        instance.models(rule, schedule=schedule, alpha=0.05, iterations=60)
        for rule in (RULES["simultaneous"], RoundMomentum(0.0))
    )
    assert (plain - ours).abs().max() < 1e-12


def test_it_sends_one_model():
    assert bytes_sent(RoundMomentum(), 10) == 40


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 1}, r"settings\.beta = 1: must be a number of at least 0 and less than 1"),
        ({"period": 0}, r"settings\.period = 0: must be an integer of at least 1"),
        ({"mu": 0.9}, "allowed are period, beta"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        made(**settings)
