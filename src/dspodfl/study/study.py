"""A study: some runs of one model, advanced together and measured. Rows come out as they are measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dspodfl.algorithms import Rule, rests_without_events
from dspodfl.analysis import MetricsRow
from dspodfl.engine import (
    Block,
    Piece,
    Run,
    Snapshot,
    Split,
    Stack,
    State,
    choose_precision,
    products,
    shrunk,
    simulate,
)
from dspodfl.errors import OutOfMemoryError
from dspodfl.network import LONGEST, Budget, EndedBy, ended_by
from dspodfl.problem import Problem
from dspodfl.problem.models import Model
from dspodfl.study.division import Division
from dspodfl.study.evaluator import EvaluationStoppedError, Judge
from dspodfl.study.timing import Stopwatch
from dspodfl.study.waves import Plan, make_plan


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that decides a study's numbers."""

    runs: list[Run]
    model: Model
    rules: list[Rule]
    """That of each run; runs of one rule advance together."""
    batch_size: int
    every: int | None
    """Evaluate at multiples of this number of iterations, or not for this reason."""
    points: int | None
    """Evaluate where a run's cost reaches each of this many equal parts of its budget, or not for this reason."""
    at_delay: list[float]
    precision: str = "auto"
    eval_samples: int = 0
    """Test samples that models are evaluated on; 0: all."""
    eval_clients: int = 0
    """Clients of each run that are evaluated; 0: all."""

    @property
    def iterations(self) -> int:
        """The most iterations that any run takes."""
        return max(run.cap or LONGEST for run in self.runs)

    @property
    def longest(self) -> int:
        """The iterations that the longest run is expected to take."""
        return max(run.need or run.cap or LONGEST for run in self.runs)

    @cached_property
    def groups(self) -> list[int]:
        """A number for each run: runs of equal rules have the same, counted in the order of the runs."""
        found: list[Rule] = []
        numbers = []
        for rule in self.rules:
            known = next((n for n, other in enumerate(found) if _same(rule, other)), len(found))
            found += [rule] if known == len(found) else []
            numbers.append(known)
        return numbers

    def evaluations(self, iterations: int) -> int:
        """Return how often a run of ``iterations`` is evaluated, at most."""
        regular = -(-iterations // self.every) if self.every else 0
        return 1 + regular + (self.points or 0) + len(self.at_delay)

    def ended_by(self, run: int, row: MetricsRow) -> EndedBy | None:
        """Say why a run ended at a row of its metrics; None where it goes on after it."""
        found = self.runs[run]
        cap = found.cap or LONGEST
        return ended_by(found.budget or Budget("iterations", cap), cap, row)

    def initial(self, runs: Sequence[Run]) -> list[Tensor]:
        """The common initial model of each run, which all of its clients start from. Shape: a run each, (p,)."""
        models = {seed: self.model.initial(seed) for seed in {run.seed for run in runs}}
        return [models[run.seed] for run in runs]


def _same(one: Rule, other: Rule) -> bool:
    """Whether two rules do the same: one object, or equal ones of one class (as frozen dataclasses are)."""
    return one is other or (type(one) is type(other) and bool(one == other))


@dataclass(frozen=True, eq=False)
class Measurement:
    """What was measured at one iteration: a row for each run evaluated, and each client's accuracy behind it.

    At a pause nothing is evaluated, and there is no row. Where runs are split, only those of this process are seen.
    """

    iteration: int
    rows: list[MetricsRow]
    accuracies: list[Tensor | None]  # a run evaluated each, (clients,)
    runs: list[int]  # numbers in the study
    wave: list[int]  # numbers of all runs that advance together here
    plan: Plan  # the wave is the first of those left
    ended: frozenset[int]  # numbers of the runs of this wave that are over
    _members: _Members
    _snapshot: Snapshot | None
    stopped: bool = False
    """Whether the evaluation was ended between two batches: the runs are still to be evaluated here."""
    standing: Mapping[int, int] = field(default_factory=dict)
    """Run of this wave -> where it stands, of those that stand elsewhere, because they were resumed there."""
    waiting: Sequence[int] = ()
    """Those of them that are still to be evaluated where they stand."""

    @property
    def over(self) -> bool:
        """Whether every run of this wave is over, here."""
        return len(self.ended) == len(self.wave)

    @property
    def places(self) -> dict[int, int]:
        """Run of this wave -> where it stands."""
        return dict.fromkeys(self.wave, self.iteration) | dict(self.standing)

    def models(self, run: int) -> Tensor:
        """The models of a run of this wave as they are now; where clients are split, all ranks ask together.

        Shape: (clients, p).
        """
        return self._members.models(run, self._snapshot)

    def pieces(self) -> Iterator[Piece]:
        """All that the runs of this wave carry, by their numbers in the study; good until the study goes on."""
        return self._members.pieces(self._snapshot)


@dataclass(eq=False)
class _Members:
    """The runs of a wave: those that are stacked, and what is left of those that are over and no longer are."""

    stacked: list[int]  # numbers in the study
    split: Split | None  # None where no run is stacked any more
    left: dict[int, list[Piece]]  # by numbers in the study, held here
    assembled: Callable[[Tensor, int], Tensor]
    """All clients' rows of a run, by its number in the study, from those that are held here."""

    def models(self, run: int, snapshot: Snapshot | None) -> Tensor:
        """The models of a run. Shape: (clients, p)."""
        if run in self.left:
            held = sorted(self.left[run], key=lambda piece: int(piece.client[0]) if len(piece.client) else -1)
            return self.assembled(torch.cat([piece.clients["theta"] for piece in held]), run)
        assert snapshot is not None
        assert self.split is not None
        rows = self.split.shard.rows[self.stacked.index(run)]
        return self.assembled(snapshot.models(rows), run)

    def pieces(self, snapshot: Snapshot | None) -> Iterator[Piece]:
        """All that the runs carry, by their numbers in the study."""
        for pieces in self.left.values():
            yield from pieces
        for piece in snapshot.state.pieces() if snapshot is not None else ():
            yield replace(piece, run=self.stacked[piece.run])


@dataclass(frozen=True, eq=False)
class Start:
    """Where a study is resumed: the waves to come, and what the runs of those that had begun carry."""

    plan: Plan
    iteration: int = 0
    pieces: Sequence[Piece] = ()  # by their numbers in the study
    reached: Mapping[int, int] = field(default_factory=dict)
    """Run -> the last iteration that was measured of it."""
    ended: Mapping[int, int] = field(default_factory=dict)
    """Run -> the iteration that it ended at, of those that have."""
    pending: Sequence[int] = ()
    """Runs whose evaluation, where they stand, was ended before its end."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """Run -> where it stands, of those that are not at that iteration yet."""

    @property
    def meets(self) -> bool:
        """Whether ranks that have different runs meet at that iteration before any goes on: one may still be at it."""
        return bool(self.pending or self.behind)


@dataclass(eq=False)
class Hooks:
    """Who is told what happens while a study runs: nobody, unless told otherwise."""

    tick: Callable[[int, int], None] = lambda iteration, runs: None
    """After every iteration of a wave, with the iteration and the number of its runs."""
    block: Callable[[Block, list[int]], None] = lambda block, runs: None
    """The events of each block of some runs."""
    plan: Callable[[Plan], None] = lambda plan: None
    """The plan before it begins, and again whenever it changes."""
    reach: Callable[[int], int] | None = None
    """How far a wave may go from an iteration before it pauses, which is a measurement of nothing."""
    waits: Callable[[], bool] = lambda: False
    """Whether other processes still have runs of this wave to advance, once all of them are over here."""
    stop: Callable[[], bool] | None = None
    """Between the batches of an evaluation: whether to end it there."""
    batch: Callable[[float], None] | None = None
    """Before each batch of an evaluation, with the share of it that is done."""
    timing: Stopwatch = field(default_factory=Stopwatch)


def measure(
    study: Study,
    device: torch.device,
    watch: Hooks | None = None,
    start: Start | None = None,
    division: Division | None = None,
) -> Iterator[Measurement]:
    """Run a study, wave by wave, and yield what is measured, where it is measured; or resume one.

    A wave that runs out of memory is started again in halves; what was measured of it is not measured again. A run that
    does not fit alone is an error that says how much it needs. With a ``division`` this is one process of several; all
    go through the same waves, and none of them can start a wave again.
    """
    watch, division = watch or Hooks(), division or Division.alone(study.runs)
    precision, dtype, compute = choose_precision(study.precision, device)
    plan = (
        start.plan
        if start
        else make_plan(
            study.runs,
            study.model,
            study.batch_size,
            device,
            dtype,
            division.memory,
            division.fewest,
            study.groups,
        )
    )
    watch.plan(plan)
    reached: dict[int, int] = dict(start.reached) if start else {}
    while plan.left:
        wave = division.here(plan.left[0])
        try:
            how = precision, dtype, compute
            for found in _wave(study, wave, device, how, watch, plan, start, division):
                new = [n for n, r in enumerate(found.runs) if found.iteration > reached.get(r, -1)]
                reached |= {found.runs[n]: found.iteration for n in new}
                if not found.rows or len(new) == len(found.rows):
                    yield found
                elif new:
                    yield replace(
                        found,
                        rows=[found.rows[n] for n in new],
                        accuracies=[found.accuracies[n] for n in new],
                        runs=[found.runs[n] for n in new],
                    )
            plan = plan.finished()
        except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            # The traceback holds the frames that hold what filled the memory.
            why = str(error).strip().split("\n")[0]
        else:
            continue
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if len(wave) == 1 or division.team.ranks > 1:
            raise OutOfMemoryError(plan.too_large(study.runs[wave[0]].clients, why))
        plan = plan.halved()
        watch.plan(plan)


def _out_of_memory(error: BaseException) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "not enough memory" in str(error) or "out of memory" in str(error)


def _wave(
    study: Study,
    wave: list[int],
    device: torch.device,
    how: tuple[str, torch.dtype, torch.dtype],
    watch: Hooks,
    plan: Plan,
    start: Start | None,
    division: Division,
) -> Iterator[Measurement]:
    """Run a wave to the end of its last run; runs that are resumed behind the others are advanced to them first."""
    carried = [piece for piece in start.pieces if piece.run in set(wave)] if start else []
    ended = {r: k for r, k in (start.ended if start else {}).items() if r in set(wave)} if carried else {}
    iteration = start.iteration if start and carried else 0
    left: dict[int, list[Piece]] = {}
    pending: list[int] | None = None
    way = _How(study, device, how, watch, plan, division)
    if start and carried and start.meets:
        pending = [r for r in start.pending if r in set(wave) and r not in start.behind]
        if any(r in start.behind for r in wave):
            carried, due = yield from _caught_up(way, wave, carried, ended, start)
            pending = sorted({*pending, *due})
    found = _nothing(way, wave, iteration, ended, left)
    if not wave and start is not None and plan is start.plan:  # none of the runs of this wave is of this process
        found = replace(found, iteration=start.iteration)
    if len(ended) == len(wave):
        for piece in carried:
            left.setdefault(piece.run, []).append(way.held(piece))
        begins = not wave and found.iteration == 0
        if (pending is not None or begins) and division.kind == "runs":  # the others are here, or come here
            yield found
    found = yield from _advanced(way, found, wave, carried, ended, left, pending)
    iteration = found.iteration
    while watch.waits() and watch.reach is not None:  # others have runs of this wave to advance, and meet us on the way
        iteration = watch.reach(iteration)
        yield replace(found, iteration=iteration, rows=[], accuracies=[], runs=[])


@dataclass(frozen=True, eq=False)
class _How:
    """What all stacks of a wave have in common."""

    study: Study
    device: torch.device
    precision: tuple[str, torch.dtype, torch.dtype]
    watch: Hooks
    plan: Plan
    division: Division

    def held(self, piece: Piece) -> Piece:
        """What of a piece of a run is held here; a checkpoint has what all ranks held."""
        return self.division.held(piece, self.study.runs[piece.run].rates.graph.edges)


def _advanced(
    how: _How,
    begin: Measurement,
    runs: list[int],
    carried: list[Piece],
    ended: dict[int, int],
    left: dict[int, list[Piece]],
    pending: Sequence[int] | None,
    until: int | None = None,
    others: Mapping[str, Any] | None = None,
) -> Generator[Measurement, None, Measurement]:
    """Advance some runs of a wave; those that are over leave the stack where they would still cost time.

    Args:
        how: what all stacks have in common.
        begin: where the runs stand.
        runs: those that are advanced.
        carried: what they carry; nothing where they begin.
        ended: Run -> the iteration that it ended at; kept up to date.
        left: what the runs of the wave carry that are not stacked; kept up to date.
        pending: the runs that are evaluated before they go on; None: nothing is yielded there.
        until: the iteration at which they stop before they are evaluated there; what they carry is then left.
        others: what a measurement says of the runs that are not advanced.

    Returns:
        The last measurement: of the iteration that they have come to, and of the runs to be evaluated there.
    """
    found, iteration = begin, begin.iteration
    while not ended.keys() >= set(runs):
        clients = [how.study.runs[r].clients for r in runs]
        places = {runs.index(r): k for r, k in ended.items() if r in runs}
        stacked = [runs[n] for n in shrunk(places, clients, iteration)] if carried else runs
        for piece in carried:
            if piece.run not in stacked:
                left.setdefault(piece.run, []).append(how.held(piece))
        state = None
        if carried:
            mine = [replace(p, run=stacked.index(p.run)) for p in carried if p.run in stacked]
            state = State(iteration, lambda mine=mine: iter(mine))  # type: ignore[misc]
        first = [stacked.index(r) for r in pending if r in stacked] if pending is not None and state else None
        carried, pending = [], None
        for found in _stacked(how, begin.wave, stacked, left, ended, state, first, until):
            iteration = found.iteration
            snapshot = found._snapshot
            if snapshot is not None and snapshot.shrinks:
                carried = [_copied(piece) for piece in found.pieces() if piece.run not in left]
                continue
            if iteration != until:
                yield replace(found, **others) if others else found
            there = iteration == until or ended.keys() >= set(runs)
            if there and (how.division.kind == "runs" or until is not None):
                # Ranks that have runs of this wave left, or runs that are not as far yet, may ask for what is here.
                rest = [_copied(piece) for piece in found.pieces() if piece.run not in left]
                for piece in rest:
                    left.setdefault(piece.run, []).append(piece)
                found = replace(found, _snapshot=None)
            if iteration == until:
                return found
    return found


def _caught_up(
    how: _How, wave: list[int], carried: Sequence[Piece], ended: dict[int, int], start: Start
) -> Generator[Measurement, None, tuple[list[Piece], list[int]]]:
    """Advance the runs that stand behind the others to where those are, those that stand together in one go.

    Returns:
        What all runs of the wave carry there, and those of the advanced ones that are to be evaluated there.
    """
    standing = {r: start.behind.get(r, start.iteration) for r in wave}
    held: dict[int, list[Piece]] = {}
    for piece in carried:
        held.setdefault(piece.run, []).append(piece)
    pending, due = set(start.pending), list[int]()
    for at in sorted({k for k in standing.values() if k < start.iteration}):
        runs = [r for r in wave if standing[r] == at]
        mine = [piece for r in runs for piece in held.pop(r)]
        others = {
            "standing": {r: k for r, k in standing.items() if r not in runs},
            "waiting": [*(r for r in wave if r in pending and r not in runs), *due],
        }
        found = _nothing(how, wave, at, ended, held)
        if ended.keys() >= set(runs):
            for piece in mine:
                held.setdefault(piece.run, []).append(piece)
        now = [r for r in runs if r in pending]
        found = yield from _advanced(how, found, runs, mine, ended, held, now, start.iteration, others)
        pending -= set(runs)
        due += found.runs if found.iteration == start.iteration else []
        standing |= dict.fromkeys(runs, start.iteration)
    return [piece for r in wave for piece in held[r]], due


def _nothing(
    how: _How, wave: list[int], iteration: int, ended: Mapping[int, int], left: dict[int, list[Piece]]
) -> Measurement:
    """The measurement of nothing, of runs that are not stacked."""
    members = _Members([], None, left, how.division.assembled)
    return Measurement(iteration, [], [], [], wave, how.plan, frozenset(ended), members, None)


def _copied(piece: Piece) -> Piece:
    """A piece in memory of its own."""
    tables = ({name: values.clone() for name, values in t.items()} for t in (piece.clients, piece.links, piece.whole))
    return Piece(piece.run, piece.client, piece.link, *tables)


def _reach(watch: Hooks, until: int | None) -> Callable[[int], int] | None:
    """How far a wave may go from an iteration: as far as is watched, and no further than to some iteration."""
    reach = watch.reach
    if until is None:
        return reach
    return lambda iteration: min(until, reach(iteration)) if reach else until


def _stacked(
    way: _How,
    wave: list[int],
    stacked: list[int],
    left: dict[int, list[Piece]],
    ended: dict[int, int],
    state: State | None,
    pending: Sequence[int] | None,
    until: int | None,
) -> Iterator[Measurement]:
    """Advance some runs of a wave as one stack; ``ended`` is kept up to date.

    The stack goes to its end, or to an iteration at which nothing is evaluated: its runs are pending there.
    """
    study, device, watch, plan, division = way.study, way.device, way.watch, way.plan, way.division
    runs = [study.runs[r] for r in stacked]
    stack = Stack(runs)
    split = division.split(stack, stacked)
    members = _Members(stacked, split, left, division.assembled)
    precision, dtype, compute = way.precision
    with products(precision):
        problem = Problem(
            study.model,
            [(run.seed, run.data) for run in runs],
            batch_size=study.batch_size,
            device=device,
            dtype=dtype,
            compute=compute,
            tf32=precision == "tf32",
            samples=study.eval_samples,
        )
        rule = study.rules[stacked[0]]
        still = rests_without_events(rule)
        judge = Judge(stack, problem, split, still=still, clients=study.eval_clients, on_batch=watch.batch)
        for snapshot in simulate(
            stack,
            problem,
            rule,
            state or study.initial(runs),
            iterations=max(run.cap or LONGEST for run in runs),
            every=study.every,
            at_delay=study.at_delay,
            points=study.points,
            tick=lambda k: watch.tick(k, sum(r not in ended for r in stacked)),
            on_block=lambda block: watch.block(block, stacked),
            reach=_reach(watch, until),
            split=split,
            # Where clients are split, a rank carries the costs of its own alone: runs that are over stay in the stack.
            shrink=division.kind != "clients",
            pending=pending,
        ):
            here = [stacked[r] for r in snapshot.runs]
            about = (here, wave, plan)
            if snapshot.iteration == until:
                rest = (frozenset(ended), members, snapshot)
                yield Measurement(snapshot.iteration, [], [], *about, *rest, stopped=True)
                return
            ended.update({stacked[r]: snapshot.iteration for r in snapshot.ended if stacked[r] not in ended})
            try:
                with watch.timing.during("evaluation"):
                    rows, accuracies = judge(snapshot, watch.stop)
            except EvaluationStoppedError:
                rest = (frozenset(ended), members, snapshot)
                yield Measurement(snapshot.iteration, [], [], *about, *rest, stopped=True)
                rows, accuracies = judge(snapshot)
            for r, row, lost in zip(snapshot.runs, rows, snapshot.diverged, strict=True):
                if row.diverged and not lost:
                    snapshot.lose(r)
                    if runs[r].spends:
                        ended.setdefault(stacked[r], snapshot.iteration)
            yield Measurement(snapshot.iteration, rows, accuracies, *about, frozenset(ended), members, snapshot)
