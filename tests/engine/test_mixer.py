"""The engine's mixing: P(k) of every run times its own rows, by whichever kernel."""

import numpy as np
import pytest
import torch
from tests.worlds import classified, erdos_renyi, make_run

from dspodfl.engine import Stack
from dspodfl.engine.mixer import DENSE, Mixer
from dspodfl.network.weights import matrix

DATA = classified(samples=300)
SIZES = {
    "one size": [5, 5, 5],
    "one run": [7],
    "one client": [1, 1],
    "different sizes": [3, 8, 1, 5],
    "one large": [DENSE + 6],
    "large and small": [4, DENSE + 1, DENSE],
}


def loaded(sizes, iterations=3):
    """A mixer with random active weights, and the matrices that it stands for."""
    runs = [make_run(seed=seed, data=DATA, graph=erdos_renyi(n, seed, p=0.5)) for seed, n in enumerate(sizes)]
    stack = Stack(runs)
    (block,) = stack.blocks(iterations, iterations)
    mixer = Mixer(stack, torch.device("cpu"), torch.float64)
    mixer.load(block.active)
    active = [block.active[:, links].numpy() for links in stack.links]
    ps = [matrix(run.clients, run.rates.graph.edges, a) for run, a in zip(runs, active, strict=True)]
    return stack, mixer, ps


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("layout", ["rows", "columns", "every other"])
def test_mixing_multiplies_the_rows_of_each_run_by_its_own_matrix(sizes, layout):
    stack, mixer, ps = loaded(sizes)
    random = np.random.default_rng(0)
    shape = {"rows": (stack.clients, 6), "columns": (6, stack.clients), "every other": (stack.clients, 12)}[layout]
    array = torch.from_numpy(random.normal(size=shape))
    models = {"rows": array, "columns": array.T, "every other": array[:, ::2]}[layout]
    for t in range(3):
        expected = np.concatenate([p[t] @ models[rows].numpy() for p, rows in zip(ps, stack.rows, strict=True)])
        before, more = models.clone(), torch.from_numpy(random.normal(size=models.shape))
        again = more.clone()
        assert np.allclose(mixer.apply(t, models), expected, rtol=0, atol=1e-13)
        assert np.allclose(mixer.apply(t, models, minus=more), expected - again.numpy(), rtol=0, atol=1e-13)
        assert torch.equal(models, before)
