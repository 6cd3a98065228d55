"""Where DSpodFL goes where clients and links are sporadic, and methods that are exact there go to the solution.

That each of these methods does is shown in tests/algorithms/test_contract.py.
"""

import numpy as np
import pytest
import torch
from tests.algorithms.instance import MODEL, OPTIMUM, B, D, N, ended, error, made_run, minimizer
from tests.worlds import advance

from dspodfl.algorithms import ALGORITHMS
from dspodfl.algorithms.rules import simultaneous

EXACT = [name for name, entry in ALGORITHMS.items() if entry.exact and entry.sporadic]
SPORADIC = {"d": D.tolist(), "b": B.tolist()}
BIASED = torch.from_numpy(minimizer(D))
"""The minimizer of Σ d_i F_i."""


def test_some_methods_say_so():
    assert {"gradient_tracking", "sporadic_scaffnew", "extra"} <= set(EXACT)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_dspodfl_stalls_there(alpha):
    found = ended(simultaneous, alpha=alpha, iterations=4000, seeds=(11, 12, 13), **SPORADIC)
    assert min(map(error, found)) > 0.1


def average(**how):
    """The average model, and its mean over several seeds long after the start. Shape: (3,)."""
    runs = [made_run(alpha=0.005, seed=seed, **how) for seed in range(6)]
    start = [torch.zeros(N, 3, dtype=torch.float64) for _ in runs]
    looks = advance(runs, MODEL, iterations=9000, every=3000, initial=start)
    return torch.stack([look.theta.mean(dim=0) for some in looks for look in some[-2:]]).mean(dim=0)


def test_the_average_model_of_dspodfl_goes_to_the_minimizer_that_busy_clients_pull_to():
    found = average(**SPORADIC)
    assert float((found - OPTIMUM).norm()) == pytest.approx(0.366, abs=0.03)
    assert float((found - BIASED).norm()) < 0.03
    assert float((BIASED - OPTIMUM).norm()) > 0.3


def test_where_clients_are_equally_busy_it_goes_to_the_solution():
    found = average(d=float(np.mean(D)), b=B.tolist())
    assert float((found - OPTIMUM).norm()) < 0.03
