"""What a study has measured so far: on this rank, and gathered from all ranks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dspodfl.analysis import MetricsRow
from dspodfl.errors import InputError
from dspodfl.network import Events
from dspodfl.study.event_recorder import Fired, Recorder
from dspodfl.study.measurement import Measurement, Start
from dspodfl.study.store.checkpoint import Checkpoint
from dspodfl.study.store.rows import Rows
from dspodfl.study.study import Study
from dspodfl.study.tables import Key, typed
from dspodfl.study.work_split import WorkSplit

RUN = "run"
"""The column of a checkpoint's rows with the number of the run, where algorithm and seed do not identify it."""


@dataclass(eq=False)
class Measurements:
    """What was measured during some iterations, by the numbers of the runs.

    Attributes:
        rows: The rows.
        runs: The run of each row, by its number in the study.
        accuracies: Run -> each client's accuracy when it was last evaluated, (clients,).
        finished: Run of a finished wave -> its final models, (clients, p).
        iterations: The number of iterations of all runs together.
        fired: What fired in runs whose models decide it, where events are recorded.
    """

    rows: list[MetricsRow] | Rows = field(default_factory=list)
    runs: MutableSequence[int] = field(default_factory=list)
    accuracies: dict[int, Tensor | None] = field(default_factory=dict)
    finished: dict[int, Tensor] = field(default_factory=dict)
    iterations: int = 0
    fired: list[Fired] = field(default_factory=list)

    def add(self, other: Measurements) -> None:
        """Append what was measured later, or on another rank.

        Args:
            other: What was measured.
        """
        self.rows.extend(other.rows)
        self.runs.extend(other.runs)
        self.accuracies |= other.accuracies
        self.finished |= other.finished
        self.iterations += other.iterations
        self.fired.extend(other.fired)


