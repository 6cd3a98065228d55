"""LED: local steps with a correction that an exchange renews; exact where DFedAvg stalls."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.algorithms.instance import RING, N, error, models, worst
from tests.algorithms.loops import as_array, fired, gradient, mixed, played, random_events, rates, start, weights, zeros

from dspodfl.algorithms import Algorithm, bytes_sent, make
from dspodfl.algorithms.corrections import Together
from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.algorithms.methods.led import Led
from dspodfl.algorithms.rules import simultaneous
from dspodfl.algorithms.schedules import dfedavg

CONTRACT = {
    "settings": {"period": 3},
    "moves_the_mean": True,  # rounds of unequal length, which its own schedule has not
}


@pytest.mark.parametrize("settings", [{"period": 5}, {"period": 1}, {"period": 5, "s": 1.0}])
@pytest.mark.parametrize("alpha", [0.02, 0.1])
def test_it_ends_at_the_solution(settings, alpha):
    schedule, rule = make(Algorithm("a", schedule="led", rule="led", settings=settings))
    assert worst(rule, schedule=schedule, alpha=alpha, iterations=6000 if alpha < 0.1 else 3000, below=1e-11) < 1e-11


def test_it_ends_there_although_the_learning_rate_falls():
    assert worst(Led(), schedule=dfedavg(5), alpha=Diminishing(0.2, gamma=300.0), iterations=4000, below=1e-11) < 1e-11


def test_dfedavg_stalls_there():
    assert error(models(simultaneous, schedule=dfedavg(5), iterations=2000)) > 0.3


@dataclass(frozen=True)
class WholeDual(Led):
    """β = 1 in place of 1/D: the correction is over α, and not over the way of the round."""

    def step(self, theta, state, at):
        h, far = state
        half = theta - at.lr * at.v * (at.gradient(theta) - h)
        change = self.s * (at.mix(half) - half)
        return half + change, (h + change / at.lr, far)


def test_a_dual_variable_that_counts_in_every_local_step_diverges():
    assert not error(models(WholeDual(), schedule=dfedavg(5), iterations=1000)) < 1e3


@pytest.mark.parametrize("s", [0.5, 1.0])
def test_one_local_step_a_round_is_exact_diffusion_or_d2(s):
    """On a schedule whose step and exchange are in one iteration."""
    one, other = (models(rule, schedule="dgd", iterations=60) for rule in (Led(s), Together(s)))
    assert (one - other).abs().max() < 1e-12


def published(rounds, steps, alpha):
    """Φ ← Φ − αG − βy from Θ, D times; Θ ← PΦ, y ← y + Φ − PΦ; with P = (I + W)/2, β = 1/D, as its author writes it."""
    links, r = fired(np.ones(RING.links)), weights()
    theta, y = {i: np.zeros(3) for i in range(N)}, zeros()
    for _ in range(rounds):
        phi = dict(theta)
        for _ in range(steps):
            phi = {i: phi[i] - alpha * gradient(i, phi[i]) - y[i] / steps for i in phi}
        through = mixed(phi, links, r)
        theta = {i: 0.5 * (phi[i] + through[i]) for i in phi}
        y = {i: y[i] + phi[i] - theta[i] for i in phi}
    return as_array(theta)


@pytest.mark.parametrize("steps", [1, 4])
def test_it_is_the_published_form(steps):
    found = models(Led(), schedule=dfedavg(steps), iterations=10 * (steps + 1)).numpy()
    assert np.abs(found - published(10, steps, 0.05)).max() < 1e-12


def loop(v, v_hat, s):
    theta, h, far, r = start(), zeros(), dict.fromkeys(range(N), 0.0), weights()
    for k, alpha in enumerate(rates()):
        for i in range(N):
            if v[k, i]:
                theta[i] = theta[i] - alpha * (gradient(i, theta[i]) - h[i])
                far[i] += alpha
        links = fired(v_hat[k])
        through = mixed(theta, links, r)
        for i in {end for link in links for end in link}:
            change = s * (through[i] - theta[i])
            theta[i] = theta[i] + change
            h[i] = h[i] + (change / far[i] if far[i] > 0 else 0.0)
            far[i] = 0.0
    return as_array(theta)


def test_the_rule_is_a_loop_over_clients_and_links():
    v, v_hat = random_events()
    assert np.abs(played(Led(0.7), v, v_hat) - loop(v, v_hat, 0.7)).max() < 1e-10


def test_a_use_sends_one_model():
    assert bytes_sent(Led(), 10) == 4 * 10
