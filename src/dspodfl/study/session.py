"""Run a configuration, in Python: ``result = run(Config(...))``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dspodfl.algorithms import SCHEDULES, Schedule
from dspodfl.analysis import MetricsRow, summarize
from dspodfl.config import Config, algorithm, as_config, dumps
from dspodfl.engine import Alone, Team, choose_device, choose_precision
from dspodfl.errors import InputError, Interrupt
from dspodfl.network import Graph, as_graph
from dspodfl.problem.data import Dataset, Federation, as_data, parts
from dspodfl.study import client_tables as roster
from dspodfl.study.arguments import check_inputs, check_options
from dspodfl.study.builder import Own, build
from dspodfl.study.division import Pace, agreed, divide, expected_rows
from dspodfl.study.forecast import ADVICE, Work, expected_seconds
from dspodfl.study.measurements import StudyProgress
from dspodfl.study.progress import Progress, for_python
from dspodfl.study.provenance import provenance
from dspodfl.study.result import Key, Result, ordered
from dspodfl.study.store.checkpoint import Checkpoint
from dspodfl.study.store.resume import Unfinished, compare_complete, complete, config_of
from dspodfl.study.store.rows import warning
from dspodfl.study.store.run_folder import RunFolder, claim_run
from dspodfl.study.study import Hooks, Measurement, measure
from dspodfl.study.timing import Stopwatch
from dspodfl.study.waves import Plan, free_memory

_MEET = 1000
"""Iterations between two meetings of ranks, at most, where runs are not evaluated at multiples of a number."""


@dataclass(frozen=True, eq=False)
class Update:
    """What a callback hears after each evaluation; a callback that returns True ends the study there."""

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


Callback = Callable[[Update], object]


class Simulation:
    """A study that is being run: iterate over it, and take the result whenever you like.

    ``run`` is this with the loop inside; iterate yourself to be able to stop and still have what was measured.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        model: Any = None,
        data: Any = None,
        graph: Any = None,
        schedules: Mapping[str, Schedule] | None = None,
        device: str = "auto",
        record_events: bool = False,
        tick: Callable[[int], None] | None = None,
        on_plan: Callable[[Plan], None] | None = None,
        team: Team | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.timing = Stopwatch()
        """What the time went into."""
        check_inputs(schedules, device)
        config, self.team = as_config(config), team or Alone()
        self.device = choose_device(device)
        choose_precision(config.train.precision, self.device)
        if schedules:
            config = _with_schedules(config, schedules)
        own = Own(model, _own_data(data, config), _own_graph(graph, config), schedules)
        with self.timing.during("building"):
            on_progress = progress.stage if progress else None
            made = agreed(self.team, lambda: build(config, own, on_progress=on_progress))
        self.config, self.study, self.settings = made
        self.precision = choose_precision(self.study.precision, self.device)[0]
        free = free_memory(self.device) // (self.team.near if self.device.type == "cpu" else 1)
        self.division = divide(self.config.scale.split, self.study.runs, self.team, free)
        self._members = roster.members(self.settings) if self.team.rank == 0 else {}
        if self.division.kind == "clients":
            self._let_go()
        self.plan: Plan | None = None
        self._tick, self._on_plan, self._record, self._progress = tick, on_plan, record_events, progress
        self._models_evaluated, self._evaluated_before = 0, 0.0
        self._first: tuple[float, int] | None = None  # seconds of training and run-iterations after the first iteration
        if progress is not None and progress.mode == "off":
            self._progress = None
        self._folder: RunFolder | None = None
        self._start: Checkpoint | None = None
        self._stop: Callable[[], bool] | None = None
        self.stopped = False
        """Whether the study was ended before its time."""
        self._findings = StudyProgress(self.study, self.division)

    def _let_go(self) -> None:
        """Keep the samples of the clients that are held here, and let go of all others."""
        first = {run.seed: r for r, run in reversed(list(enumerate(self.study.runs)))}
        owned = [self.division.owned(first[setting.seed]) for setting in self.settings]
        held = parts([setting.data for setting in self.settings], owned)
        self.settings = [replace(setting, data=data) for setting, data in zip(self.settings, held, strict=True)]
        mine = {setting.seed: setting.data for setting in self.settings}
        self.study = replace(self.study, runs=[replace(run, data=mine[run.seed]) for run in self.study.runs])

    def keep(
        self,
        run_folder: RunFolder | None,
        stop: Callable[[], bool],
        *,
        overwrite: bool = False,
        before: Unfinished | None = None,
    ) -> list[str]:
        """Have a run_folder put away where the study stands while it runs; ``stop`` is asked, often, whether to end there.

        ``before`` is a run that is gone on with, whose folder the run_folder has reopened; without one the run_folder takes a
        new folder. Of several ranks the first one has the run_folder, and all call this. Gives what a person should know.
        """
        notes: list[str] = []
        if before is not None:
            agreed(self.team, lambda: self._check(before))
            notes = before.notes + before.elsewhere(
                self._provenance | {"precision": self.precision, "ranks": self.team.ranks}
            )
            self._start = before.start
            if self._start is not None:
                about = self._start.about
                self.timing.add(about.get("seconds", {"training": about["wall_seconds"]}))
        else:
            config = dumps(self.config.model_dump())
            agreed(self.team, lambda: run_folder.create(overwrite=overwrite, config=config) if run_folder else None)
        table = self.config.checkpoint
        if run_folder:
            run_folder.when(table.every_iterations, table.every_minutes, table.keep)
        self._folder, self._stop = run_folder, stop
        many = warning(sum(self.study.evaluations(run.need or self.study.longest) for run in self.study.runs))
        return [*notes, *([many] if many else [])]

    def _check(self, before: Unfinished) -> None:
        before.check(self.config)
        if before.start is not None:
            self.division.check(before.start.plan.left, not before.start.about.get("behind"))

    def __iter__(self) -> Iterator[Update]:
        """Run the study; each evaluation of each wave is an update. ``tick`` hears how many iterations are done."""
        updates = self._iterate()
        while True:
            with self.timing.during("training"):  # what is done with an update is not the study's time
                update = next(updates, None)
            if update is None:
                return
            yield update

    def _iterate(self) -> Iterator[Update]:
        findings = self._findings = StudyProgress(self.study, self.division, self._start, record=self._record)
        run_folder, before, show = self._folder, 0, self._progress
        self._evaluated_before = self.timing.seconds["evaluation"]
        if self._start is not None:
            self.plan, before = self._start.plan, findings.done

        def tick(iteration: int, runs: int) -> None:
            findings.advance(iteration, runs, findings.seconds)
            if self._tick:
                self._tick(before + iteration)
            if show:
                self._first = self._first or (self.timing.seconds["training"], findings.known.iterations + findings.ran)
                show.update(before + iteration, before + iteration)

        def reach(iteration: int) -> int:
            assert run_folder is not None
            return iteration + 1 if self._stop and self._stop() else run_folder.reach(iteration)

        block = findings.recorder.add if self._record else Hooks.block
        ahead = reach if run_folder else None
        start = findings.position()
        first = start.iteration if start and start.meets else 0
        pace = Pace(self.team, self.study.every or _MEET, self.study.iterations, ahead, first)
        alone = self.team.ranks == 1
        apart = self.division.kind == "runs"
        waits = (lambda: apart and not pace.over) if not alone else Hooks.waits
        watch = Hooks(tick, block, self._planned, ahead if alone else pace.reach, waits, timing=self.timing)
        stop = self._stop
        if stop is not None:
            watch.stop = self._heard(stop) if apart else stop
        if show:
            watch.batch = partial(show.stage, "evaluating")
        self._note(list(findings.known.rows))
        for found in measure(self.study, self.device, watch, start, self.division):
            last = findings.last
            if last is not None and last.wave != found.wave:
                before += last.iteration if last.over else 0
            if self._ended_within(found, pace):
                findings.stop_at(found, self.timing.total)
                self._note(findings.meet(over=False))
                self.stopped = True
                self.save_checkpoint()
                return
            findings.add(found, self.timing.total)
            met = not apart or pace.met(found.iteration)  # ranks that share each run are never apart
            if met:
                pace.over = found.over if alone else not self.team.any(not found.over)
                self._note(findings.meet(pace.over))
                if self.team.share(
                    bool(run_folder and run_folder.due(found.iteration, not found.rows)) and not self.complete
                ):
                    self._save()
            if found.rows:
                self._measured(found)
                yield Update(found.iteration, self.study.longest, found.rows, found, findings.names)
            if met and self.team.any(bool(stop and stop())):
                self.stopped = True
                self.save_checkpoint()
                return

    def _planned(self, plan: Plan) -> None:
        """Count the iterations of all waves, say where memory made waves smaller, and how long it will take."""
        self.plan, show = plan, self._progress
        if self._on_plan:
            self._on_plan(plan)
        if show is None:
            return
        whole = self.study.longest * len(plan.done + plan.left)
        show.start(whole, whole)
        show.estimate = self.estimate
        if plan.halvings:
            sizes = ", ".join(str(len(wave)) for wave in plan.left)
            show.say(f"out of memory: continuing with smaller waves (runs: {sizes})")
        elif not self.measured:
            with self.timing.during("building"):
                seconds = expected_seconds([self.study], self.device)
            show.forecast(None if seconds is None else seconds / self.team.ranks, ADVICE)

    def _measured(self, found: Measurement) -> None:
        """Show what was measured, and count the models that were evaluated: of row 0, one for each seed."""
        if self._progress:
            self._progress.show(found.rows)
        runs = [self.study.runs[r] for r in found.runs]
        if found.iteration == 0:
            self._models_evaluated += len({run.seed for run in runs})
        else:
            self._models_evaluated += sum(min(self.study.eval_clients or run.clients, run.clients) + 1 for run in runs)

    def estimate(self) -> float | None:
        """Seconds that the whole study takes, from what training and evaluation took so far; None if unknown."""
        seconds, work, found = self.timing.seconds, Work.of(self.study), self._findings
        if self._first is None or not self._models_evaluated:
            return None
        before, done = self._first[0], found.known.iterations + found.ran - self._first[1]
        if done <= 0:
            return None
        training = (seconds["training"] - before) / done * sum(run.need or 0 for run in self.study.runs)
        a_model = (seconds["evaluation"] - self._evaluated_before) / self._models_evaluated
        return training + a_model * work.evaluations * work.models

    def _heard(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """Whether to stop, said here or on any other rank; ranks that have different runs are not asked together."""
        bell = self.team.bell()

        def heard() -> bool:
            if stop():
                bell.ring()
            return bell.rung()

        return heard

    def _ended_within(self, found: Measurement, pace: Pace) -> bool:
        """Whether an evaluation was ended between its batches, here or on another rank.

        A rank that has ended one between two meetings goes no further: the next thing it does is to tell the others,
        which come to their meeting, or end an evaluation too. What each of them asks there first is asked here.
        """
        if self._stop is None or self.division.kind != "runs":  # where clients are split, all ranks have agreed
            return found.stopped
        return (found.stopped or pace.met(found.iteration)) and self.team.any(found.stopped)

    def _note(self, rows: Sequence[MetricsRow]) -> None:
        """Have the run_folder write rows down, if there are any, and if there is one."""
        run_folder = self._folder
        if run_folder is None or not rows:
            return
        with self.writing():
            beside = {"interrupted_at": self._findings.iteration, **self._findings.effort, **self._times()}
            if run_folder.begun:
                run_folder.note(rows, **beside)
            else:
                config = self.config.model_dump(mode="json")
                header = {"study": self._about(), "config": config, "options": run_folder.options}
                run_folder.begin(self.result(models=False), header, rows, **beside)

    def writing(self) -> AbstractContextManager[None]:
        """Count the time of a block as that of writing."""
        return self.timing.during("writing")

    def _times(self) -> dict[str, Any]:
        seconds = self.timing.seconds
        return {"wall_seconds": sum(seconds.values()), "seconds": seconds}

    def save_checkpoint(self) -> None:
        """Write a checkpoint of where the study stands now, if there is a run_folder and anything left to do.

        All ranks call it, where they have met.
        """
        if self.team.share(bool(self._folder) and self.measured and not self.complete):
            self._save()

    def _save(self) -> None:
        """Every rank writes what its clients carry, and rank 0 the rest."""
        with self.writing():
            self._write(self.checkpoint())

    def _write(self, made: Checkpoint) -> None:
        if self.team.ranks == 1 and self._folder:
            self._folder.save(made)
            return
        folder = self.team.share(str(self._folder.folder) if self._folder else None)
        (self._folder or RunFolder(Path(folder))).save(made, self.team)

    def checkpoint(self) -> Checkpoint:
        """Where the study stands; good until it goes on."""
        return self._findings.checkpoint(
            {
                "config": self.config.model_dump(mode="json"),
                "options": self._folder.options if self._folder else {},
                "precision": self.precision,
                "ranks": self.team.ranks,
                **self._times(),
                **self._provenance,
            }
        )

    @property
    def complete(self) -> bool:
        """Whether every run has been measured after its last iteration."""
        return self._findings.complete

    @property
    def measured(self) -> bool:
        """Whether there is anything to make a result of."""
        return bool(self._findings.known.rows)

    def result(self, *, models: bool = True) -> Result:
        """What has been measured so far, with or without the models as they are now.

        Where there are several ranks, all ask for the models together, and the result of rank 0 is the whole one.
        """
        if not self.measured and self.team.rank == 0:
            raise InputError("result", "nothing", "taken after at least one evaluation")
        held = self._findings.models() if models else {}
        metrics = ordered(self._findings.known.rows, self.config.algorithms)
        return Result(
            metrics,
            roster.clients(self.study.runs, self._findings.known.accuracies, self._members),
            {setting.seed: roster.setting(setting) for setting in self.settings},
            {
                "study": self._about(),
                "algorithms": summarize(
                    metrics, self.config.eval.targets, sorted(set(self.config.eval.at_delay)), self.config.train.budget
                ),
            },
            dumps(self.config.model_dump()),
            held,
            self._findings.events(),
            self._times,
        )

    def _about(self) -> dict[str, Any]:
        """Provenance: speed, versions, device, commit, and what should be known of the data and the rates."""
        times = self._times()
        return {
            **self._findings.report(times["seconds"]["training"] + times["seconds"]["evaluation"]),
            **times,
            "evaluated": self._evaluated(),
            "budget": self.config.train.budget.record(),
            "precision": self.precision,
            "plan": None if self.plan is None else self.plan.report(),
            "scale": self._scale(),
            **self._provenance,
            "seeds": {str(found.seed): roster.report(found, self._findings.furthest) for found in self.settings},
        }

    def _evaluated(self) -> dict[str, Any]:
        """How many test samples and clients are evaluated, and a sentence where it is not all of them."""
        samples, clients = len(self.settings[0].data.dataset.x_test), self.settings[0].rates.graph.n
        some = min(self.study.eval_samples or samples, samples), min(self.study.eval_clients or clients, clients)
        parts = [f"{some[1]:,} of {clients:,} clients"] if some[1] < clients else []
        parts += [f"{some[0]:,} of {samples:,} test samples"] if some[0] < samples else []
        note = f"accuracies and losses are those of {' on '.join(parts)}" if parts else None
        return {"samples": some[0], "clients": some[1], "note": note}

    def _scale(self) -> dict[str, Any]:
        """How the study was divided; where clients were, the traffic of models, as it was and as the rates say."""
        about = self.division.report(self.study.runs)
        if self.division.kind == "clients" and self.team.rank == 0:
            first = self._start.iteration if self._start else 0
            pairs = list(zip(self.study.runs, self.division.owners, strict=True))
            last, ended = self._findings.iteration, self._findings.ended
            rows = [expected_rows(run, owner, first, ended.get(r, last)) for r, (run, owner) in enumerate(pairs)]
            width = choose_precision(self.study.precision, self.device)[1].itemsize * self.study.model.parameters
            known = [count for count in rows if count is not None]
            one_wave = self.plan is not None and len(self.plan.done) + len(self.plan.left) == 1
            about["bytes_sent"] = self._findings.sent
            about["bytes_expected"] = int(sum(known) * width) if one_wave and len(known) == len(rows) else None
        return about

    @cached_property
    def _provenance(self) -> dict[str, Any]:
        return provenance(self.device)


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: Any = None,
    data: Any = None,
    graph: Any = None,
    schedules: Mapping[str, Schedule] | None = None,
    device: str = "auto",
    callbacks: Sequence[Callback] = (),
    record_events: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: str | Path | None = None,
    progress: bool | None = None,
) -> Result:
    """Run a study and give its result.

    Args:
        config: a `Config`, the path of a TOML file, or a dictionary of tables; the paper's default setting if None.
        model: an nn.Module, or a function that makes one.
        data: a `Dataset`, a `Federation`, arrays ``(x, y)`` or ``(x_train, y_train, x_test, y_test)``, datasets
            ``(train, test)``, a dictionary of splits, or a list with the ``(x, y)`` of each client (docs/python.md).
        graph: a NetworkX graph, a list of links ``[(0, 1), (1, 2)]``, or an adjacency matrix.
        schedules: custom algorithms by name, run next to those that the configuration names (alone, where it names
            none).
        device: auto, cpu or cuda.
        callbacks: called with each evaluation (`Update`); one that returns True ends the study there.
        record_events: whether the result holds what fired, for replay.
        out: a folder that the run is written to while it runs, and its result at the end.
        overwrite: whether a result that is already there is replaced.
        resume: the folder of a run to resume; everything that was given from Python is given again.
        progress: whether to show progress; None shows a bar on a terminal and in a notebook, True log lines elsewhere.

    Returns:
        The result, also where a callback has ended the study.

    Raises:
        ConfigError, InputError, DataError: something that was given cannot be used; the message says what is allowed.

    >>> result = run(Config(seeds=1, algorithms=["dspodfl"], train={"iterations": 20}))
    >>> result.metrics["iteration"].tolist()
    [0, 20]
    """
    check_options(callbacks, out, resume, progress, record_events=record_events, overwrite=overwrite)
    config, show = None if config is None else as_config(config), for_python(progress)
    brought: dict[str, Any] = {"model": model, "data": data, "graph": graph, "schedules": schedules, "device": device}
    brought["progress"] = show
    if out is None and resume is None:
        with show:
            simulation = Simulation(config, record_events=record_events, **brought)
            _drive(simulation, callbacks)
            return simulation.result()
    if out is not None and resume is not None:
        raise InputError("out", str(out), "left out: a run that is resumed stays in its folder")
    if resume is not None and complete(Path(resume)):
        result = Result.load(resume)
        if config is not None:
            given = [name for name in ("model", "data", "graph") if brought[name] is not None]
            compare_complete(Path(resume), config, given, schedules or ())
        return result
    folder = Path(resume or out or "")
    options = {"models": True, "record": record_events}
    with show, Interrupt() as interrupt, RunFolder(folder, options) as run_folder:
        before = None
        if resume is not None:
            run_folder.reopen()
            before = Unfinished.read(folder)
            run_folder.recover()
            config = config or config_of(folder, schedules or ())
            options["record"] = record_events or bool(before.options.get("record"))
        else:
            claim_run(folder, options, overwrite=overwrite)
        simulation = Simulation(config, record_events=options["record"], **brought)
        for note in simulation.keep(run_folder, lambda: bool(interrupt.heard), overwrite=overwrite, before=before):
            warnings.warn(note, stacklevel=2)
        with interrupt.patiently():
            _drive(simulation, callbacks)
            if interrupt.heard and not simulation.measured:
                raise interrupt.heard
            result = simulation.result()
            with simulation.writing():
                run_folder.finish(result, models=True)
        if interrupt.heard and not simulation.complete:
            raise interrupt.heard
        return result