class StudyProgress:
    """What a study has measured so far; one that is resumed begins with what its checkpoint holds.

    What is measured on this rank is new until the ranks gather it; from then on rank 0 has the rows of all ranks.

    Args:
        study: The study.
        division: Which of its runs, or clients, are on this rank.
        start: The checkpoint that it is resumed from.
        record: Whether events are recorded.
        models: Whether the final models of a finished wave are kept while the next one runs.
    """

    def __init__(
        self,
        study: Study,
        division: WorkSplit,
        start: Checkpoint | None = None,
        record: bool = False,
        *,
        models: bool = True,
    ) -> None:
        self._study, self._division, self._start, self._keeps_models = study, division, start, models
        self.names: list[Key] = [(run.algorithm, run.seed) for run in study.runs]
        self.known = Measurements(Rows(), array("q"))  # rows are held as compact columns
        self._new = Measurements()
        self._elsewhere: set[int] = set()  # runs of finished waves whose models rank 0 has
        self.recorder = Recorder()
        self._records = record
        self.last: Measurement | None = None
        self.over = False
        """Whether the wave that advances is over, on all ranks."""
        self.latest: dict[int, MetricsRow] = {}
        """The last row of each run that has been evaluated, by its number."""
        self.iteration, self.seconds = 0, 0.0  # of the wave that advances; of the whole study
        self._pending: list[int] | None = None  # runs whose evaluation was stopped
        self._places: dict[int, int] = {}  # run that advances -> its iteration, as far as known here
        self.sent, self._sent_before = 0, division.team.sent  # bytes between ranks
        if start is not None:
            self._resume(start, record)

    def _resume(self, start: Checkpoint, record: bool) -> None:
        """Begin with the rows of the checkpoint; recorded events until then are drawn again."""
        ran = int(start.about["run_iterations"])
        runs = self._runs_of(start.metrics)
        accuracies: dict[int, Tensor | None] = dict(start.accuracies)
        self.known = Measurements(Rows.of(start.metrics), array("q", runs), accuracies, dict(start.finished), ran)
        last = start.metrics.assign(run=runs).sort_values("iteration", kind="stable").groupby("run").tail(1)
        self._keep_latest(Rows.of(last.drop(columns="run")), last["run"].tolist())
        self.iteration, self.seconds = start.iteration, float(start.about["wall_seconds"])
        if record:
            for wave in start.plan.done:
                self._recover(wave, max(self.ended[r] for r in wave), start)
            for wave in start.plan.left[:1]:
                self._recover(wave, start.iteration, start)

    def _recover(self, wave: list[int], iterations: int, start: Checkpoint) -> None:
        """Have the events of a wave again: they are drawn, or the checkpoint has them where models decide what fires.

        Raises:
            InputError: They were not recorded.
        """
        runs = self._study.runs
        gated = [r for r in wave if runs[r].gated]
        if len(gated) < len(wave):
            self.recorder.redraw(runs, [r for r in wave if r not in gated], iterations)
        for r in gated if iterations else ():
            if r not in start.events:
                allowed = f"left out: the events of {self.names[r][0]} depend on models, and were not recorded before"
                raise InputError("record_events", True, allowed)
            self.recorder.insert(r, 0, start.events[r])

    def _runs_of(self, metrics: pd.DataFrame) -> list[int]:
        """The run of each row of a checkpoint: from its column `RUN`, or from algorithm and seed."""
        if RUN in metrics:
            return [int(run) for run in metrics[RUN]]
        place = {name: r for r, name in enumerate(self.names)}
        pairs = zip(metrics["algorithm"], metrics["seed"], strict=True)
        return [place[str(algorithm), int(seed)] for algorithm, seed in pairs]

    def _keep_latest(self, rows: Iterable[MetricsRow], runs: Iterable[int]) -> None:
        """Keep the last row of each run."""
        for r, row in zip(runs, rows, strict=True):
            if r not in self.latest or row.iteration >= self.latest[r].iteration:
                self.latest[r] = row

    @property
    def ended(self) -> dict[int, int]:
        """Run -> the iteration that it ended at, of those that are over."""
        return {r: row.iteration for r, row in self.latest.items() if self._study.ended_by(r, row)}

    @property
    def done(self) -> int:
        """Iterations of the waves that are finished, one after the other."""
        waves = self._start.plan.done if self._start else ()
        return sum(max((self.ended.get(r, 0) for r in wave), default=0) for wave in waves)

    @property
    def furthest(self) -> int:
        """The largest number of iterations that any run has taken, at least 1."""
        return max([1, self.iteration, *self.ended.values()])

    def position(self) -> Start | None:
        """Return where the study is resumed.

        Returns:
            The state of the checkpoint; None where the study begins.
        """
        if self._start is None:
            return None
        reached = {r: row.iteration for r, row in self.latest.items()}
        pending = [int(run) for run in self._start.about.get("pending", ())]
        behind = {int(run): int(k) for run, k in self._start.about.get("behind", {}).items()}
        pieces = list(self._start.pieces())
        return Start(self._start.plan, self._start.iteration, pieces, reached, self.ended, pending, behind)

    def advance(self, iteration: int, runs: int, seconds: float) -> None:
        """Count iterations of this rank.

        Args:
            iteration: The iteration that was reached.
            runs: The number of iterations of all runs together.
            seconds: The seconds of the study until now.
        """
        self._new.iterations += runs
        self.iteration, self.seconds = iteration, seconds

    def add(self, found: Measurement, seconds: float) -> None:
        """Add an evaluation of this rank.

        Args:
            found: The evaluation.
            seconds: The seconds of the study until now.
        """
        self._new.add(Measurements(found.rows, found.runs, dict(zip(found.runs, found.accuracies, strict=True))))
        self.last, self.seconds, self._places = found, seconds, found.places

    def stop_at(self, found: Measurement, seconds: float) -> None:
        """Note that an evaluation was stopped: its runs are evaluated when the study is resumed. All ranks call it.

        Ranks that have different runs may be at different iterations.

        Args:
            found: The evaluation.
            seconds: The seconds of the study until now.
        """
        mine = [*found.runs, *found.waiting], found.places
        gathered = (self._division.team.gather(mine) or [mine]) if self._division.kind == "runs" else [mine]
        self._pending = sorted({run for runs, _ in gathered for run in runs})
        self._places = {run: k for _, places in gathered for run, k in places.items()}
        self.last, self.iteration, self.seconds = found, max(self._places.values()), seconds

    def meet(self, over: bool) -> Measurements:
        """Gather what the ranks have measured since they last called this; all call it.

        Args:
            over: Whether every run of the wave is over, on all ranks.

        Returns:
            What is new, on rank 0 that of all ranks.
        """
        found, new, team = self.last, self._new, self._division.team
        self._new, self.over = Measurements(), over
        new.fired = self.recorder.news()
        if self._keeps_models and found and over and len(found.plan.left[0]) < len(self._study.runs):
            # The models of the next wave will replace these.
            new.finished = {r: found.models(r).cpu() for r in found.wave}
        if self._division.kind == "runs":
            gathered, new = team.gather(new) or [], Measurements()
            for one in gathered:
                new.add(one)
        if self._division.kind == "clients":
            sent = float(team.sent - self._sent_before)
            self.sent = int(team.all_reduce_sum(torch.tensor(sent, dtype=torch.float64)))
            if team.rank != 0:
                self._elsewhere |= new.finished.keys()
                new.finished = {}
        for run, first, events in new.fired if self._division.kind == "runs" else ():
            self.recorder.insert(run, first, events)
        new.fired = []
        self.known.add(new)
        self._keep_latest(new.rows, new.runs)
        return new

    @property
    def ran(self) -> int:
        """Iterations of all runs on this rank since the ranks last gathered."""
        return self._new.iterations

    @property
    def complete(self) -> bool:
        """Whether every run has been measured after its last iteration."""
        return len(self.ended) == len(self.names)

    @property
    def effort(self) -> dict[str, Any]:
        """Seconds and iterations of all runs, as a checkpoint has them."""
        return {"wall_seconds": self.seconds, "run_iterations": self.known.iterations}

    def report(self, running: float | None = None) -> dict[str, Any]:
        """Return what summary.json says of the progress.

        Args:
            running: The seconds of training and evaluation; default: all seconds.

        Returns:
            Iterations, runs and speed.
        """
        ended, latest = self.ended, self.latest
        going = [latest[r].iteration if r in latest else 0 for r in range(len(self.names)) if r not in ended]
        return {
            "iterations": self._study.iterations if going else max(ended.values()),
            "iterations_done": min(going) if going else max(ended.values()),
            "complete": not going,
            "interrupted_at": self.iteration if going else None,
            "ended": len(ended),
            "runs": len(self._study.runs),
            "parameters": self._study.model.parameters,
            "wall_seconds": self.seconds,
            "run_iterations_per_second": (self.known.iterations + self._new.iterations)
            / max(self.seconds if running is None else running, 1e-9),
        }

    def checkpoint(self, about: Mapping[str, Any]) -> Checkpoint:
        """Return a checkpoint of the study, valid until the study advances.

        Args:
            about: What else its manifest says.

        Returns:
            The checkpoint.

        Raises:
            InputError: Nothing was evaluated yet.
        """
        found = self.last
        if found is None:
            raise InputError("checkpoint", "nothing", "made after at least one evaluation")
        ended = self.over and self._pending is None
        nothing = ended or (found.iteration == 0 and self._pending is not None)  # the wave begins again
        furthest = max(self._places.values())
        metrics = typed(self.known.rows)
        if len(set(self.names)) < len(self.names):
            metrics[RUN] = np.array(self.known.runs, dtype=np.int64)
        behind = {} if ended else {str(run): k for run, k in sorted(self._places.items()) if k < furthest}
        return Checkpoint(
            found.plan.finished() if ended else found.plan,
            0 if ended else furthest,
            metrics,
            (lambda: ()) if nothing else found.pieces,
            self.known.finished,
            {r: values.contiguous() for r, values in self.known.accuracies.items() if values is not None},
            {
                "runs": self.names,
                "iterations": self._study.iterations,
                "pending": sorted(found.waiting) if self._pending is None else self._pending,
                **({"behind": behind} if behind else {}),
                **self.effort,
                **about,
            },
            {r: self.recorder.events(r) for r in self.recorder.runs if self._study.runs[r].gated},
        )

    def models(self) -> dict[Key, dict[str, Tensor]]:
        """Return the models as they are now; all ranks call it.

        Returns:
            Algorithm and seed -> a tensor (clients, *shape) for each parameter; on rank 0 those of all ranks.
        """
        held, division = dict(self._held()), self._division
        parts = (division.team.gather(held) or []) if division.kind == "runs" else [held]
        return {name: models for part in parts for name, models in part.items()}

    def _held(self) -> Iterator[tuple[Key, dict[str, Tensor]]]:
        for r, name in enumerate(self.names):
            if r in self.known.finished:
                yield name, self._study.model.unflatten(self.known.finished[r])
            elif self.last is not None and r in self.last.wave and r not in self._elsewhere:
                yield name, self._study.model.unflatten(self.last.models(r).detach().cpu())

    def events(self) -> dict[Key, tuple[Events, np.ndarray]]:
        """Return the recorded events.

        Returns:
            Algorithm and seed -> its events, and the links of its graph, (links, 2).
        """
        out, ended = {}, self.ended
        if self._records and self._division.kind == "runs" and self._division.team.rank == 0:
            for r, row in self.latest.items():  # those of other ranks are drawn again: draws are addressed
                done = ended.get(r, self._places.get(r, row.iteration))
                if r not in self.recorder.runs and done and not self._study.runs[r].gated:
                    self.recorder.redraw(self._study.runs, [r], done)
        for r in self.recorder.runs:
            done = ended.get(r, self._places.get(r, self.iteration))
            out[self.names[r]] = self.recorder.events(r, done), self._study.runs[r].rates.graph.edges
        return out
