"""Sporadic Scaffnew: exact although every client and link fires by itself; what the factor q is for."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.algorithms.instance import RING, B, D, error, models, worst
from tests.algorithms.loops import STILL, corrected, played, random_events, states

from dspodfl import InputError
from dspodfl.algorithms import Algorithm, bytes_sent, make
from dspodfl.algorithms.corrections import FACTORS, ProxSkip, Together, keep

CONTRACT = {"moves_the_mean": True}  # V h does not sum to 0, where clients draw; the test below says what is conserved
SPORADIC = {"d": D.tolist(), "b": B.tolist()}
RARE = {"d": 0.3, "b": 0.05}


@pytest.mark.parametrize("rates", [{}, {"b": B.tolist()}, {"d": D.tolist()}, SPORADIC], ids=["-", "b", "d", "d, b"])
def test_it_ends_at_the_solution_whatever_is_sporadic(rates):
    assert worst(ProxSkip(), iterations=3500, **rates, below=1e-13) < 1e-13


@pytest.mark.parametrize("factor", FACTORS)
def test_both_factors_end_there_for_several_seeds(factor):
    rule = ProxSkip(factor=factor)
    assert worst(rule, iterations=3500, **SPORADIC, seeds=(1, 2), below=1e-13) < 1e-13


def test_rare_links_and_slow_clients_are_no_obstacle_and_the_ratio_is_faster():
    slow, fast = (error(models(ProxSkip(factor=factor), iterations=5000, **RARE)) for factor in FACTORS)
    assert fast < 1e-9 < 10 * slow < 1


# --- plausible wrong versions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong(ProxSkip):
    """``factor`` 1 where q belongs, or V on the gradient alone."""

    everything_counts: bool = False
    indicator_on_gradient: bool = False

    def step(self, theta, h, at):
        def receive(x, mine, theirs, memory, arc):
            pull = 0.5 * arc.into * (theirs - mine)
            return (pull, pull if self.everything_counts else arc.probability * pull), None

        along = at.v * at.gradient(theta) - h if self.indicator_on_gradient else at.v * (at.gradient(theta) - h)
        half = theta - at.lr * along
        (change, flow), _ = at.exchange(half, keep, receive)
        return half + change, h + flow / at.lr


def test_the_mutant_without_a_fault_is_the_rule():
    v, v_hat = random_events()
    assert np.abs(played(Wrong(), v, v_hat) - played(ProxSkip(), v, v_hat)).max() < 1e-12


def test_flow_over_rare_links_that_counts_in_full_diverges():
    assert not error(models(Wrong(everything_counts=True), iterations=4000, **RARE)) < 100
    assert error(models(ProxSkip(), iterations=4000, **RARE)) < 0.1


def test_an_indicator_on_the_gradient_alone_does_not_end_there():
    rule = Wrong(indicator_on_gradient=True)
    found = [error(models(rule, iterations=3000, seed=seed, **SPORADIC)) for seed in (0, 1)]
    assert all(0.2 < value < 1.0 for value in found)


# --- degenerate cases, the loop, and what is conserved ----------------------------------------------------------


def test_where_all_links_always_fire_it_is_exact_diffusion_although_rates_are_below_one():
    """q is what the schedule fires with, not b."""
    one, other = (models(rule, schedule="dgd", iterations=60, **SPORADIC) for rule in (ProxSkip(), Together(0.5)))
    assert (one - other).abs().max() < 1e-12


def test_the_ratio_is_one_where_links_are_as_frequent_as_clients():
    one, other = (
        models(rule, schedule=schedule, iterations=60, d=0.4, b=0.4, seed=3)
        for rule, schedule in ((ProxSkip(factor="ratio"), "dspodfl"), (Wrong(everything_counts=True), "dspodfl"))
    )
    assert (one - other).abs().max() < 1e-12


@pytest.mark.parametrize("s", [0.5, 0.8])
@pytest.mark.parametrize("factor", FACTORS)
def test_the_rule_is_a_loop_over_clients_and_links(factor, s):
    v, v_hat = random_events(1)
    counts = {}
    for (i, j), q in zip(map(tuple, RING.edges.tolist()), B, strict=True):
        counts[i, j] = q if factor == "probability" else min(1, q / max(D[i], D[j]))
    found = played(ProxSkip(s, factor), v, v_hat)
    assert np.abs(found - corrected(v, v_hat, factor=counts, s=s)).max() < 1e-10


def test_corrections_always_sum_to_zero_and_the_mean_stays_where_every_client_steps():
    v, v_hat = random_events(2, iterations=200)
    for after in states(ProxSkip(), v, v_hat)[20::20]:
        (h,) = after.clients.values()
        assert h.sum(dim=0).abs().max() < 1e-12 < h.abs().max()
    found = states(ProxSkip(), np.ones_like(v), v_hat, **STILL)
    assert (found[-1][0].mean(dim=0) - found[0][0].mean(dim=0)).abs().max() < 1e-12


def test_at_the_solution_random_events_move_nothing():
    theta = models(ProxSkip(), iterations=4000, **SPORADIC)
    later = models(ProxSkip(), iterations=4020, **SPORADIC)
    assert torch.equal(theta, later) or (theta - later).abs().max() < 1e-15


def test_a_use_sends_one_model_and_a_number_where_the_ratio_needs_it():
    assert bytes_sent(ProxSkip(), 10) == 4 * 10
    assert bytes_sent(ProxSkip(factor="ratio"), 10) == 4 * (10 + 1)


@pytest.mark.parametrize(("key", "value"), [("s", 0.0), ("s", 1.5), ("s", True), ("s", "half"), ("factor", "one")])
def test_settings_out_of_range_are_refused(key, value):
    name = "sporadic_scaffnew"
    with pytest.raises(InputError, match=rf"algorithms\.settings\.{key}"):
        make(Algorithm(name, schedule=name, rule=name, settings={key: value}))
