"""On a CUDA device: the same events, minibatches and delays, and the same parameters to tolerance."""

import numpy as np
import pytest
import torch

from dspodfl import Config, run
from dspodfl.config.build import build
from dspodfl.problem import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXACT = ["iteration", "sgd_steps", "link_uses", "bytes"]


def config(**changes):
    tables = {
        "seeds": 2,
        "data": {"name": "synthetic", "partition": {"kind": "labels", "per_client": 2}},
        "train": {"iterations": 120, "precision": "fp64"},
        "eval": {"every": 40, "at_delay": [50.0]},
    }
    return Config(**{**tables, **changes})


@pytest.mark.parametrize("model", [{"name": "svm"}, {"name": "logistic", "l2": 0.1}, {"name": "mlp"}])
def test_a_study_on_cuda_is_the_study_on_the_cpu(model):
    on_cpu, on_cuda = (run(config(model=model), device=device) for device in ("cpu", "cuda"))
    assert on_cpu.metrics[EXACT].equals(on_cuda.metrics[EXACT])
    delays = [column for column in on_cpu.metrics if column.startswith("delay")]
    assert on_cpu.metrics[delays].equals(on_cuda.metrics[delays])
    for algorithm in on_cpu.config["algorithms"]:
        for ours, theirs in zip(on_cpu.models(algorithm, 1), on_cuda.models(algorithm, 1), strict=True):
            assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-9) for name in ours)


def test_minibatches_on_cuda_are_those_of_the_cpu():
    _, study, _ = build(config())
    runs = [(r.seed, r.data) for r in study.runs]
    on_cpu, on_cuda = (Problem(study.model, runs, batch_size=16, device=device) for device in ("cpu", "cuda"))
    k = np.arange(5, 25)
    assert torch.equal(on_cpu.minibatches(k), on_cuda.minibatches(k).cpu())


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16", "fp64"])
def test_the_same_study_twice_gives_the_same_metrics_on_cuda(precision):
    twice = [run(config(train={"iterations": 60, "precision": precision}), device="cuda") for _ in range(2)]
    assert twice[0].metrics.equals(twice[1].metrics)


def test_precision_auto_is_tf32_on_cuda_and_leaves_the_global_setting_alone():
    before = torch.get_float32_matmul_precision()
    result = run(config(train={"iterations": 5}), device="cuda")
    assert result.summary["study"]["precision"] == "tf32"
    assert torch.get_float32_matmul_precision() == before
