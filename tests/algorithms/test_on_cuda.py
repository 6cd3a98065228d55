"""On a CUDA device a registered method is what it is on the CPU, and copies nothing to the host while it advances."""

import pytest
import torch
from tests.test_gpu import EXACT, config

from dspodfl import run
from dspodfl.algorithms import ALGORITHMS
from dspodfl.engine import loop

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GRAPHS = {"relay": {"kind": "path"}}
CONVEX = {"name": "svm"}


def study(name, device, **changes):
    train = {"iterations": 60, "precision": "fp64", "learning_rate": 0.02, **changes.pop("train", {})}
    graph = GRAPHS.get(name, {"kind": "complete"})
    tables = {"algorithms": [name], "graph": graph, "model": CONVEX, "eval": {"every": 20}, "train": train} | changes
    return run(config(seeds=2, **tables), device=device)


def assert_equal(one, other, name):
    assert one.metrics[EXACT].equals(other.metrics[EXACT])
    delays = [column for column in one.metrics if column.startswith("delay")]
    assert one.metrics[delays].equals(other.metrics[delays])
    (label,) = one.metrics["algorithm"].unique()
    for ours, theirs in zip(one.models(label, 1), other.models(label, 1), strict=True):
        for part in ours:
            assert torch.allclose(ours[part], theirs[part], rtol=0, atol=1e-8), (name, part)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_on_cuda_is_the_method_on_the_cpu(name):
    assert_equal(study(name, "cpu"), study(name, "cuda"), name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_on_cuda_with_full_gradients_is_the_method_on_the_cpu(name):
    full = {"train": {"batch_size": "full", "iterations": 12}}
    assert_equal(study(name, "cpu", **full), study(name, "cuda", **full), name)


@pytest.mark.parametrize("kind", ["alie", "sign_flip", "noise", "ipm", "label_flip", "dissensus"])
def test_attacks_on_cuda_are_those_on_the_cpu(kind):
    attack = {"attack": {"clients": [3, 7], "kind": kind}}
    assert_equal(study("clipped_gossip", "cpu", **attack), study("clipped_gossip", "cuda", **attack), kind)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_is_copied_to_the_host_between_evaluations(name, monkeypatch):
    chosen, silent = loop.choose, []

    def choose(*args):
        stepper = chosen(*args)
        advance = stepper.advance

        def quiet(first, last):
            if first:  # at the first iterations of a block kernels are compiled, and what the block needs is looked up
                torch.cuda.set_sync_debug_mode("error")
            try:
                advance(first, last)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            silent.append(first)

        monkeypatch.setattr(stepper, "advance", quiet)
        return stepper

    monkeypatch.setattr(loop, "choose", choose)
    study(name, "cuda")
    assert any(silent)
