"""The metrics of the models of a run: losses and accuracies as numbers, sums over clients, and what a run has spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspodfl.analysis import Measures
from dspodfl.engine import Counters
from dspodfl.network import COSTS, Spent
from dspodfl.problem import Evaluation, ordered_sum


@dataclass(frozen=True, eq=False)
class RunEvaluation:
    """The metrics of the models of one run."""

    row: Measures
    own: Scores  # of each evaluated client, or of one where all models are one


@dataclass(frozen=True, eq=False)
class Scores:
    """Losses and accuracies of some models as numbers, which are quicker to sum up than small tensors."""

    loss: list[float]
    accuracy: list[float] | None = None
    accuracies: Tensor | None = None  # the same, (models,), on the CPU

    @staticmethod
    def of(found: Evaluation) -> Scores:
        """Return what an evaluation has found."""
        if found.accuracy is None:
            return Scores(found.loss.tolist())
        accuracies = found.accuracy.cpu()
        return Scores(found.loss.tolist(), accuracies.tolist(), accuracies)

    def columns(self) -> Measures:
        """Return the columns that are over the evaluated clients; sums are exact."""
        row: Measures = {"loss": exact_mean(self.loss)}
        if self.accuracy is not None:
            mean = exact_mean(self.accuracy)
            row["accuracy"], row["accuracy_min"] = mean, min(self.accuracy)
            row["accuracy_std"] = math.sqrt(exact_mean([(value - mean) ** 2 for value in self.accuracy]))
        return row

    def part(self, first: int, last: int) -> Scores:
        """Return those of models first … last − 1."""
        if self.accuracy is None or self.accuracies is None:
            return Scores(self.loss[first:last])
        return Scores(self.loss[first:last], self.accuracy[first:last], self.accuracies[first:last])


def finite(evaluated: RunEvaluation | None) -> RunEvaluation | None:
    """Return None where a metric is not finite: a run whose loss overflows has diverged, finite parameters or not."""
    if evaluated is None:
        return None
    for value in evaluated.row.values():
        if isinstance(value, float) and not math.isfinite(value):
            return None
    return evaluated


def costs(counters: Counters, iteration: int, link_bytes: int) -> Measures:
    """Return what a run has spent until an iteration, in the column of each cost."""
    spent = Spent(
        counters.delay_processing,
        counters.delay_transmission,
        counters.delay_processing_normalized,
        counters.delay_transmission_normalized,
        counters.sgd_steps,
        counters.link_uses,
        iteration,
        link_bytes,
    )
    return {kind.column: kind.of(spent) for kind in COSTS.values()}


def model_sum(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum over models, in float64. Shapes: parts × (models, width) -> (width,)."""
    first, *others = (ordered_sum(part.double(), 0) for part in parts)
    return sum(others, first)


def consensus_error(theta: Tensor, averages: Tensor) -> Tensor:
    """Return ‖Θ − 1θ̄‖² of each run. Shapes: (runs, clients, width), (runs, width) -> (runs,), float64."""
    return ordered_sum(ordered_sum((theta.double() - averages[:, None]).square_(), 1), 1)


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluations of some models as one, in their order."""
    right = [part.accuracy for part in parts if part.accuracy is not None]
    return Evaluation(torch.cat(right) if right else None, torch.cat([part.loss for part in parts]))


def exact_mean(values: Sequence[float]) -> float:
    """Return the mean, from an exact sum; infinite or NaN where a value is."""
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):  # a sum beyond float64, or infinities of both signs
        return float(np.mean(values))
