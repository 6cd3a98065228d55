"""The lifecycle of a study that is run: open a folder, start or resume, iterate, save checkpoints, stop.

A `Session` advances any `Study`: the runs of one configuration (`dspodfl.study.simulation.Simulation`) or the stacked
runs of many cells of a grid (`dspodfl.experiments.Sweep`); in one process, or as one rank of several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspodfl.analysis import MetricsRow
from dspodfl.engine import Transport, choose_precision
from dspodfl.study.measurement import Hooks, Measurement, Start
from dspodfl.study.measurements import StudyProgress
from dspodfl.study.provenance import provenance
from dspodfl.study.runner import measure
from dspodfl.study.store.checkpoint import Checkpoint
from dspodfl.study.store.checkpoint_writer import CheckpointWriter
from dspodfl.study.store.resume import Unfinished
from dspodfl.study.store.run_folder import RunFolder
from dspodfl.study.study import Study
from dspodfl.study.tables import Key
from dspodfl.study.timing import Stopwatch
from dspodfl.study.waves import Plan
from dspodfl.study.work_split import Pace, WorkSplit, agreed

_MEET = 1000
"""Iterations between two meetings of ranks, at most, where runs are not evaluated at multiples of a number."""


@dataclass(frozen=True, eq=False)
class Update:
    """What a callback is called with after each evaluation; a callback that returns True ends the study there."""

    iteration: int
    iterations: int
    rows: list[MetricsRow]
    _measurement: Measurement
    _names: list[Key]

    def theta(self, algorithm: str, seed: int) -> Tensor:
        """The current stacked parameters of one run that advances here. Shape: (clients, p)."""
        for r in self._measurement.wave:
            if self._names[r] == (algorithm, seed):
                return self._measurement.models(r)
        raise KeyError((algorithm, seed))


@dataclass(eq=False)
class SessionHooks:
    """Functions that are called while a session runs; the default ones do nothing."""

    on_plan: Callable[[Plan], None] = lambda plan: None
    """With the plan before it begins, and again whenever it changes."""
    on_iteration: Callable[[int], None] = lambda iteration: None
    """After every iteration, with how many are done, those of finished waves included."""
    on_batch: Callable[[float], None] | None = None
    """Before each batch of an evaluation, with the share of it that is done."""
    on_measured: Callable[[Measurement], None] = lambda found: None
    """With each evaluation of runs that advance on this rank."""
    on_rows: Callable[[Sequence[MetricsRow], Sequence[int]], None] = lambda rows, runs: None
    """Where ranks meet: with the rows of all of them since they last met (on rank 0), and the run of each row."""


@dataclass(eq=False)
class Session:
    """A study that is being run: iterate over it; each evaluation of each wave is an `Update`.

    Args:
        study: What is run.
        device: Where.
        work_split: Which of its runs, or clients, this rank has.
        hooks: What is called meanwhile.
        timing: Counts what the time went into.
        record_events: Whether events are recorded.
        keep_models: Whether the final models of finished waves are kept.
    """

    study: Study
    device: torch.device
    work_split: WorkSplit
    hooks: SessionHooks = field(default_factory=SessionHooks)
    timing: Stopwatch = field(default_factory=Stopwatch)
    record_events: bool = False
    keep_models: bool = True
    plan: Plan | None = field(default=None, init=False)
    stopped: bool = field(default=False, init=False)
    """Whether the study was ended before its time."""
    _writer: CheckpointWriter | None = field(default=None, init=False)
    _start: Checkpoint | None = field(default=None, init=False)
    _stop: Callable[[], bool] | None = field(default=None, init=False)
    _extra: Mapping[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.progress = StudyProgress(self.study, self.work_split)
        """What has been measured so far."""

    @property
    def team(self) -> Transport:
        """The ranks that run this study together."""
        return self.work_split.team

    @cached_property
    def precision(self) -> str:
        """The precision that models are computed in."""
        return choose_precision(self.study.precision, self.device)[0]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Device, versions and commit."""
        return provenance(self.device)

    # --- start or resume --------------------------------------------------------------------------------------

    def attach(
        self,
        writer: CheckpointWriter | None,
        stop: Callable[[], bool] | None,
        start: Checkpoint | None = None,
        **extra: Any,
    ) -> None:
        """Have checkpoints written while the study runs, and resume from one.

        Args:
            writer: Writes them, on rank 0; None elsewhere, or where no checkpoints are wanted.
            stop: Called often; where it returns True, the session saves a checkpoint and ends.
            start: The checkpoint to resume from; all ranks have read it.
            **extra: What else the manifest of a checkpoint says.
        """
        self._writer, self._stop, self._start, self._extra = writer, stop, start, extra
        if start is not None:
            sizes = Counter(self.study.groups)
            large = [wave for wave in start.plan.left if sizes[self.study.groups[wave[0]]] >= self.team.ranks]
            self.work_split.check(large, not start.about.get("behind"))
            self.timing.add(start.about.get("seconds", {"training": start.about["wall_seconds"]}))

    # --- iterate ----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Update]:
        """Run the study."""
        updates = self._iterate()
        while True:
            with self.timing.during("training"):  # what is done with an update is not the study's time
                update = next(updates, None)
            if update is None:
                return
            yield update

    def _iterate(self) -> Iterator[Update]:
        progress = self.progress = StudyProgress(
            self.study, self.work_split, self._start, record=self.record_events, models=self.keep_models
        )
        writer, stop, before, hooks = self._writer, self._stop, 0, self.hooks
        if self._start is not None:
            self.plan, before = self._start.plan, progress.done

        def tick(iteration: int, runs: int) -> None:
            progress.advance(iteration, runs, progress.seconds)
            hooks.on_iteration(before + iteration)

        start = progress.position()
        pace, study_hooks = self._paced(tick, start.iteration if start and start.meets else 0)
        alone, apart = self.team.ranks == 1, self.work_split.kind == "runs"
        self._rows_known(progress.known.rows, progress.known.runs)
        for found in self._measurements(study_hooks, start):
            last = progress.last
            if last is not None and last.wave != found.wave:
                before += last.iteration if last.over else 0
            if self._ended_within(found, pace):
                progress.stop_at(found, self.timing.total)
                self._meet(over=False)
                self.stopped = True
                self.save_checkpoint()
                return
            progress.add(found, self.timing.total)
            met = not apart or pace.met(found.iteration)  # ranks that share each run are never apart
            if met:
                pace.over = found.over if alone else not self.team.any(not found.over)
                self._meet(pace.over)
                due = bool(writer and writer.due(found.iteration, not found.rows))
                if self.team.broadcast(due and not self.complete):
                    self._save()
            if found.rows:
                hooks.on_measured(found)
                yield Update(found.iteration, self.study.longest, found.rows, found, progress.names)
            if met and self.team.any(bool(stop and stop())):
                self.stopped = True
                self.save_checkpoint()
                return

    def _measurements(self, hooks: Hooks, start: Start | None) -> Iterator[Measurement]:
        """Run the study, or resume it, and yield what is measured."""
        return measure(self.study, self.device, hooks, start, self.work_split)

    def _paced(self, tick: Callable[[int, int], None], first: int) -> tuple[Pace, Hooks]:
        """Where ranks meet, and what the study calls while it is measured."""
        writer, stop, team = self._writer, self._stop, self.team

        def reach(iteration: int) -> int:
            assert writer is not None
            return iteration + 1 if stop and stop() else writer.reach(iteration)

        ahead = reach if writer else None
        pace = Pace(team, self.study.every or _MEET, self.study.iterations, ahead, first)
        alone, apart = team.ranks == 1, self.work_split.kind == "runs"
        study_hooks = Hooks(tick, plan=self._planned, batch=self.hooks.on_batch, timing=self.timing)
        study_hooks.reach = ahead if alone else pace.reach
        if self.record_events:
            study_hooks.block = self.progress.recorder.add
        if not alone:
            study_hooks.waits = lambda: apart and not pace.over
        if stop is not None:
            study_hooks.stop = self._stop_anywhere(stop) if apart else stop
        return pace, study_hooks

    def _planned(self, plan: Plan) -> None:
        self.plan = plan
        self.hooks.on_plan(plan)

    def _meet(self, over: bool) -> None:
        """Put together what the ranks have measured, and hand it on."""
        news = self.progress.meet(over)
        self._rows_known(list(news.rows), news.runs)

    def _rows_known(self, rows: Sequence[MetricsRow] | Any, runs: Sequence[int]) -> None:
        if len(rows):
            self.hooks.on_rows(rows, runs)

    def _stop_anywhere(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function that says whether ``stop`` is true on any rank; ranks do not wait for each other in it."""
        bell = self.team.bell()

        def wanted() -> bool:
            if stop():
                bell.ring()
            return bell.rung()

        return wanted

    def _ended_within(self, found: Measurement, pace: Pace) -> bool:
        """Whether an evaluation was ended between its batches, here or on another rank.

        A rank that has ended one between two meetings goes no further: the next thing it does is to tell the others,
        which come to their meeting, or end an evaluation too. The first question of that meeting is this one.
        """
        if self._stop is None or self.work_split.kind != "runs":  # where clients are split, all ranks have agreed
            return found.stopped
        return (found.stopped or pace.met(found.iteration)) and self.team.any(found.stopped)

    # --- checkpoints ------------------------------------------------------------------------------------------

    def save_checkpoint(self) -> None:
        """Write a checkpoint of where the study is now, if checkpoints are written and anything is left to do.

        All ranks call it, where they have met.
        """
        if self.team.broadcast(bool(self._writer) and self.measured and not self.complete):
            self._save()

    def _save(self) -> None:
        """Every rank writes what its clients carry, and rank 0 the rest."""
        with self.writing():
            made = self.checkpoint()
            if self.team.ranks == 1 and self._writer:
                self._writer.save(made)
                return
            folder = self.team.broadcast(str(self._writer.folder) if self._writer else None)
            (self._writer or CheckpointWriter(Path(folder))).save(made, self.team)

    def checkpoint(self) -> Checkpoint:
        """Where the study is; good until it goes on."""
        about = {"precision": self.precision, "ranks": self.team.ranks, **self.times(), **self.provenance}
        return self.progress.checkpoint({**self._extra, **about})

    def writing(self) -> AbstractContextManager[None]:
        """Count the time of a block as that of writing."""
        return self.timing.during("writing")

    def times(self) -> dict[str, Any]:
        """The seconds so far, in all and by what they went into."""
        seconds = self.timing.seconds
        return {"wall_seconds": sum(seconds.values()), "seconds": seconds}

    @property
    def complete(self) -> bool:
        """Whether every run has been measured after its last iteration."""
        return self.progress.complete

    @property
    def measured(self) -> bool:
        """Whether there is anything to make a result of."""
        return bool(self.progress.known.rows)


@dataclass(frozen=True, eq=False)
class Opened:
    """The folder of a run that is ready: new, or of an unfinished run."""

    folder: RunFolder | None
    """On rank 0."""
    before: Unfinished | None
    """What an unfinished run has left."""
    options: dict[str, Any]
    """How the run was started; those of an unfinished run are added to those given now."""
    overwrite: bool = False


def open_folder(
    ends: ExitStack,
    team: Transport,
    *,
    out: Path | None = None,
    resume: Path | None = None,
    overwrite: bool = False,
    options: dict[str, Any],
) -> Opened:
    """Claim the folder of a new run, or reopen that of an unfinished one: the one place where this is done.

    Rank 0 holds the folder until ``ends`` closes. Of a run that is resumed it first finishes what a killed process had
    begun there; then all ranks read it.

    Args:
        ends: What closes at the end.
        team: The ranks; all call this.
        out: The folder of a new run.
        resume: The folder of an unfinished one.
        overwrite: Whether a new run may replace what is there.
        options: How the run is started: ``models``, ``record`` and what the process that resumes it should know.

    Returns:
        The folder, and what is in it.

    Raises:
        InputError: The folder cannot be used.
        DataError: What is in it cannot be resumed.
    """
    first = team.rank == 0

    def opened() -> tuple[RunFolder | None, Unfinished | None]:
        if not first:
            return None, None
        folder = ends.enter_context(RunFolder(resume or out or Path(), options))
        if resume is None:
            folder.claim(overwrite=overwrite)
            return folder, None
        folder.reopen()
        before = Unfinished.read(resume)
        folder.recover()
        return folder, before

    folder, before = agreed(team, opened)
    if resume is not None:
        before = agreed(team, lambda: before or Unfinished.read(resume))
        options |= {key: value for key, value in before.options.items() if value}
    return Opened(folder, before, options, overwrite)
