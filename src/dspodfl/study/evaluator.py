"""Evaluates models: the rows of metrics.parquet from a snapshot of a stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dspodfl.analysis import DERIVED, METRICS, Measures, MetricsRow, Value
from dspodfl.engine import Snapshot, Split, Stack
from dspodfl.problem import Check, Evaluation, Problem, evaluated_clients, ordered_sum
from dspodfl.study.scores import RunEvaluation, Scores, consensus_error, costs, finite, joined, model_sum

Stop = Callable[[], bool]
"""Returns whether to stop."""
_NO_VALUES: Measures = dict.fromkeys(METRICS)
"""A row in which no value is known."""
_MAX_ELEMENTS_PER_CHUNK = 2**25
"""Parameters evaluated at a time (256 MB in float64)."""


class EvaluationStoppedError(Exception):
    """An evaluation was ended between two batches; nothing of it is kept."""


class Evaluator:
    """Evaluates the runs of a stack, snapshot by snapshot.

    Where clients are split, each process evaluates its own, and all get the same rows. A run in which nothing has fired
    since its last evaluation has the metrics that it had, if its rule leaves models unchanged without events.

    Args:
        stack: the runs.
        problem: their data and model.
        split: the clients held here, and the transport to the others; default: all are held here.
        unchanged_without_events: whether models change by events alone.
        clients: how many clients of each run are evaluated; 0: all.
        on_batch: called before each batch with the share of the evaluation that is done.
    """

    def __init__(
        self,
        stack: Stack,
        problem: Problem,
        split: Split | None = None,
        *,
        unchanged_without_events: bool = False,
        clients: int = 0,
        on_batch: Callable[[float], None] | None = None,
    ) -> None:
        self._stack, self._problem, self._split = stack, problem, split or Split.local(stack)
        self._unchanged_without_events = unchanged_without_events
        self._seen: dict[int, tuple[tuple[int, int], RunEvaluation]] = {}
        self._picked = [
            None if run.server else evaluated_clients(run.seed, run.clients, clients, run.honest) for run in stack.runs
        ]
        self._on_batch = on_batch

    def evaluate(self, snapshot: Snapshot, stop: Stop | None = None) -> tuple[list[MetricsRow], list[Tensor | None]]:
        """Evaluate the runs that a snapshot is taken of.

        Args:
            snapshot: the models, and which runs are to be evaluated.
            stop: called between batches, returns whether to stop; where clients are split, all ranks stop if it is True
                on one.

        Returns:
            A row for each run, and the accuracy of each of its clients, (clients,), NaN where one is not evaluated.

        Raises:
            EvaluationStoppedError: if ``stop`` returns True; the snapshot can be evaluated again.
        """
        counted = dict(zip(snapshot.runs, snapshot.counters, strict=True))
        fired = {r: (counters.sgd_steps, counters.link_uses) for r, counters in counted.items()}
        alive = {r: None for r, lost in zip(snapshot.runs, snapshot.diverged, strict=True) if not lost}  # in order
        known = {r: evaluated for r, (before, evaluated) in self._seen.items() if before == fired.get(r)}
        found = self._evaluate(snapshot, [r for r in alive if r not in known], stop)
        if self._unchanged_without_events:
            self._seen |= {r: (fired[r], evaluated) for r, evaluated in found.items()}
        results = {r: evaluated for r, evaluated in (known | found).items() if r in alive}
        rows, accuracies = [], []
        for r, diverged in zip(snapshot.runs, snapshot.diverged, strict=True):
            run, counters, evaluated = self._stack.runs[r], counted[r], finite(results.get(r))
            row: dict[str, Value] = {
                **_NO_VALUES,
                "algorithm": run.algorithm,
                "seed": run.seed,
                "iteration": snapshot.iteration,
                **vars(counters),
                **costs(counters, snapshot.iteration, run.use_bytes),
                "diverged": diverged or evaluated is None,
            }
            of_clients = None
            if evaluated is not None:
                row |= evaluated.row
                row |= {column.name: column.of(row, evaluated.own.accuracy) for column in DERIVED if column.of}
                of_clients = evaluated.own.accuracies
            rows.append(MetricsRow.of(row))
            accuracies.append(None if of_clients is None else self._of_all_clients(r, of_clients))
        return rows, accuracies

    def _of_all_clients(self, r: int, accuracies: Tensor) -> Tensor:
        """Return the accuracies of all clients of a run, NaN where one is not evaluated."""
        count, picked = self._stack.runs[r].members, self._picked[r]
        if picked is None:
            return accuracies.expand(count)
        out = torch.full((count,), math.nan, dtype=torch.float64)
        out[torch.from_numpy(picked)] = accuracies
        return out

    def _evaluate(
        self, snapshot: Snapshot, runs: list[int], stop: Callable[[], bool] | None
    ) -> dict[int, RunEvaluation]:
        if snapshot.iteration == 0:
            return self._evaluate_first(snapshot, runs, stop)
        served = [r for r in runs if self._stack.runs[r].server]
        if served:
            others = self._evaluate(snapshot, [r for r in runs if r not in served], stop)
            return others | self._evaluate_servers(snapshot, served, stop)
        if self._split.transport.ranks > 1:
            check = _Batches(self._on_batch, stop, self._split, self._rounds(runs, self._split))
            return {r: self._evaluate_split(snapshot, r, self._split, check) for r in runs}
        found: dict[int, RunEvaluation] = {}
        groups = list(_together(self._stack, self._problem, runs))
        total = sum(
            self._problem.batches_of(sum(map(self._count, some)) + len(some), self._dataset(some[0])) for some in groups
        )
        check = _Batches(self._on_batch, stop, self._split, total)
        for some in groups:
            found |= self._evaluate_stacked(snapshot, some, check)
        return found

    def _dataset(self, run: int) -> int:
        return self._problem.dataset_of_run[run]

    def _count(self, run: int) -> int:
        picked = self._picked[run]
        return self._stack.runs[run].clients if picked is None else len(picked)

    def _evaluate_first(
        self, snapshot: Snapshot, runs: list[int], stop: Callable[[], bool] | None
    ) -> dict[int, RunEvaluation]:
        """At iteration 0 all clients of a seed have one model, whatever the algorithm: it is evaluated once."""
        split, stack, problem = self._split, self._stack, self._problem
        rows = split.shard.rows
        alike: dict[tuple[int, int], list[int]] = {}
        for r in runs:
            alike.setdefault((self._dataset(r), stack.runs[r].seed), []).append(r)
        batches = sum(problem.batches_of(1, dataset) for dataset, _ in alike)
        check = _Batches(self._on_batch, stop, split, batches)
        found = {}
        for (dataset, _), members in alike.items():
            model = snapshot.packed[rows[members[0]]][:1]
            one = problem.evaluate_packed(model, dataset, check)
            for r in members:
                found[r] = self._read(r, 0.0, Scores.of(one), Scores.of(one), model[0].double())
        return found

    def _evaluate_servers(
        self, snapshot: Snapshot, runs: list[int], stop: Callable[[], bool] | None
    ) -> dict[int, RunEvaluation]:
        """Where there is a server, its model is that of all clients: it is evaluated once."""
        split, problem = self._split, self._problem
        check = _Batches(self._on_batch, stop, split, sum(problem.batches_of(1, self._dataset(r)) for r in runs))
        found = {}
        for r in runs:
            own = snapshot.packed[split.shard.rows[r]]
            held = self._stack.runs[r].members in split.shard.owned(split.transport.rank, r)
            model = own[-1:] if held else own.new_zeros((1, own.shape[1]))
            model = split.transport.all_reduce_sum(model.double())
            one = Scores.of(problem.evaluate_packed(model.to(problem.dtype), self._dataset(r), check))
            found[r] = self._read(r, 0.0, one, one, model[0])
        return found

    def _evaluate_stacked(self, snapshot: Snapshot, runs: list[int], check: Check) -> dict[int, RunEvaluation]:
        """Runs of one size on one dataset, in one go; one large run in parts."""
        problem = self._problem
        every = [snapshot.packed[self._stack.rows[r]] for r in runs]
        models = [self._honest(r, np.arange(len(some)), some) for r, some in zip(runs, every, strict=True)]
        part = max(1, _MAX_ELEMENTS_PER_CHUNK // problem.width)
        if len(runs) == 1 and len(models[0]) > part:
            parts = models[0].split(part)
            averages = model_sum(self._mean_rows(snapshot, runs[0]).split(part))[None] / len(models[0])
            consensus = [sum(float(consensus_error(some[None], averages)) for some in parts)]
        else:
            theta = torch.stack(models) if len(models) > 1 else models[0][None]  # (runs, clients, width)
            exact = theta.double()
            rows = exact
            if snapshot.averaged is not None:
                rows = torch.stack([self._mean_rows(snapshot, r).double() for r in runs])
            averages = ordered_sum(rows, 1) / exact.shape[1]
            consensus = consensus_error(exact, averages).tolist()
            del exact, rows
        wanted = [
            some if picked is None else some[_there(picked, some)]
            for some, picked in zip(every, map(self._picked.__getitem__, runs), strict=True)
        ]
        if len(runs) == 1 and len(wanted[0]) > part:  # not copied
            parts = [problem.evaluate_packed(some, self._dataset(runs[0]), check) for some in wanted[0].split(part)]
            of_average = problem.evaluate_packed(averages.to(problem.dtype), self._dataset(runs[0]), check)
            of_clients = Scores.of(joined(parts))
            return {runs[0]: self._read(runs[0], consensus[0], of_clients, Scores.of(of_average), averages[0])}
        everything = torch.cat([*wanted, averages.to(problem.dtype)])
        found = Scores.of(problem.evaluate_packed(everything, self._dataset(runs[0]), check))
        out, start, last = {}, 0, len(everything) - len(runs)
        for n, r in enumerate(runs):
            end = start + len(wanted[n])
            average = found.part(last + n, last + n + 1)
            out[r] = self._read(r, consensus[n], found.part(start, end), average, averages[n])
            start = end
        return out

    def _honest(self, run: int, clients: np.ndarray, models: Tensor) -> Tensor:
        """Return the models of some clients of a run without those of attackers."""
        if self._stack.runs[run].attack is None:
            return models
        return models[_there(np.flatnonzero(np.isin(clients, self._stack.runs[run].honest)), models)]

    def _mean_rows(self, snapshot: Snapshot, run: int) -> Tensor:
        """Return the rows of the honest clients of a run whose mean is its average model."""
        rows = self._averaged(snapshot, self._stack.rows[run])
        return self._honest(run, np.arange(len(rows)), rows)

    @staticmethod
    def _averaged(snapshot: Snapshot, rows: slice) -> Tensor:
        """Rows of a run whose mean is its average model. Shape: (clients, width)."""
        return (snapshot.packed if snapshot.averaged is None else snapshot.averaged)[rows]

    def _rounds(self, runs: list[int], split: Split) -> int:
        """Return the batches of the rank that has most: all ranks agree that often on whether to stop."""
        return sum(self._rounds_of(r, split) for r in runs)

    def _rounds_of(self, run: int, split: Split) -> int:
        problem, dataset = self._problem, self._dataset(run)
        counts = [len(self._held(run, split, rank)[1]) for rank in range(split.transport.ranks)]
        return max(self._batches_in_parts(count, dataset) for count in counts) + problem.batches_of(1, dataset)

    def _batches_in_parts(self, models: int, dataset: int) -> int:
        part = max(1, _MAX_ELEMENTS_PER_CHUNK // self._problem.width)
        sizes = [min(part, models - first) for first in range(0, models, part)]
        return sum(self._problem.batches_of(size, dataset) for size in sizes)

    def _held(self, run: int, split: Split, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """The clients of a run that a rank has, and the places among them of those that are evaluated."""
        owned, picked = split.shard.owned(rank, run), self._picked[run]
        return owned, np.arange(len(owned)) if picked is None else np.flatnonzero(np.isin(owned, picked))

    def _evaluate_split(self, snapshot: Snapshot, run: int, split: Split, check: _Batches) -> RunEvaluation:
        """One run whose clients are split: sums over ranks, and each client's numbers from the rank that holds it."""
        problem, dataset, team = self._problem, self._dataset(run), split.transport
        own = snapshot.packed[split.shard.rows[run]]
        part = max(1, _MAX_ELEMENTS_PER_CHUNK // problem.width)
        owned, places = self._held(run, split, team.rank)
        honest = self._honest(run, owned, own)
        parts = honest.split(part)
        mean_of = self._honest(run, owned, self._averaged(snapshot, split.shard.rows[run])).split(part)
        total = model_sum(mean_of) if len(honest) else own.new_zeros(problem.width, dtype=torch.float64)
        average = team.all_reduce_sum(total) / len(self._stack.runs[run].honest)
        apart = own.new_zeros((), dtype=torch.float64)
        for some in parts:
            apart = apart + consensus_error(some[None], average[None])[0]
        consensus = float(team.all_reduce_sum(apart))
        until = check.done + self._rounds_of(run, split)
        wanted = own if len(places) == len(owned) else own[_there(places, own)]
        mine = [problem.evaluate_packed(some, dataset, check) for some in wanted.split(part) if len(some)]
        of_average = problem.evaluate_packed(average[None].to(problem.dtype), dataset, check)
        while check.done < until:  # other ranks have more clients
            check()
        picked = self._picked[run]
        everyone = np.arange(self._stack.runs[run].clients) if picked is None else picked

        def assembled(values: Sequence[Tensor]) -> Tensor:
            here = torch.full((len(owned),), math.nan, dtype=torch.float64, device=own.device)
            if values:
                here[_there(places, here)] = torch.cat(list(values))
            return split.assembled(here, run).cpu()[torch.from_numpy(everyone)]

        loss = assembled([some.loss for some in mine])
        right = None
        if of_average.accuracy is not None:
            right = assembled([some.accuracy for some in mine if some.accuracy is not None])
        return self._read(run, consensus, Scores.of(Evaluation(right, loss)), Scores.of(of_average), average)

    def _read(self, run: int, consensus: float, own: Scores, of_average: Scores, average: Tensor) -> RunEvaluation:
        """Return the columns of a run.

        Sums over clients are exact, so that they do not depend on how clients are stacked or split.

        Args:
            run: Its number in the stack.
            consensus: Its consensus error.
            own: Of each evaluated client, or of one where all have one model.
            of_average: Of the average model.
            average: The average model, (width,).
        """
        row: Measures = {"consensus_error": consensus, **own.columns()}
        if of_average.accuracy is not None:
            row["accuracy_average_model"] = of_average.accuracy[0]
        best = self._stack.runs[run].data.optimum
        if best is not None:
            away = self._problem.unpack(average[None])[0].cpu() - torch.from_numpy(best)
            row["optimality_error"] = float(ordered_sum(away.square(), 0))
        return RunEvaluation(row, own)


class _Batches:
    """Counts batches, and checks before each whether to stop; where clients are split, all ranks check together."""

    def __init__(
        self,
        on_batch: Callable[[float], None] | None,
        stop: Stop | None,
        split: Split,
        total: int,
    ) -> None:
        self._on_batch, self._stop, self._split, self._total, self.done = on_batch, stop, split, max(1, total), 0

    def __call__(self) -> None:
        if self._on_batch:
            self._on_batch(self.done / self._total)
        self.done += 1
        if self._stop is None:
            return
        wanted = self._stop()
        if self._split.transport.any(wanted):
            raise EvaluationStoppedError


def _together(stack: Stack, problem: Problem, runs: list[int]) -> Iterator[list[int]]:
    """Runs that can be evaluated in one go: of one size, on one dataset, not too many."""
    groups: dict[tuple[int, int], list[int]] = {}
    for r in runs:
        groups.setdefault((problem.dataset_of_run[r], stack.runs[r].clients), []).append(r)
    for (_, clients), members in groups.items():
        step = max(1, _MAX_ELEMENTS_PER_CHUNK // (clients * problem.width))
        yield from (members[n : n + step] for n in range(0, len(members), step))


def _there(places: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(places).to(like.device)
