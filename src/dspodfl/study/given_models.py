"""Evaluates models that nodes have computed: the rows of metrics.parquet, null where a model is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspodfl.analysis import Measures, MetricsRow
from dspodfl.engine import Run, Snapshot
from dspodfl.errors import DataError
from dspodfl.study.evaluator import Evaluator, Stop
from dspodfl.study.scores import RunEvaluation, Scores


@dataclass(frozen=True, eq=False)
class NodeModels:
    """The models of the clients of a run at an iteration, as nodes have computed them.

    A model that is not finite says that the run has diverged; one that is missing is None.

    Args:
        rows: The models that are evaluated, (p,) each: what ``evaluated_models`` returns of the rule's θ and state.
        averaged: For rules that have ``averaged``: the rows whose mean is the average model, (p,) each.
        scores: For nodes with test sets of their own: the loss and the accuracy (NaN in a regression) that each has
            measured there. They take the place of the evaluation on the test set of the study.
    """

    rows: Sequence[Tensor | None]
    averaged: Sequence[Tensor | None] | None = None
    scores: Sequence[tuple[float, float] | None] | None = None

    @property
    def missing(self) -> list[int]:
        """The clients of which no model is known."""
        return [i for i, row in enumerate(self.rows) if row is None]

    @property
    def finite(self) -> bool:
        """Whether all models that are there are finite."""
        return all(bool(row.isfinite().all()) for row in self.rows if row is not None)

    @property
    def whole(self) -> bool:
        """Whether no model, and no averaged row, is missing."""
        return not self.missing and all(row is not None for row in self.averaged or ())

    @property
    def nothing(self) -> bool:
        """Whether all models are missing."""
        return len(self.missing) == len(self.rows)


_OF_CLIENTS = ("loss", "accuracy", "accuracy_min", "accuracy_std")
"""The columns that are over the evaluated clients."""
Models = Callable[[str, int, int], Tensor | NodeModels | None]
"""The label of an algorithm, a seed, an iteration -> the models (clients, p); None where all are missing."""


def taken(models: Models, run: Run, iteration: int, parameters: int, averages: bool) -> NodeModels:
    """Return the models of a run at an iteration.

    Args:
        models: What nodes have computed.
        run: The run.
        iteration: The number of updates made.
        parameters: p, the number of parameters of a model.
        averages: Whether the rule averages other rows than the models that are evaluated.

    Returns:
        The models. Averaged rows that the rule has and that are not given are missing.

    Raises:
        DataError: They are of another shape, or not one for each client.
    """
    found = models(run.algorithm, run.seed, iteration)
    nothing: list[Tensor | None] = [None] * run.clients
    given = NodeModels(nothing) if found is None else NodeModels(list(found)) if isinstance(found, Tensor) else found
    averaged = (nothing if given.averaged is None else given.averaged) if averages else None
    where = f"the models of {run.algorithm!r}, seed {run.seed}, iteration {iteration:,}"
    for rows in (given.rows, averaged, given.scores):
        if rows is not None and len(rows) != run.clients:
            raise DataError(f"{where}: there are {len(rows)}; the run has {run.clients} clients")
    for row in (*given.rows, *(averaged or ())):
        if row is not None and row.shape != (parameters,):
            raise DataError(f"{where}: one has the shape {tuple(row.shape)}; the study's has ({parameters},)")
    return NodeModels(given.rows, averaged, given.scores)


@dataclass(frozen=True, eq=False)
class GivenSnapshot(Snapshot):
    """A snapshot of models that were not computed here, some of which may be missing."""

    given: Mapping[int, NodeModels] = field(default_factory=dict)
    """Run of the stack -> its models, of the runs that have missing ones, or scores of their own."""


class GivenEvaluator(Evaluator):
    """Evaluates the runs of a stack from models that nodes have computed.

    A run whose models are all there has the metrics that the simulator computes of them. Where one is missing, the
    columns that need it are null.
    """

    def evaluate(self, snapshot: Snapshot, stop: Stop | None = None) -> tuple[list[MetricsRow], list[Tensor | None]]:
        """Evaluate the runs that a snapshot is taken of, as `Evaluator.evaluate`.

        Args:
            snapshot: The models; a `GivenSnapshot` says which are missing.
            stop: Called between batches, returns whether to stop.

        Returns:
            A row for each run, and the accuracy of each of its clients, (clients,), NaN where it is not known.
        """
        self._forget(snapshot)
        out = super().evaluate(snapshot, stop)
        self._forget(snapshot)
        return out

    def _forget(self, snapshot: Snapshot) -> None:
        """Forget the last metrics of runs with missing models: those of other iterations say nothing of them."""
        for r in _given(snapshot):
            self._seen.pop(r, None)

    def _evaluate(
        self, snapshot: Snapshot, runs: list[int], stop: Callable[[], bool] | None
    ) -> dict[int, RunEvaluation]:
        given = _given(snapshot)
        found = super()._evaluate(snapshot, [r for r in runs if r not in given], stop)
        return found | {r: self._evaluate_given(snapshot, r, given[r]) for r in runs if r in given}

    def _evaluate_given(self, snapshot: Snapshot, run: int, given: NodeModels) -> RunEvaluation:
        """Return the columns of a run of which not everything is known, or that has scores of its own."""
        picked, row = self._picked[run], Measures()
        everyone = range(self._stack.runs[run].clients) if picked is None else picked.tolist()
        if given.whole:
            row |= super()._evaluate(snapshot, [run], None)[run].row
        scores = self._scores(snapshot, run, given, everyone)
        classes = self._stack.runs[run].data.dataset.classes
        if len(scores) == len(everyone):
            loss, right = ([scores[i][n] for i in everyone] for n in range(2))
            row |= Scores(loss, None if classes is None else right).columns()
        else:
            row = {name: value for name, value in row.items() if name not in _OF_CLIENTS}
        right = [scores[i][1] if i in scores else math.nan for i in everyone]
        accuracies = None if classes is None else torch.tensor(right, dtype=torch.float64)
        return RunEvaluation(row, Scores([], None, accuracies))

    def _scores(
        self, snapshot: Snapshot, run: int, given: NodeModels, everyone: Sequence[int]
    ) -> dict[int, tuple[float, float]]:
        """Return client -> loss and accuracy of its model, of those clients of which it is known."""
        if given.scores is not None:
            return {i: score for i in everyone if (score := given.scores[i]) is not None}
        there = [i for i in everyone if given.rows[i] is not None]
        if not there:
            return {}
        models = snapshot.packed[self._stack.rows[run]][torch.tensor(there, device=snapshot.packed.device)]
        found = self._problem.evaluate_packed(models, self._dataset(run))
        right = found.loss.new_full((len(there),), math.nan) if found.accuracy is None else found.accuracy
        return dict(zip(there, zip(found.loss.tolist(), right.tolist(), strict=True), strict=True))


def _given(snapshot: Snapshot) -> Mapping[int, NodeModels]:
    return snapshot.given if isinstance(snapshot, GivenSnapshot) else {}
