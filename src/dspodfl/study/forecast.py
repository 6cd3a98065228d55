"""How long a study will take: what there is to compute, and what a piece of it takes on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import grad

from dspodfl.problem.models import Model
from dspodfl.study.study import Study
from dspodfl.study.work_split import steps

ADVICE = "; this model is meant for a GPU: use --device cuda on a machine that has one"
"""What is added to a forecast that is long on a CPU."""
_SAMPLES = 64
"""Test samples that a try of the evaluation takes."""
_LONG_ENOUGH = 0.3
"""Seconds of a try that need not be repeated to be believed."""


@dataclass(frozen=True)
class Work:
    """What there is to compute in a study."""

    gradients: float
    """Minibatch gradients expected."""
    evaluations: int
    """Times that each run is evaluated, at most."""
    models: int
    """Models in one evaluation of all runs."""
    samples: int
    """Test samples that each of them is evaluated on."""

    @staticmethod
    def of(study: Study) -> Work:
        """Count, from the rates, what a study computes."""
        tests = len(study.runs[0].data.dataset.x_test)
        clients = [min(study.eval_clients or run.clients, run.clients) for run in study.runs]
        return Work(
            sum((run.need or study.iterations) * steps(run) for run in study.runs),
            study.evaluations(study.longest),
            sum(clients) + len(clients),
            min(study.eval_samples or tests, tests),
        )


def meant_for_a_gpu(model: Model) -> bool:
    """Whether a model has convolutions, which a CPU computes a hundred times more slowly."""
    return any(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in model.module.modules())


def expected_seconds(studies: Iterable[Study], device: torch.device) -> float | None:
    """Estimate how long studies of convolutional networks take on a CPU, by trying one gradient and one evaluation.

    Args:
        studies: What is run.
        device: Where.

    Returns:
        Seconds; None on a GPU, and where no study has a convolution: they are measured while they run.
    """
    if device.type != "cpu":
        return None
    total, tried = 0.0, dict[tuple[str, int, int], tuple[float, float]]()
    for study in studies:
        model = study.model
        if not meant_for_a_gpu(model):
            continue
        batch = max(1, round(study.samples_per_step))
        key = (model.name, model.parameters, batch)
        if key not in tried:
            tried[key] = _tried(model, batch)
        gradient, sample = tried[key]
        work = Work.of(study)
        total += work.gradients * gradient + work.evaluations * work.models * work.samples * sample
    return total or None


def _tried(model: Model, batch_size: int) -> tuple[float, float]:
    """Seconds of one minibatch gradient, and of the evaluation of one test sample."""
    theta = model.initial(0)
    model = model.to("cpu", theta.dtype)
    x = torch.zeros((max(batch_size, _SAMPLES), *model.input_shape), dtype=theta.dtype)
    kind = torch.float32 if model.loss == "squared_error" else torch.int64
    y = torch.zeros(len(x), dtype=kind)

    def gradient() -> object:
        return grad(model.objective)(theta, x[:batch_size], y[:batch_size])

    def evaluation() -> object:
        with torch.no_grad():
            return model.scores(theta, x[:_SAMPLES])

    return _seconds(gradient), _seconds(evaluation) / _SAMPLES


def _seconds(work: object) -> float:
    """The time of a piece of work; the second time where the first is short, for what is done once."""
    assert callable(work)
    took = 0.0
    for _ in range(2):
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        if took > _LONG_ENOUGH:
            break
    return took