def _drive(simulation: Simulation, callbacks: Sequence[Callback]) -> None:
    """Run a study until it ends, or a callback ends it."""
    for update in simulation:
        answers = [callback(update) for callback in callbacks]
        if any(isinstance(answer, bool | np.bool_) and answer for answer in answers):
            simulation.save_checkpoint()
            break


def _with_schedules(config: Config, schedules: Mapping[str, Schedule]) -> Config:
    clash = [name for name in schedules if algorithm(name) in SCHEDULES]
    if clash:
        raise InputError("schedules", clash[0], f"a name of its own, not one of {', '.join(SCHEDULES)}")
    named = [*config.algorithms] if "algorithms" in config.model_fields_set else []
    return config.model_copy(update={"algorithms": [*named, *(n for n in schedules if n not in named)]})


def _own_data(data: Any, config: Config) -> Dataset | Federation | None:
    """What a user gave as data; what should be known of it is said as a warning."""
    if data is None:
        return None
    found = as_data(data, config.seed if config.data.seed is None else config.data.seed)
    for note in found.notes:
        warnings.warn(note, stacklevel=4)
    return found.data


def _own_graph(graph: Any, config: Config) -> Graph | None:
    if graph is None:
        return None
    explicit = "clients" in config.model_fields_set and "count" in config.clients.model_fields_set
    return as_graph(graph, config.clients.count if explicit else None)
