"""Run a configuration, in Python: ``result = run(Config(...))``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from torch import Tensor

from dspodfl import roster
from dspodfl.checkpoint import Checkpoint
from dspodfl.config import Config, dumps
from dspodfl.config.build import Own, build
from dspodfl.data import Dataset, Federation, parts
from dspodfl.engine import Alone, Team
from dspodfl.errors import InputError
from dspodfl.findings import Findings
from dspodfl.graph import Graph
from dspodfl.interrupt import Interrupt
from dspodfl.judging import Row
from dspodfl.keeper import Keeper, claim_run
from dspodfl.plan import Plan, free_memory
from dspodfl.provenance import provenance
from dspodfl.results import Key, Result, ordered
from dspodfl.resume import Unfinished, compare_complete, complete, config_of
from dspodfl.rows import expected, warning
from dspodfl.scale import Pace, agreed, divide, expected_rows
from dspodfl.schedule import SCHEDULES, Schedule
from dspodfl.study import Measurement, Watch, choose_device, choose_precision, measure
from dspodfl.summary import summarize


@dataclass(frozen=True, eq=False)
class Update:
    """What a callback hears after each evaluation; a callback that returns True ends the study there."""

    iteration: int
    iterations: int
    rows: list[Row]
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
        config: Config | None = None,
        *,
        model: Any = None,
        data: Any = None,
        graph: nx.Graph | Graph | None = None,
        schedules: Mapping[str, Schedule] | None = None,
        device: str = "auto",
        record_events: bool = False,
        tick: Callable[[int], None] | None = None,
        on_plan: Callable[[Plan], None] | None = None,
        team: Team | None = None,
    ) -> None:
        config, self.team = config or Config(), team or Alone()
        self.device = choose_device(device)
        choose_precision(config.train.precision, self.device)
        if schedules:
            config = _with_schedules(config, schedules)
        own = Own(model, _own_data(data), graph, schedules)
        self.config, self.study, self.settings = agreed(self.team, lambda: build(config, own))
        self.precision = choose_precision(self.study.precision, self.device)[0]
        free = free_memory(self.device) // (self.team.near if self.device.type == "cpu" else 1)
        self.division = divide(self.config.scale.split, self.study.runs, self.team, free)
        self._members = roster.members(self.settings) if self.team.rank == 0 else {}
        if self.division.kind == "clients":
            self._let_go()
        self.plan: Plan | None = None
        self._tick, self._on_plan, self._record = tick, on_plan, record_events
        self._keeper: Keeper | None = None
        self._start: Checkpoint | None = None
        self._stop: Callable[[], bool] = lambda: False
        self.stopped = False
        """Whether the study was ended before its time."""
        self._findings = Findings(self.study, self.division)

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
        keeper: Keeper | None,
        stop: Callable[[], bool],
        *,
        overwrite: bool = False,
        before: Unfinished | None = None,
    ) -> list[str]:
        """Have a keeper put away where the study stands while it runs; ``stop`` is asked, often, whether to end there.

        ``before`` is a run that is gone on with, whose folder the keeper has reopened; without one the keeper takes a
        new folder. Of several ranks the first one has the keeper, and all call this. Gives what a person should know.
        """
        notes: list[str] = []
        if before is not None:
            agreed(self.team, lambda: self._check(before))
            notes = before.notes + before.elsewhere(
                self._provenance | {"precision": self.precision, "ranks": self.team.ranks}
            )
            self._start = before.start
        else:
            config = dumps(self.config.model_dump())
            agreed(self.team, lambda: keeper.create(overwrite=overwrite, config=config) if keeper else None)
        table = self.config.checkpoint
        if keeper:
            keeper.when(table.every_iterations, table.every_minutes, table.keep)
        self._keeper, self._stop = keeper, stop
        many = warning(expected(len(self.study.runs), self.study.iterations, self.study.every, self.study.at_delay))
        return [*notes, *([many] if many else [])]

    def _check(self, before: Unfinished) -> None:
        before.check(self.config)
        if before.start is not None:
            self.division.check(before.start.plan.left)

    def __iter__(self) -> Iterator[Update]:
        """Run the study; each evaluation of each wave is an update. ``tick`` hears how many iterations are done."""
        findings = self._findings = Findings(self.study, self.division, self._start, record=self._record)
        began, keeper, before = time.perf_counter() - findings.seconds, self._keeper, 0
        if self._start is not None:
            self.plan, before = self._start.plan, len(self._start.plan.done) * self.study.iterations

        def seconds() -> float:
            return time.perf_counter() - began

        def tick(iteration: int, runs: int) -> None:
            findings.advance(iteration, runs, seconds())
            if self._tick:
                self._tick(before + iteration)

        def planned(plan: Plan) -> None:
            self.plan = plan
            if self._on_plan:
                self._on_plan(plan)

        def reach(iteration: int) -> int:
            assert keeper is not None
            return iteration + 1 if self._stop() else keeper.reach(iteration)

        block = findings.recorder.add if self._record else Watch.block
        ahead = reach if keeper else None
        pace = Pace(self.team, self.study.every, self.study.iterations, ahead)
        alone = self.team.ranks == 1
        watch = Watch(tick, block, planned, ahead if alone else pace.reach)
        self._note(findings.known.rows)
        for found in measure(self.study, self.device, watch, findings.position(), self.division):
            last = findings.last
            if last is not None and last.wave != found.wave:
                before += self.study.iterations if last.iteration == self.study.iterations else 0
            findings.add(found, seconds())
            if alone or pace.met(found.iteration):
                self._note(findings.meet())
                if self.team.share(bool(keeper and keeper.due(found.iteration, not found.rows)) and not self.complete):
                    self._save()
            if found.rows:
                yield Update(found.iteration, self.study.iterations, found.rows, found, findings.names)
            if (alone or pace.met(found.iteration)) and self.team.any(self._stop()):
                self.stopped = True
                self.put_away()
                return

    def _note(self, rows: Sequence[Row]) -> None:
        """Have the keeper write rows down, if there are any, and if there is one."""
        keeper = self._keeper
        if keeper is None or not rows:
            return
        beside = {"interrupted_at": self._findings.iteration, **self._findings.effort}
        if keeper.begun:
            keeper.note(rows, **beside)
        else:
            header = {"study": self._about(), "config": self.config.model_dump(mode="json"), "options": keeper.options}
            keeper.begin(self.result(models=False), header, rows, **beside)

    def put_away(self) -> None:
        """Write a checkpoint of where the study stands now, if there is a keeper and anything left to do.

        All ranks call it, where they have met.
        """
        if self.team.share(bool(self._keeper) and not self.complete):
            self._save()

    def _save(self) -> None:
        """Every rank writes what its clients carry, and rank 0 the rest."""
        made = self.checkpoint()
        if self.team.ranks == 1 and self._keeper:
            self._keeper.save(made)
            return
        folder = self.team.share(str(self._keeper.folder) if self._keeper else None)
        (self._keeper or Keeper(Path(folder))).save(made, self.team)

    def checkpoint(self) -> Checkpoint:
        """Where the study stands; good until it goes on."""
        return self._findings.checkpoint(
            {
                "config": self.config.model_dump(mode="json"),
                "options": self._keeper.options if self._keeper else {},
                "precision": self.precision,
                "ranks": self.team.ranks,
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
                "algorithms": summarize(metrics, self.config.eval.targets, sorted(set(self.config.eval.at_delay))),
            },
            dumps(self.config.model_dump()),
            held,
            self._findings.events(),
        )

    def _about(self) -> dict[str, Any]:
        """Provenance: speed, versions, device, commit, and what should be known of the data and the rates."""
        return {
            **self._findings.report(),
            "precision": self.precision,
            "plan": None if self.plan is None else self.plan.report(),
            "scale": self._scale(),
            **self._provenance,
            "seeds": {str(found.seed): roster.report(found, self.study.iterations) for found in self.settings},
        }

    def _scale(self) -> dict[str, Any]:
        """How the study was divided; where clients were, the traffic of models, as it was and as the rates say."""
        about = self.division.report(self.study.runs)
        if self.division.kind == "clients" and self.team.rank == 0:
            first = self._start.iteration if self._start else 0
            pairs = list(zip(self.study.runs, self.division.owners, strict=True))
            rows = [expected_rows(run, owner, first, self._findings.iteration) for run, owner in pairs]
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
    config: Config | None = None,
    *,
    model: Any = None,
    data: Any = None,
    graph: nx.Graph | Graph | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    device: str = "auto",
    callbacks: Sequence[Callback] = (),
    record_events: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: str | Path | None = None,
) -> Result:
    """Run a study and give its result.

    ``model``: an nn.Module, or a function that makes one. ``data``: a `Dataset`, a `Federation`, a pair of torch
    Datasets (train, test), or arrays (x_train, y_train, x_test, y_test). ``graph``: a NetworkX graph.
    ``schedules``: algorithms of one's own, by name, run beside those that the configuration names (alone, where it
    names none). ``out``: a folder that the run is kept in while it runs, and its result at the end; ``resume``: the
    folder of such a run, which is gone on with, with everything that was given from Python given again.

    >>> result = run(Config(seeds=1, algorithms=["dspodfl"], train={"iterations": 20}))
    >>> result.metrics["iteration"].tolist()
    [0, 20]
    """
    brought: dict[str, Any] = {"model": model, "data": data, "graph": graph, "schedules": schedules, "device": device}
    if out is None and resume is None:
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
    with Interrupt() as interrupt, Keeper(folder, options) as keeper:
        before = None
        if resume is not None:
            keeper.reopen()
            before = Unfinished.read(folder)
            keeper.recover()
            config = config or config_of(folder, schedules or ())
            options["record"] = record_events or bool(before.options.get("record"))
        else:
            claim_run(folder, options, overwrite=overwrite)
        simulation = Simulation(config, record_events=options["record"], **brought)
        for note in simulation.keep(keeper, lambda: bool(interrupt.heard), overwrite=overwrite, before=before):
            warnings.warn(note, stacklevel=2)
        with interrupt.patiently():
            _drive(simulation, callbacks)
            result = simulation.result()
            keeper.finish(result, models=True)
        if interrupt.heard and not simulation.complete:
            raise interrupt.heard
        return result


def _drive(simulation: Simulation, callbacks: Sequence[Callback]) -> None:
    """Run a study until it ends, or a callback ends it."""
    for update in simulation:
        answers = [callback(update) for callback in callbacks]
        if any(isinstance(answer, bool | np.bool_) and answer for answer in answers):
            simulation.put_away()
            break


def _with_schedules(config: Config, schedules: Mapping[str, Schedule]) -> Config:
    clash = [name for name in schedules if name in SCHEDULES]
    if clash:
        raise InputError("schedules", clash[0], f"a name of its own, not one of {', '.join(SCHEDULES)}")
    named = [*config.algorithms] if "algorithms" in config.model_fields_set else []
    return config.model_copy(update={"algorithms": [*named, *(n for n in schedules if n not in named)]})


def _own_data(data: Any) -> Dataset | Federation | None:
    if data is None or isinstance(data, Dataset | Federation):
        return data
    if isinstance(data, tuple | list) and len(data) == 2:
        return Dataset.from_torch(*data)
    if isinstance(data, tuple | list) and len(data) == 4:
        return Dataset.from_arrays(*data)
    raise InputError(
        "data", type(data).__name__, "a Dataset, a Federation, (train, test) or (x_train, y_train, x_test, y_test)"
    )
