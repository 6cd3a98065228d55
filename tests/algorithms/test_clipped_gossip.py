"""ClippedGossip: its degenerate cases, its bound, and a plain loop."""

import math

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.attacked import ATTACKERS, HONEST, START, N, consensus, trained
from tests.algorithms.instance import B, D
from tests.algorithms.listed import random_events
from tests.worlds import scattered

from dspodfl.algorithms import ALGORITHMS, Algorithm, bytes_sent, make
from dspodfl.algorithms.attacks import Alie, Dissensus, Noise
from dspodfl.algorithms.methods.clipped_gossip import ClippedGossip
from dspodfl.algorithms.rules import RULES
from dspodfl.errors import InputError
from dspodfl.network import Events, WeightedTopology
from dspodfl.network.topology import Static

CONTRACT = {"moves_the_mean": True}


def sporadic(rule, iterations=300):
    return instance.models(rule, iterations=iterations, d=D.tolist(), b=B.tolist())


def test_an_infinite_tau_is_adapt_then_combine_to_the_bit():
    assert torch.equal(sporadic(ClippedGossip(tau=math.inf)), sporadic(RULES["adapt_then_combine"]))


def test_a_tau_of_zero_is_local_sgd_to_the_bit():
    alone = instance.models(RULES["adapt_then_combine"], schedule=_Alone(), iterations=300)
    assert torch.equal(instance.models(ClippedGossip(tau=0.0), iterations=300), alone)


class _Alone:
    """All clients step, and no link fires."""

    def __call__(self, k, part, rates):
        return Events(np.ones((len(k), len(part.client)), dtype=bool), np.zeros((len(k), len(part.link)), dtype=bool))


def test_a_large_tau_is_nearly_an_infinite_one():
    assert (sporadic(ClippedGossip(tau=1e9)) - sporadic(ClippedGossip(tau=math.inf))).abs().max() < 1e-12


def test_assuming_no_attacker_clips_nothing():
    assert (sporadic(ClippedGossip(delta=0.0)) - sporadic(ClippedGossip(tau=math.inf))).abs().max() < 1e-12


def tau_of(far, weight, delta):
    """The distance of the nearest neighbour beyond which the weight is at most δ, from dictionaries."""
    for j in sorted(far, key=far.get):
        if sum(weight[other] for other in far if far[other] > far[j]) <= delta + 1e-12:
            return far[j]
    return math.inf


def plain_loop(v, v_hat, start, *, tau, delta, beta, alpha=0.05):
    """Client by client, with dictionaries."""
    graph = instance.RING
    weights = WeightedTopology(Static(graph), "metropolis").at(np.zeros(1, dtype=np.int64))[1][0]
    theta, m = {i: start[i].numpy() for i in range(8)}, {i: np.zeros(3) for i in range(8)}
    for k in range(len(v)):
        half = dict(theta)
        for i in range(8):
            if v[k, i]:
                x, y = instance.X[i], instance.Y[i]
                g = x * (x @ theta[i] - y) + instance.L2 * theta[i]
                m[i] = (1 - beta) * m[i] + beta * g
                half[i] = theta[i] - alpha * m[i]
        theta = dict(half)
        for i in range(8):
            weight = {}
            for e, (a, b) in enumerate(graph.edges.tolist()):
                if v_hat[k, e] and i in (a, b):
                    weight[a + b - i] = weights[e]
            gap = {j: half[j] - half[i] for j in weight}
            far = {j: float(np.linalg.norm(gap[j])) for j in gap}
            most = tau_of(far, weight, delta) if tau == "adaptive" else tau
            for j, r in weight.items():
                theta[i] = theta[i] + r * min(1.0, most / far[j] if far[j] else 1.0) * gap[j]
    return torch.from_numpy(np.stack([theta[i] for i in range(8)]))


@pytest.mark.parametrize(
    "settings", [{"tau": 0.3}, {"delta": 0.3}, {"delta": 0.3, "beta": 0.2}, {"delta": 0.6}], ids=str
)
def test_it_is_a_plain_loop(settings):
    v, v_hat = random_events(50)
    start = scattered(instance.MODEL, 8, 0, torch.float64)
    found = trained(ClippedGossip(**settings), v, v_hat, start=start)
    whole = {"tau": "adaptive", "delta": 0.1, "beta": 1.0} | settings
    assert (found - plain_loop(v, v_hat, start, **whole)).abs().max() < 1e-10
    assert (found - plain_loop(v, v_hat, start, **whole | {"tau": math.inf})).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [Alie(30.0), Dissensus(50.0), Noise(1e6)], ids=lambda kind: type(kind).__name__)
def test_attackers_move_a_client_by_at_most_tau_times_their_weight(kind):
    tau, rule = 0.05, ClippedGossip(tau=0.05)
    apart = (consensus(rule, kind, rounds=1) - consensus(rule, _Silent(), rounds=1))[HONEST].norm(dim=1)
    bound = tau * len(ATTACKERS) / N
    assert apart.max() <= bound * (1 + 1e-12)
    assert apart.max() > 0.7 * bound  # all of it, where attackers agree


class _Silent:
    """Attackers send each receiver its own model: they add nothing."""

    alters_data = False
    by_receiver = True

    def messages(self, x, attacker, at):
        return x


class _Broken(_Silent):
    """Attackers send what is not finite."""

    def __init__(self, value):
        self.value = value

    def messages(self, x, attacker, at):
        return torch.full_like(x, self.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rule", [ClippedGossip(tau=0.3), ClippedGossip(delta=0.2)], ids=["fixed", "adaptive"])
def test_messages_that_are_not_finite_add_nothing(rule, value):
    found = consensus(rule, _Broken(value), rounds=100)[HONEST]
    assert found.isfinite().all() and (found - found.mean(dim=0)).abs().max() < 1e-3


def test_equal_models_stay():
    same = START[:1].expand(N, 4).clone()
    assert torch.equal(consensus(ClippedGossip(tau=0.3), start=same, rounds=5), same)


def test_momentum_of_one_is_none_and_others_keep_the_length_of_a_step():
    """A client alone goes to its minimizer whatever β is: m has the mean of gradients, not their sum."""
    ends = [instance.models(ClippedGossip(tau=0.0, beta=beta), iterations=3000) for beta in (1.0, 0.1)]
    assert (ends[0] - ends[1]).abs().max() < 1e-9
    steps = [instance.models(ClippedGossip(tau=0.0, beta=beta), iterations=1) for beta in (1.0, 0.1)]
    assert (steps[1] - 0.1 * steps[0]).abs().max() < 1e-15


@pytest.mark.parametrize(
    "bad",
    [{"tau": -1}, {"tau": "x"}, {"tau": True}, {"delta": 1}, {"delta": -0.1}, {"beta": 0}, {"beta": 1.5}],
    ids=str,
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(InputError, match=f"algorithms.settings.{next(iter(bad))}"):
        make(Algorithm("mine", schedule="clipped_gossip", rule="clipped_gossip", settings=bad))


def test_it_is_made_of_its_settings_and_sends_one_model():
    _, rule = make(Algorithm("mine", schedule="clipped_gossip", rule="clipped_gossip", settings={"tau": math.inf}))
    assert rule == ClippedGossip(tau=math.inf) and bytes_sent(rule, 10) == 40
    assert not ALGORITHMS["clipped_gossip"].takes_local
