"""Decentralized Scaffnew: local steps in between, all links together with a probability, and still exact."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.algorithms.instance import RING, N, error, models, worst
from tests.algorithms.loops import STILL, corrected, played, states

from dspodfl import InputError
from dspodfl.algorithms import Algorithm, bytes_sent, make
from dspodfl.algorithms.common_draw import Common, fires, together
from dspodfl.algorithms.corrections import Together

NAME = "decentralized_scaffnew"
CONTRACT = {"moves_the_mean": True}  # V h does not sum to 0, where clients draw; its own schedule has V = I


def made(**settings):
    return make(Algorithm(NAME, schedule=NAME, rule=NAME, settings=settings))


@pytest.mark.parametrize("settings", [{}, {"probability": 0.3}, {"s": 1.0}], ids=["0.1", "0.3", "s = 1"])
def test_it_ends_at_the_solution(settings):
    schedule, rule = made(**settings)
    assert schedule.probability == rule.probability
    assert worst(rule, schedule=schedule, iterations=6000, below=1e-12) < 1e-12


def test_it_ends_there_for_several_seeds():
    schedule, rule = made(probability=0.2)
    assert worst(rule, schedule=schedule, iterations=4000, seeds=(1, 2, 3), below=1e-12) < 1e-12


@dataclass(frozen=True)
class WithoutCorrection(Together):
    def step(self, theta, h, at):
        return super().step(theta, h, at)[0], h


def test_without_the_correction_it_stalls():
    assert error(models(WithoutCorrection(0.5, 0.1), schedule=together(0.1), iterations=2000)) > 0.5


def test_a_correction_that_counts_in_full_diverges():
    """ϖ is what the flow has to be multiplied by: factor 1 instead."""
    assert not error(models(Together(0.5, 1.0), schedule=together(0.1), alpha=0.05, iterations=2000)) < 1e3


def test_with_probability_one_it_is_exact_diffusion():
    schedule, rule = made(probability=1.0)
    other = make(Algorithm("b", schedule="exact_diffusion", rule="exact_diffusion"))
    one, two = models(rule, schedule=schedule, iterations=60), models(other[1], schedule=other[0], iterations=60)
    assert (one - two).abs().max() < 1e-12


@pytest.mark.parametrize("s", [0.5, 1.0])
def test_the_rule_is_a_loop_over_clients_and_links(s):
    exchange = fires(np.arange(50), 0, 0.3)
    v, v_hat = np.ones((50, N), dtype=bool), np.repeat(exchange[:, None], RING.links, 1)
    v[::6, 1] = False
    factor = {tuple(edge): 0.3 for edge in RING.edges.tolist()}
    assert 0 < exchange.sum() < 50
    assert np.abs(played(Together(s, 0.3), v, v_hat) - corrected(v, v_hat, factor=factor, s=s)).max() < 1e-10


def test_corrections_sum_to_zero_and_without_gradients_the_mean_stays():
    v, v_hat = np.ones((300, N), dtype=bool), np.repeat(fires(np.arange(300), 0, 0.3)[:, None], RING.links, 1)
    found = states(Together(0.5, 0.3), v, v_hat, **STILL)
    assert (found[-1][0].mean(dim=0) - found[0][0].mean(dim=0)).abs().max() < 1e-12
    (h,) = states(Together(0.5, 0.3), v, v_hat)[-1][1].values()
    assert h.sum(dim=0).abs().max() < 1e-12 < h.abs().max()


def test_a_use_sends_one_model():
    assert bytes_sent(made()[1], 10) == 4 * 10


@pytest.mark.parametrize("value", [0, -0.1, 1.01, "often", True])
def test_a_probability_out_of_range_is_refused(value):
    with pytest.raises(InputError, match=r"algorithms\.settings\.probability"):
        made(probability=value)
    assert isinstance(made(probability=1)[0], Common)
