"""Gradient tracking: exact under any mixture of sporadic clients and links, and what plausible wrong versions do."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, MODEL, RING, B, D, N, ended, error, minimizer, models, worst
from tests.algorithms.loops import (
    COMPLETE,
    ITERATIONS,
    as_array,
    descended,
    fired,
    gradient,
    mixed,
    played,
    random_events,
    rates,
    start,
    weights,
    zeros,
)
from tests.worlds import final, make_run

from dspodfl.algorithms import Constant, bytes_sent
from dspodfl.algorithms.corrections import keep
from dspodfl.algorithms.methods.gradient_tracking import FORMS, Tracking
from dspodfl.network import Graph
from dspodfl.problem.data.dataset import Federation

SPORADIC = {"d": D.tolist(), "b": B.tolist()}


@pytest.mark.parametrize("rates", [{}, {"b": B.tolist()}, {"d": D.tolist()}, SPORADIC], ids=["-", "b", "d", "d, b"])
def test_it_ends_at_the_solution_whatever_is_sporadic(rates):
    assert worst(Tracking(), iterations=3000, **rates, below=1e-14) < 1e-14


@pytest.mark.parametrize("form", FORMS)
def test_every_form_ends_at_the_solution_for_several_seeds(form):
    assert worst(Tracking(form), iterations=3000, seeds=range(1, 4), **SPORADIC, below=1e-13) < 1e-13


def test_larger_steps_suit_adapt_then_combine_and_not_diging():
    one, other = (models(Tracking(form), alpha=0.2, iterations=2000) for form in ("diging", "atc"))
    assert not error(one) < 1e3
    assert error(other) < 1e-14


# --- plausible wrong versions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Zero(Tracking):
    """A client that does not compute counts as 0, instead of its last gradient."""

    def step(self, theta, state, at):
        before, held = state
        new = at.v * at.gradient(theta)
        y = before + (new - held)
        return at.mix(theta, minus=at.lr * at.v * y), (at.mix(y), new)


def test_a_silent_client_that_counts_as_zero_does_not_end_there():
    found = [error(theta) for theta in ended(Zero(), iterations=3000, seeds=range(3), **SPORADIC)]
    assert all(0.2 < value < 1.1 for value in found)


@dataclass(frozen=True)
class NeverStarts(Tracking):
    """Y = 0 with H = G(Θ) before the first step."""

    def step(self, theta, state, at):
        if at.k == 0:
            state = (state[0], at.gradient(theta))
        return super().step(theta, state, at)


def test_a_tracker_that_starts_at_zero_with_known_gradients_never_leaves():
    solution = float(np.linalg.norm(minimizer(np.ones(N))))
    assert error(models(NeverStarts(), iterations=500)) == pytest.approx(solution, abs=1e-12)


SHARED = [sum(r for link, r in weights().items() if i in link) for i in range(N)]
OWN = 1.0 - torch.tensor(SHARED, dtype=torch.float64)[:, None]


@dataclass(frozen=True)
class LeftOut(Tracking):
    """The weight of a silent neighbour is left out, instead of being returned to the client itself."""

    def step(self, theta, state, at):
        def mix(x):
            return OWN * x + at.exchange(x, keep, lambda x, mine, theirs, memory, arc: (arc.into * theirs, None))[0]

        before, held = state
        new = at.gradient(theta).where(at.v > 0, held)
        y = before + (new - held)
        return mix(theta) - at.lr * at.v * y, (mix(y), new)


def test_silent_weight_that_is_not_returned_ends_at_zero():
    theta = models(LeftOut(), iterations=1500, **SPORADIC)
    assert theta.abs().max() < 1e-6
    assert worst(LeftOut(), iterations=1500, below=1e-12) < 1e-12  # where all links fire, there is none


# --- degenerate cases, and the loop -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_one_client_alone_makes_gradient_descent(form):
    alone = Federation(DATA.dataset, (np.array([3]),), {})
    run = make_run("dgd", data=alone, graph=Graph.from_edges(1, []), learning_rate=Constant(0.1))
    zero = torch.zeros(1, 3, dtype=torch.float64)
    (found,) = final([run], MODEL, iterations=40, rule=Tracking(form), initial=[zero])
    assert np.abs(found.numpy()[0] - descended(np.zeros(3), 40, 0.1, [3])).max() < 1e-12


def test_aug_dgm_where_mixing_averages_everybody_is_gradient_descent():
    found = models(Tracking("aug_dgm"), graph=COMPLETE, alpha=0.1, iterations=40)
    assert np.abs(found.numpy() - descended(np.zeros(3), 40, 0.1)).max() < 1e-12


def loop(form, v, v_hat):
    theta, held, before, r = start(), zeros(), zeros(), weights()
    for k, alpha in enumerate(rates()):
        links = fired(v_hat[k])
        new = {i: gradient(i, theta[i]) if v[k, i] else held[i] for i in range(N)}
        y = {i: before[i] + new[i] - held[i] for i in range(N)}
        if form == "aug_dgm":
            y = mixed(y, links, r)
        move = {i: alpha * y[i] if v[k, i] else np.zeros(3) for i in range(N)}
        if form == "diging":
            there = mixed(theta, links, r)
            theta = {i: there[i] - move[i] for i in range(N)}
        else:
            theta = mixed({i: theta[i] - move[i] for i in range(N)}, links, r)
        before, held = y if form == "aug_dgm" else mixed(y, links, r), new
    return as_array(theta)


@pytest.mark.parametrize("form", FORMS)
def test_the_rule_is_a_loop_over_clients_and_links(form):
    v, v_hat = random_events()
    assert len(v) == ITERATIONS and len(v_hat[0]) == RING.links
    assert np.abs(played(Tracking(form), v, v_hat) - loop(form, v, v_hat)).max() < 1e-10


def test_a_use_sends_model_and_tracker():
    assert bytes_sent(Tracking(), 10) == 4 * (10 + 10)
