"""The session of one configuration: built from it, kept in the folder of a run, and its result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dspodfl.algorithms import Algorithm, Schedule
from dspodfl.analysis import MetricsRow, summarize
from dspodfl.config import Config, as_config, dumps
from dspodfl.engine import LocalTransport, Transport, choose_device, choose_precision
from dspodfl.errors import InputError
from dspodfl.network import Graph, as_graph
from dspodfl.problem.data import Dataset, Federation, as_data
from dspodfl.study import client_tables
from dspodfl.study.arguments import check_inputs
from dspodfl.study.brought import Brought
from dspodfl.study.builder import build
from dspodfl.study.forecast import ADVICE, Work, expected_seconds
from dspodfl.study.measurement import Measurement
from dspodfl.study.progress import Progress
from dspodfl.study.result import Result
from dspodfl.study.session import Session, SessionHooks
from dspodfl.study.store.resume import Unfinished
from dspodfl.study.store.rows import warning
from dspodfl.study.store.run_folder import RunFolder
from dspodfl.study.tables import ordered
from dspodfl.study.timing import Stopwatch
from dspodfl.study.user_inputs import UserInputs
from dspodfl.study.waves import Plan, free_memory
from dspodfl.study.work_split import agreed, expected_rows, release_data, split_work


class Simulation(Session):
    """A study of one configuration that is being run: iterate over it, and take the result whenever you like.

    `dspodfl.run` is this with the loop inside; iterate yourself to be able to stop and still have what was measured.

    Args:
        config: As for `dspodfl.run`, and so are ``model``, ``data``, ``graph``, ``schedules``, ``algorithms``,
            ``device`` and ``record_events``.
        tick: Called after every iteration with how many are done.
        on_plan: Called with the plan of waves, and again whenever it changes.
        team: The ranks that run it together; this process alone by default.
        progress: What shows progress.

    >>> simulation = Simulation(Config(seeds=1, algorithms=["dspodfl"], train={"iterations": 20}, eval={"every": 10}))
    >>> for update in simulation:
    ...     if update.iteration == 10:
    ...         break
    >>> simulation.result().metrics["iteration"].tolist()
    [0, 10]
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        model: Any = None,
        data: Any = None,
        graph: Any = None,
        schedules: Mapping[str, Schedule] | None = None,
        algorithms: Sequence[Algorithm | Schedule | str | Mapping[str, Any]] | None = None,
        device: str = "auto",
        record_events: bool = False,
        tick: Callable[[int], None] | None = None,
        on_plan: Callable[[Plan], None] | None = None,
        team: Transport | None = None,
        progress: Progress | None = None,
    ) -> None:
        timing, team = Stopwatch(), team or LocalTransport()
        check_inputs(schedules, device)
        config = as_config(config)
        where = choose_device(device)
        choose_precision(config.train.precision, where)
        brought = Brought.of(config, algorithms, schedules)
        config = brought.config
        inputs = UserInputs(model, _given_data(data, config), _given_graph(graph, config), brought.algorithms)
        with timing.during("building"):
            on_progress = progress.stage if progress else None
            made = agreed(team, lambda: build(config, inputs, on_progress=on_progress))
        self.config, study = made
        free = free_memory(where) // (team.local_ranks if where.type == "cpu" else 1)
        work_split = split_work(self.config.scale.split, study, team, free)
        self._members = client_tables.members(study.settings) if team.rank == 0 else {}
        study = release_data(study, work_split)
        self._tick, self._on_plan = tick, on_plan
        self._display = None if progress is None or progress.mode == "off" else progress
        self._models_evaluated, self._evaluated_before = 0, 0.0
        self._first: tuple[float, int] | None = None  # seconds of training and run-iterations after the first iteration
        self._folder: RunFolder | None = None
        super().__init__(study, where, work_split, self._session_hooks(), timing, record_events)

    def _session_hooks(self) -> SessionHooks:
        hooks = SessionHooks(self._plan_made, self._iterated, on_measured=self._show, on_rows=self._log)
        if self._display:
            display = self._display
            hooks.on_batch = lambda share: display.stage("evaluating", share)
        return hooks

    # --- the folder -------------------------------------------------------------------------------------------

    def open(
        self,
        folder: RunFolder | None,
        stop: Callable[[], bool],
        *,
        overwrite: bool = False,
        before: Unfinished | None = None,
    ) -> list[str]:
        """Keep the run in a folder while it runs, or resume the one that is there; all ranks call this.

        Args:
            folder: The folder, on rank 0: a new one is created, that of an unfinished run has been reopened.
            stop: Called often; where it returns True, the run saves a checkpoint and ends.
            overwrite: Whether a new run may take the place of what is there.
            before: The unfinished run that is resumed.

        Returns:
            What a person should know, a line each.
        """
        notes: list[str] = []
        if before is not None:
            agreed(self.team, lambda: before.check(self.config))
            here = self.provenance | {"precision": self.precision, "ranks": self.team.ranks}
            notes = before.notes + before.elsewhere(here)
        else:
            config = dumps(self.config.model_dump())
            agreed(self.team, lambda: folder.create(overwrite=overwrite, config=config) if folder else None)
        table = self.config.checkpoint
        if folder:
            folder.when(table.every_iterations, table.every_minutes, table.keep)
        self._folder = folder
        options = folder.options if folder else {}
        extra = {"config": self.config.model_dump(mode="json"), "options": options}
        start = before.start if before else None
        agreed(self.team, lambda: self.attach(folder, stop, start, **extra))
        self._evaluated_before = self.timing.seconds["evaluation"]
        many = warning(sum(self.study.evaluations(run.need or self.study.longest) for run in self.study.runs))
        return [*notes, *([many] if many else [])]

    def _log(self, rows: Sequence[MetricsRow], runs: Sequence[int]) -> None:
        """Append rows to the log of metrics, if the run is kept in a folder."""
        folder = self._folder
        if folder is None:
            return
        with self.writing():
            extra = {"interrupted_at": self.progress.iteration, **self.progress.effort, **self.times()}
            if folder.begun:
                folder.note(rows, **extra)
            else:
                config = self.config.model_dump(mode="json")
                header = {"study": self._about(), "config": config, "options": folder.options}
                folder.begin(self.result(models=False), header, rows, **extra)

    def finish(self, *, models: bool = True) -> Result:
        """Take the result and, on rank 0, write it to the folder of the run; all ranks call it.

        Args:
            models: Whether the models are written too.
        """
        result = self.result(models=models)
        if self._folder:
            with self.writing():
                self._folder.finish(result, models=models)
        return result

    @property
    def begun(self) -> bool:
        """Whether anything is in the folder of the run; True on ranks that have none."""
        return self._folder is None or self._folder.begun

    # --- what is shown meanwhile ------------------------------------------------------------------------------

    def _iterated(self, iteration: int) -> None:
        if self._tick:
            self._tick(iteration)
        if self._display:
            progress = self.progress
            if self._first is None:
                self._first = self.timing.seconds["training"], progress.known.iterations + progress.ran
            self._display.update(iteration, iteration)

    def _plan_made(self, plan: Plan) -> None:
        """Count the iterations of all waves, say where memory made waves smaller, and how long it will take."""
        show = self._display
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

    def _show(self, found: Measurement) -> None:
        """Show what was measured, and count the models that were evaluated: of row 0, one for each seed."""
        if self._display:
            self._display.show(found.rows)
        runs = [self.study.runs[r] for r in found.runs]
        if found.iteration == 0:
            self._models_evaluated += len({run.seed for run in runs})
        else:
            self._models_evaluated += sum(min(self.study.eval_clients or run.clients, run.clients) + 1 for run in runs)

    def estimate(self) -> float | None:
        """Seconds that the whole study takes, from what training and evaluation took so far; None if unknown."""
        seconds, work, found = self.timing.seconds, Work.of(self.study), self.progress
        if self._first is None or not self._models_evaluated:
            return None
        before, done = self._first[0], found.known.iterations + found.ran - self._first[1]
        if done <= 0:
            return None
        training = (seconds["training"] - before) / done * sum(run.need or 0 for run in self.study.runs)
        a_model = (seconds["evaluation"] - self._evaluated_before) / self._models_evaluated
        return training + a_model * work.evaluations * work.models

    # --- the result -------------------------------------------------------------------------------------------

    def result(self, *, models: bool = True) -> Result:
        """What has been measured so far, with or without the models as they are now.

        With models, all ranks call it together, and the result of rank 0 is the whole one.
        """
        if not self.measured and self.team.rank == 0:
            raise InputError("result", "nothing", "taken after at least one evaluation")
        held = self.progress.models() if models else {}
        metrics = ordered(self.progress.known.rows, self.config.labels)
        return Result(
            metrics,
            client_tables.clients(self.study.runs, self.progress.known.accuracies, self._members),
            {setting.seed: client_tables.setting(setting) for setting in self.study.settings},
            {
                "study": self._about(),
                "algorithms": summarize(
                    metrics, self.config.eval.targets, sorted(set(self.config.eval.at_delay)), self.config.train.budget
                ),
            },
            dumps(self.config.model_dump()),
            held,
            self.progress.events(),
            self.times,
        )

    def _about(self) -> dict[str, Any]:
        """Provenance: speed, versions, device, commit, and what should be known of the data and the rates."""
        times = self.times()
        return {
            **self.progress.report(times["seconds"]["training"] + times["seconds"]["evaluation"]),
            **times,
            "evaluated": self._evaluated(),
            "budget": self.config.train.budget.record(),
            "precision": self.precision,
            "plan": None if self.plan is None else self.plan.report(),
            "scale": self._scale(),
            **self.provenance,
            "seeds": {
                str(found.seed): client_tables.report(found, self.progress.furthest) for found in self.study.settings
            },
        }

    def _evaluated(self) -> dict[str, Any]:
        """How many test samples and clients are evaluated, and a sentence where it is not all of them."""
        samples, clients = len(self.study.settings[0].data.dataset.x_test), self.study.settings[0].rates.graph.n
        some = min(self.study.eval_samples or samples, samples), min(self.study.eval_clients or clients, clients)
        parts = [f"{some[1]:,} of {clients:,} clients"] if some[1] < clients else []
        parts += [f"{some[0]:,} of {samples:,} test samples"] if some[0] < samples else []
        note = f"accuracies and losses are those of {' on '.join(parts)}" if parts else None
        return {"samples": some[0], "clients": some[1], "note": note}

    def _scale(self) -> dict[str, Any]:
        """How the study was divided; where clients were, the traffic of models, as it was and as the rates say."""
        about = self.work_split.report(self.study.runs)
        if self.work_split.kind == "clients" and self.team.rank == 0:
            first = self._start.iteration if self._start else 0
            pairs = list(zip(self.study.runs, self.work_split.owners, strict=True))
            last, ended = self.progress.iteration, self.progress.ended
            rows = [expected_rows(run, owner, first, ended.get(r, last)) for r, (run, owner) in enumerate(pairs)]
            width = choose_precision(self.study.precision, self.device)[1].itemsize * self.study.model.parameters
            known = [count for count in rows if count is not None]
            one_wave = self.plan is not None and len(self.plan.done) + len(self.plan.left) == 1
            about["bytes_sent"] = self.progress.sent
            about["bytes_expected"] = int(sum(known) * width) if one_wave and len(known) == len(rows) else None
        return about


def _given_data(data: Any, config: Config) -> Dataset | Federation | None:
    """What a user gave as data; what should be known of it is said as a warning."""
    if data is None:
        return None
    found = as_data(data, config.seed if config.data.seed is None else config.data.seed)
    for note in found.notes:
        warnings.warn(note, stacklevel=4)
    return found.data


def _given_graph(graph: Any, config: Config) -> Graph | None:
    if graph is None:
        return None
    explicit = "clients" in config.model_fields_set and "count" in config.clients.model_fields_set
    return as_graph(graph, config.clients.count if explicit else None, directed=config.graph.directed)
