"""Exact although clients and links are sporadic: every method that says so, and where DSpodFL goes instead."""

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, MODEL, OPTIMUM, RING, B, D, error, minimizer, models
from tests.algorithms.test_contract import FACTS, made
from tests.worlds import final, make_run

from dspodfl.algorithms import ALGORITHMS, Constant
from dspodfl.algorithms.rules import simultaneous
from dspodfl.network.laws import FixedValues

EXACT = [name for name, entry in ALGORITHMS.items() if entry.exact and entry.sporadic]
SPORADIC = {"d": D.tolist(), "b": B.tolist()}
BIASED = torch.from_numpy(minimizer(D))
"""The minimizer of Σ d_i F_i."""


def test_some_methods_say_so():
    assert {"gradient_tracking", "sporadic_scaffnew", "extra"} <= set(EXACT)


@pytest.mark.parametrize("name", EXACT)
def test_a_method_that_is_exact_and_sporadic_ends_at_the_solution_for_several_seeds(name):
    schedule, rule = made(name)
    graph = schedule.graph(RING) if hasattr(schedule, "graph") else RING
    rates = {"sgd": FixedValues(D.tolist()), "link": FixedValues(np.resize(B, graph.links).tolist())}
    how = {"data": DATA, "graph": graph, "schedule": schedule, "learning_rate": Constant(0.05), **rates}
    runs, iterations = [make_run(seed=seed, **how) for seed in (11, 12, 13)], FACTS[name].get("iterations", 8000)
    found = final(runs, MODEL, iterations=iterations, rule=rule, initial=[torch.zeros(graph.n, 3) for _ in runs])
    assert max(error(theta) for theta in found) < 1e-10


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_dspodfl_stalls_there(alpha):
    found = [error(models(simultaneous, alpha=alpha, iterations=4000, seed=seed, **SPORADIC)) for seed in (11, 12, 13)]
    assert min(found) > 0.1


def average(**how):
    """The average model, and its mean over several seeds long after the start. Shape: (3,)."""
    long = [(seed, iterations) for seed in range(6) for iterations in (6000, 9000)]
    ends = [models(simultaneous, alpha=0.005, iterations=iterations, seed=seed, **how) for seed, iterations in long]
    return torch.stack([theta.mean(dim=0) for theta in ends]).mean(dim=0)


def test_the_average_model_of_dspodfl_goes_to_the_minimizer_that_busy_clients_pull_to():
    found = average(**SPORADIC)
    assert float((found - OPTIMUM).norm()) == pytest.approx(0.366, abs=0.03)
    assert float((found - BIASED).norm()) < 0.03
    assert float((BIASED - OPTIMUM).norm()) > 0.3


def test_where_clients_are_equally_busy_it_goes_to_the_solution():
    found = average(d=float(np.mean(D)), b=B.tolist())
    assert float((found - OPTIMUM).norm()) < 0.03
