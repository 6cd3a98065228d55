"""Quasi-global momentum ends where gossip SGD of the same step size does; local momentum does not."""

import numpy as np
import pytest
from tests.algorithms import instance
from tests.algorithms.instance import EDGES, N
from tests.algorithms.listed import random_events, states, still
from tests.algorithms.loops import beginning, gradient, mixed

from dspodfl.algorithms import Algorithm, bytes_sent, local, make, with_local
from dspodfl.algorithms.methods.quasi_global_momentum import QuasiGlobal
from dspodfl.algorithms.rules import RULES
from dspodfl.errors import InputError

CONTRACT = {"moves_the_mean": True}
"""Where some clients do not compute: they keep the momentum of an exchange that the others have replaced."""

GOSSIP = RULES["adapt_then_combine"]


def end(rule, **how):
    return instance.models(rule, schedule="dgd", alpha=0.02, iterations=4000, **how)


def test_it_ends_exactly_where_gossip_sgd_of_the_same_step_size_does():
    assert abs(instance.error(end(QuasiGlobal())) - 0.105) < 5e-4
    assert (end(QuasiGlobal()) - end(GOSSIP)).abs().max() < 1e-10


class Unmixed(QuasiGlobal):
    """The plausible wrong version: momentum along the own step, before the exchange."""

    def step(self, theta, m, at):
        half = theta - at.lr * at.v * (self.beta * m + at.gradient(theta))
        new = self.mu * m + (1 - self.mu) / at.lr * (theta - half)
        return at.mix(half), new.where(at.v > 0, m)


@pytest.mark.parametrize("wrong", [with_local(GOSSIP, local.momentum(0.9)), Unmixed()], ids=["local", "unmixed"])
def test_momentum_of_the_own_gradients_ends_elsewhere(wrong):
    assert (end(wrong) - end(GOSSIP)).abs().max() > 0.05


def plain_loop(start, v, v_hat, alpha, beta, mu):
    theta, m = {i: start[i] for i in range(N)}, {i: np.zeros(3) for i in range(N)}
    for k in range(len(v)):
        half = {i: theta[i] - v[k, i] * alpha * (beta * m[i] + gradient(i, theta[i])) for i in range(N)}
        new = mixed(half, [edge for e, edge in enumerate(EDGES) if v_hat[k, e]])
        m = {i: mu * m[i] + (1 - mu) * (theta[i] - new[i]) / alpha if v[k, i] else m[i] for i in range(N)}
        theta = new
    return np.stack([theta[i] for i in range(N)])


@pytest.mark.parametrize(("beta", "mu"), [(0.9, 0.9), (0.5, 0.8)])
def test_it_is_its_plain_loop(beta, mu):
    v, v_hat = random_events(50)
    start = beginning()
    found = states(QuasiGlobal(beta, mu), v, v_hat, start=start, alpha=0.1)[-1][0].numpy()
    assert np.abs(found - plain_loop(start.numpy(), v, v_hat, 0.1, beta, mu)).max() < 1e-10


def test_without_momentum_it_is_gossip_sgd():
    v, v_hat = random_events(50)
    plain, ours = (states(rule, v, v_hat)[-1][0] for rule in (GOSSIP, QuasiGlobal(beta=0.0)))
    assert (plain - ours).abs().max() < 1e-12


def test_the_mean_stays_where_all_clients_compute():
    v, v_hat = random_events(200)
    model, data = still(3)
    found = states(QuasiGlobal(), np.ones_like(v), v_hat, model=model, data=data)
    assert (found[-1][0].mean(dim=0) - found[0][0].mean(dim=0)).abs().max() < 1e-12


def test_it_sends_one_model():
    assert bytes_sent(QuasiGlobal(), 10) == 40


@pytest.mark.parametrize("key", ["beta", "mu"])
@pytest.mark.parametrize("value", [1.0, -0.1, True, "x"])
def test_shares_outside_their_range_are_refused(key, value):
    with pytest.raises(InputError, match=rf"algorithms\.settings\.{key} = .*at least 0 and less than 1"):
        make(Algorithm("x", schedule="quasi_global_momentum", rule="quasi_global_momentum", settings={key: value}))
