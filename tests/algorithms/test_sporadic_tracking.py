"""Sporadic tracking: Push–Pull with held gradients, clients and arcs each at its own rate."""

from dataclasses import dataclass

from tests.algorithms.instance import DIGRAPH, D, error, models, worst

from dspodfl.algorithms import Algorithm, make
from dspodfl.algorithms.arcs import pulled_and_pushed
from dspodfl.algorithms.methods.push_pull import PushPull

RATES = {"d": D.tolist(), "b": [0.25 + 0.75 * ((5 * e) % 12) / 11 for e in range(12)]}


@dataclass(frozen=True)
class ZeroNotHeld(PushPull):
    """The wrong version that counts a silent client's gradient as 0."""

    def step(self, theta, state, at):
        before, held = state
        new = at.gradient(theta, at.v)
        y = before + (new - held)
        theta, before = pulled_and_pushed(at, theta - at.lr * at.v * y, y)
        return theta, (before, new)


def made(name):
    return make(Algorithm(name, schedule=name, rule=name))


def test_it_is_exact_although_clients_and_arcs_are_sporadic_each_at_its_own_rate():
    schedule, rule = made("sporadic_tracking")
    assert worst(rule, schedule=schedule, graph=DIGRAPH, iterations=8000, **RATES, below=1e-14) < 1e-14


def test_a_silent_client_that_counts_as_zero_ends_elsewhere():
    assert 0.1 < error(models(ZeroNotHeld(), graph=DIGRAPH, iterations=3000, **RATES)) < 3


def test_push_pull_is_the_same_rule_where_every_client_computes_always():
    (_, rule), (schedule, other) = made("sporadic_tracking"), made("push_pull")
    assert rule == other
    p, q = schedule.probabilities([0], _rates())
    assert (p == 1).all() and q.shape == (1, 2 * DIGRAPH.links)


def _rates():
    from dspodfl.network.laws import FixedValues
    from dspodfl.network.rates import Rates

    return Rates(DIGRAPH, 0, FixedValues(0.5), FixedValues(0.5))
