"""EXTRA with its correction as a state: the two-step form where all fires, and exact where it is sporadic."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.algorithms.instance import RING, B, D, error, models, worst
from tests.algorithms.loops import as_array, fired, gradient, played, random_events, rates, start, weights, zeros

from dspodfl.algorithms import bytes_sent
from dspodfl.algorithms.corrections import Extra
from dspodfl.algorithms.learning_rate import Diminishing

CONTRACT = {"moves_the_mean": True}  # V h does not sum to 0, where clients draw
SPORADIC = {"d": D.tolist(), "b": B.tolist()}


@pytest.mark.parametrize("rates", [{}, {"b": B.tolist()}, {"d": D.tolist()}, SPORADIC], ids=["-", "b", "d", "d, b"])
def test_it_ends_at_the_solution_whatever_is_sporadic(rates):
    assert worst(Extra(), iterations=3500, **rates, below=1e-13) < 1e-13


def test_it_ends_there_for_several_seeds():
    assert worst(Extra(), iterations=3500, **SPORADIC, seeds=(1, 2), below=1e-13) < 1e-13


@dataclass(frozen=True)
class TwoSteps:
    """(I + W)Θ − ½(I + W)Θ₋ − α(G − G₋), Θ₁ = WΘ₀ − αG₀: the published form.

    ``own``: each gradient has the α of its own iteration, else both have the new one.
    """

    own: bool = True
    mixes: ClassVar[int] = 2

    def init(self, theta, links) -> Any:
        return theta.clone(), theta.new_zeros(theta.shape), theta.new_zeros(theta.shape)

    def step(self, theta, state, at):
        last, gradient, step = state
        new = at.gradient(theta)
        before = step if self.own else at.lr * gradient
        if at.k == 0:
            now = at.mix(theta) - at.lr * new
            at.mix(last)
        else:
            now = theta + at.mix(theta) - 0.5 * (last + at.mix(last)) - (at.lr * new - before)
        return now, (theta, new, at.lr * new)


@pytest.mark.parametrize("iterations", [1, 2, 3, 60])
def test_where_everything_fires_it_is_the_two_step_form(iterations):
    one, other = (models(rule, iterations=iterations) for rule in (Extra(), TwoSteps()))
    assert (one - other).abs().max() < 1e-12


def test_a_learning_rate_that_falls_does_not_hurt_it_as_it_hurts_the_two_step_form():
    alpha = Diminishing(0.3, gamma=200.0)
    found = [error(models(rule, iterations=4000, alpha=alpha)) for rule in (Extra(), TwoSteps(), TwoSteps(own=False))]
    assert found[0] < 1e-13
    assert 1e-7 < found[1] < found[2] < 1e-1


def loop(v, v_hat, q):
    theta, h, r = start(), zeros(), weights()
    for k, alpha in enumerate(rates()):
        new = {i: theta[i] - alpha * (gradient(i, theta[i]) - h[i]) if v[k, i] else theta[i].copy() for i in theta}
        for i, j in fired(v_hat[k]):
            pull = r[i, j] * (theta[j] - theta[i])
            new[i], new[j] = new[i] + pull, new[j] - pull
            h[i], h[j] = h[i] + 0.5 * q[i, j] * pull / alpha, h[j] - 0.5 * q[i, j] * pull / alpha
        theta = new
    return as_array(theta)


def test_the_rule_is_a_loop_over_clients_and_links():
    v, v_hat = random_events()
    q = dict(zip(map(tuple, RING.edges.tolist()), B, strict=True))
    assert np.abs(played(Extra(), v, v_hat) - loop(v, v_hat, q)).max() < 1e-10


def test_a_use_sends_one_model():
    assert bytes_sent(Extra(), 10) == 4 * 10
