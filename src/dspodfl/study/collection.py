"""From the models that nodes have computed to the folder that ``dspodfl run`` writes: nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspodfl.algorithms import Rule, averaged_models, evaluated_models, rests_without_events
from dspodfl.analysis import MetricsRow
from dspodfl.config import Config
from dspodfl.engine import Due, Stack, State, choose_precision, foreseen, products
from dspodfl.study.given_models import GivenEvaluator, GivenSnapshot, Models, NodeModels, taken
from dspodfl.study.measurement import Hooks, Measurement, Members, Start
from dspodfl.study.result import ALWAYS, Result
from dspodfl.study.runner_wave import RunContext
from dspodfl.study.simulation import Simulation
from dspodfl.study.store.claiming import claim
from dspodfl.study.store.layout import NODES
from dspodfl.study.tables import Key
from dspodfl.study.waves import Plan, make_plan


def collected(
    config: Config | Mapping[str, Any] | str | Path,
    models: Models,
    folder: str | Path,
    *,
    diverged: Mapping[Key, int] | None = None,
    overwrite: bool = False,
    seconds: float = 0.0,
    device: str = "auto",
    **brought: Any,
) -> Result:
    """Write the folder that ``dspodfl run`` writes, from models that nodes have computed.

    Events, delays, steps, uses, bytes and the end of each run follow from the configuration. The models are evaluated
    where ``dspodfl run`` evaluates them. The model of iteration 0 follows from the configuration as well. A column that
    needs a missing model is null. A run ends at the last evaluation at which any of its models is there, or at which it
    has diverged; a study with such a run is not complete.

    Args:
        config: The configuration that the nodes ran, as for `dspodfl.run`.
        models: The label of an algorithm, a seed, an iteration -> the models of all clients: a tensor (clients, p),
            `NodeModels`, or None where all are missing. Models that are not finite say that the run has diverged.
        folder: Where the result is written.
        diverged: (label, seed) -> the iteration at which nodes have found that a model is no longer finite.
        overwrite: Whether a result that is already there is replaced.
        seconds: How long the nodes have trained.
        device: Where models are evaluated: auto, cpu or cuda.
        **brought: ``model``, ``data``, ``graph``, ``schedules`` and ``algorithms``, as for `dspodfl.run`.

    Returns:
        The result. Nothing is written where an error is raised.

    Raises:
        ConfigError, InputError, DataError: Something that was given cannot be used.
    """
    folder = Path(folder)
    claim(folder, overwrite=overwrite, names=ALWAYS)
    collection = _Collection(config, models, diverged or {}, seconds, device=device, **brought)
    for _ in collection:
        pass
    result = collection.result(models=False)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    about = {"config": result.config_toml, "options": {"models": False, "record": False}, "source": NODES}
    try:
        with collection.writing():
            result.save(folder, overwrite=overwrite, models=False, about=about)
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise
    return result


class _Collection(Simulation):
    """A study whose models are given: iterating over it evaluates them.

    Args:
        config: As for `Simulation`, and so is ``brought``.
        models: What nodes have computed.
        diverged: (label, seed) -> the iteration at which nodes have found that a model is no longer finite.
        seconds: How long the nodes have trained.
        **brought: What is given in Python.
    """

    def __init__(
        self, config: Any, models: Models, diverged: Mapping[Key, int], seconds: float, **brought: Any
    ) -> None:
        super().__init__(config, **brought)
        self.keep_models = False
        self._models, self._lost = models, diverged
        self._missing, self._scored = 0, False
        self.timing.add({"training": seconds})

    def _measurements(self, hooks: Hooks, start: Start | None) -> Iterator[Measurement]:
        """Evaluate the runs in the waves that the simulator would run them in."""
        study, precision = self.study, choose_precision(self.study.precision, self.device)
        plan = make_plan(study.runs, study.model, study.batch_size, self.device, precision[1], groups=study.groups)
        hooks.plan(plan)
        while plan.left:
            context = RunContext(study, self.device, precision, hooks, plan, self.work_split)
            wave = _Wave(context, plan.left[0], self._models, self._lost)
            with products(precision[0]):
                yield from wave.measured(hooks)
            self._missing, self._scored = self._missing + wave.missing, self._scored or wave.scored
            plan = plan.finished()

    def _about(self) -> dict[str, Any]:
        """Say also that nodes have trained, and how many of their models are missing."""
        return {**super()._about(), "source": NODES, "models_missing": self._missing}

    def _evaluated(self) -> dict[str, Any]:
        """Say also where accuracies are those of other test sets than that of the study."""
        note = {"note": "accuracies and losses are means over the nodes' own test sets"} if self._scored else {}
        return super()._evaluated() | note


@dataclass(eq=False)
class _Wave:
    """The runs of a wave, whose models are evaluated one iteration after the other.

    Args:
        context: What the wave has in common.
        runs: The numbers of the runs in the study.
        models: What nodes have computed.
        diverged: (label, seed) -> the iteration at which nodes have found that a run has diverged.
    """

    context: RunContext
    runs: list[int]
    models: Models
    diverged: Mapping[Key, int]
    missing: int = 0
    """Models that were not there, of those that were wanted up to the last row of each run."""
    scored: bool = False
    """Whether nodes have test sets of their own."""
    _over: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)
    _held: dict[int, list[tuple[MetricsRow, Tensor | None]]] = field(default_factory=dict)
    """Run -> its rows without any model, which are written once a later model is there."""
    _reached: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        study = self.context.study
        self._stack = Stack([study.runs[r] for r in self.runs])
        self._problem = self.context.problem(self._stack.runs)
        self._rule: Rule = study.rules[self.runs[0]]
        self._averages = getattr(self._rule, "averaged", None) is not None
        shape = (self._stack.clients, self._problem.width)
        self._packed = torch.zeros(shape, device=self._problem.device, dtype=self._problem.dtype)
        self._averaged = torch.zeros_like(self._packed) if self._averages else None

    def measured(self, hooks: Hooks) -> Iterator[Measurement]:
        """Yield the evaluations of the wave, in the order of iterations."""
        study, stack = self.context.study, self._stack
        evaluator = GivenEvaluator(
            stack,
            self._problem,
            unchanged_without_events=rests_without_events(self._rule),
            clients=study.eval_clients,
            on_batch=hooks.batch,
        )
        planned = foreseen(stack, every=study.every, at_delay=study.at_delay, points=study.points, over=self._over)
        for due in planned:
            with hooks.timing.during("evaluation"):
                snapshot = self._snapshot(due)
                rows, accuracies = evaluator.evaluate(snapshot)
            for r, row in zip(due.runs, rows, strict=True):
                if row.diverged:
                    self._lose(r)
            yield self._measurement(snapshot, rows, accuracies, hooks)

    def _snapshot(self, due: Due) -> GivenSnapshot:
        """Return the models of the runs that are evaluated at an iteration."""
        given = {r: found for r in due.runs if r not in self._lost and (found := self._take(r, due.iteration))}
        for r in due.runs:
            run = self._stack.runs[r]
            gone = self.diverged.get((run.algorithm, run.seed))
            if (gone is not None and due.iteration >= gone) or (r in given and not given[r].finite):
                self._lose(r)
        some = {r: found for r, found in given.items() if not found.whole or found.scores is not None}
        lost = [r in self._lost for r in due.runs]
        state = State(due.iteration, lambda: iter(()))
        about = (self._problem, state, frozenset(self._over))
        return GivenSnapshot(
            due.iteration, self._packed, due.runs, due.counters, lost, *about, averaged=self._averaged, given=some
        )

    def _lose(self, run: int) -> None:
        """Take a run for diverged from now on; one with a budget is over, as in the simulator."""
        self._lost.add(run)
        if self._stack.runs[run].spends:
            self._over.add(run)

    def _take(self, place: int, iteration: int) -> NodeModels:
        """Write the models of a run to their rows of the stack; those of missing ones stay what they are."""
        run = self._stack.runs[place]
        given = taken(self.models, run, iteration, self.context.study.model.parameters, self._averages)
        self.scored |= given.scores is not None
        if iteration == 0:
            given = self._initial(place, given.scores)
        for rows, out in ((given.rows, self._packed), (given.averaged, self._averaged)):
            if rows is None or out is None:
                continue
            known = [(i, row) for i, row in enumerate(rows) if row is not None]
            if known:
                where = torch.tensor([self._stack.rows[place].start + i for i, _ in known], device=out.device)
                stacked = torch.stack([row for _, row in known])
                out[where] = self._problem.pack(stacked.to(out.device, out.dtype))
        return given

    def _initial(self, place: int, scores: Sequence[tuple[float, float] | None] | None) -> NodeModels:
        """Return the models before the first iteration, which follow from the configuration."""
        run = self._stack.runs[place]
        model = self.context.study.initial([run])[0].to(self._problem.device, self._problem.dtype)
        theta = model.expand(run.clients, -1).clone()
        state = self._rule.init(theta, run.rates.graph.links)
        averaged = averaged_models(self._rule, theta, state)
        return NodeModels(
            list(evaluated_models(self._rule, theta, state)), None if averaged is None else list(averaged), scores
        )

    def _measurement(
        self, snapshot: GivenSnapshot, rows: list[MetricsRow], accuracies: list[Tensor | None], hooks: Hooks
    ) -> Measurement:
        """Return what was measured, without rows of which no model is known and after which none is known either."""
        out: list[tuple[int, MetricsRow, Tensor | None]] = []
        for r, row, right in zip(snapshot.runs, rows, accuracies, strict=True):
            given = snapshot.given.get(r)
            if given is not None and given.nothing and not row.diverged:
                self._held.setdefault(r, []).append((row, right))
                continue
            before = self._held.pop(r, [])
            self.missing += len(before) * self._stack.runs[r].clients
            self.missing += 0 if given is None or row.diverged else len(given.missing)
            out += [(r, *found) for found in (*before, (row, right))]
            hooks.tick(row.iteration, row.iteration - self._reached.get(r, 0))
            self._reached[r] = row.iteration
        plan: Plan = self.context.plan
        numbers = [self.runs[r] for r, _, _ in out]
        ended = frozenset(self.runs[r] for r in self._over if r not in self._held)
        members = Members([], None, {}, self.context.work_split.assembled)
        found = [row for _, row, _ in out], [right for _, _, right in out]
        return Measurement(snapshot.iteration, *found, numbers, self.runs, plan, ended, members, None)
