"""Advances one wave of a study to the end of its last run.

The runs of a wave advance as one stack. Runs that are over leave it where they would still cost time: the others are
stacked again. Runs that are resumed behind the others are advanced to them first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dspodfl.algorithms import rests_without_events
from dspodfl.analysis import MetricsRow
from dspodfl.engine import Piece, Run, Snapshot, Split, Stack, State, products, shrunk, simulate
from dspodfl.network import LONGEST
from dspodfl.problem import Problem
from dspodfl.study.evaluator import EvaluationStoppedError, Evaluator
from dspodfl.study.measurement import Hooks, Measurement, Members, Start
from dspodfl.study.study import Study
from dspodfl.study.waves import Plan
from dspodfl.study.work_split import WorkSplit


@dataclass(frozen=True, eq=False)
class RunContext:
    """What all stacks of a wave have in common.

    Args:
        study: What is run.
        device: Where.
        precision: Its name, the type of the models, and the type that gradients are computed in.
        hooks: What is called meanwhile.
        plan: The wave is the first of those left.
        work_split: Which runs, or which clients, this process has.
    """

    study: Study
    device: torch.device
    precision: tuple[str, torch.dtype, torch.dtype]
    hooks: Hooks
    plan: Plan
    work_split: WorkSplit

    def held(self, piece: Piece) -> Piece:
        """Return what of a piece of a run is held here; a checkpoint has what all ranks held."""
        return self.work_split.held(piece, self.study.runs[piece.run].rates.graph.edges)

    def problem(self, runs: Sequence[Run]) -> Problem:
        """Return the data and the model of some runs, on the device."""
        precision, dtype, compute = self.precision
        return Problem(
            self.study.model,
            [(run.seed, run.data) for run in runs],
            batch_size=self.study.batch_size,
            device=self.device,
            dtype=dtype,
            compute=compute,
            tf32=precision == "tf32",
            samples=self.study.eval_samples,
        )


def run_wave(context: RunContext, wave: list[int], start: Start | None) -> Iterator[Measurement]:
    """Run a wave to the end of its last run, and yield what is measured.

    Args:
        context: What all stacks of the wave have in common.
        wave: The numbers of those of its runs that advance in this process.
        start: Where the study is resumed; it may hold nothing of this wave.

    Yields:
        A measurement for each evaluation and each pause.
    """
    hooks, work_split = context.hooks, context.work_split
    carried, ended = start.of(wave) if start else ([], {})
    runner = _Runner(context, wave, ended)
    iteration = start.iteration if start and carried else 0
    pending: list[int] | None = None
    if start and carried and start.meets:
        pending = [r for r in start.pending if r in set(wave) and r not in start.behind]
        if any(r in start.behind for r in wave):
            carried, due = yield from _catch_up(runner, carried, start)
            pending = sorted({*pending, *due})
    found = runner.nothing(iteration)
    if not wave and start is not None and context.plan is start.plan:  # none of this wave's runs is of this process
        found = replace(found, iteration=start.iteration)
    if len(ended) == len(wave):
        runner.leave(carried)
        begins = not wave and found.iteration == 0
        if (pending is not None or begins) and work_split.kind == "runs":  # other ranks are here, or come here
            yield found
    found = yield from runner.advance(found, _Segment(wave, carried, pending))
    iteration = found.iteration
    while hooks.waits() and hooks.reach is not None:  # other ranks have runs of this wave left, and meet this one
        iteration = hooks.reach(iteration)
        yield replace(found, iteration=iteration, rows=[], accuracies=[], runs=[])


def _catch_up(
    runner: _Runner, carried: Sequence[Piece], start: Start
) -> Generator[Measurement, None, tuple[list[Piece], list[int]]]:
    """Advance the runs that are behind the others to the others' iteration; runs at one iteration advance together.

    Returns:
        What all runs of the wave carry there, and those of the advanced ones that are to be evaluated there.
    """
    wave = runner.wave
    places = {r: start.behind.get(r, start.iteration) for r in wave}
    held: dict[int, list[Piece]] = {}
    for piece in carried:
        held.setdefault(piece.run, []).append(piece)
    behind = replace(runner, left=held)  # shares what has ended
    pending, due = set(start.pending), list[int]()
    for at in sorted({k for k in places.values() if k < start.iteration}):
        runs = [r for r in wave if places[r] == at]
        mine = [piece for r in runs for piece in held.pop(r)]
        others = {
            "resumed_at": {r: k for r, k in places.items() if r not in runs},
            "waiting": [*(r for r in wave if r in pending and r not in runs), *due],
        }
        found = behind.nothing(at)
        if runner.ended.keys() >= set(runs):
            for piece in mine:
                held.setdefault(piece.run, []).append(piece)
        now = [r for r in runs if r in pending]
        found = yield from behind.advance(found, _Segment(runs, mine, now, start.iteration, others))
        pending -= set(runs)
        due += found.runs if found.iteration == start.iteration else []
        places |= dict.fromkeys(runs, start.iteration)
    return [piece for r in wave for piece in held[r]], due


@dataclass(frozen=True, eq=False)
class _Segment:
    """Some runs of a wave that are advanced together, and how far.

    Args:
        runs: Their numbers in the study.
        carried: What they carry; nothing where they begin.
        pending: The runs that are evaluated before they go on; None: nothing is yielded there.
        until: The iteration at which they stop before they are evaluated there; None: they go to their ends.
        others: What a measurement says of the runs of the wave that are not advanced.
    """

    runs: list[int]
    carried: list[Piece]
    pending: Sequence[int] | None
    until: int | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Runner:
    """Advances the runs of a wave.

    Args:
        context: What all stacks of the wave have in common.
        wave: The numbers of its runs in the study.
        ended: Run -> the iteration that it ended at; kept up to date.
        left: What the runs of the wave carry that are not stacked; kept up to date.
    """

    context: RunContext
    wave: list[int]
    ended: dict[int, int]
    left: dict[int, list[Piece]] = field(default_factory=dict)

    def nothing(self, iteration: int) -> Measurement:
        """Return the measurement of nothing, of runs that are not stacked."""
        members = Members([], None, self.left, self.context.work_split.assembled)
        return Measurement(iteration, [], [], [], self.wave, self.context.plan, frozenset(self.ended), members, None)

    def leave(self, pieces: Sequence[Piece]) -> None:
        """Keep what runs carry that are not stacked any more."""
        for piece in pieces:
            self.left.setdefault(piece.run, []).append(self.context.held(piece))

    def advance(self, begin: Measurement, segment: _Segment) -> Generator[Measurement, None, Measurement]:
        """Advance some runs; those that are over leave the stack where they would still cost time.

        Args:
            begin: Where the runs are.
            segment: The runs, and how far they advance. Where they stop at an iteration, what they carry is left.

        Returns:
            The last measurement: of the iteration that they have come to, and of the runs to be evaluated there.
        """
        found, iteration = begin, begin.iteration
        runs, carried, pending, until = segment.runs, segment.carried, segment.pending, segment.until
        while not self.ended.keys() >= set(runs):
            stacked = self._still_stacked(runs, iteration) if carried else runs
            self.leave([piece for piece in carried if piece.run not in stacked])
            state = None
            if carried:
                mine = [replace(p, run=stacked.index(p.run)) for p in carried if p.run in stacked]
                state = State(iteration, lambda mine=mine: iter(mine))  # type: ignore[misc]
            first = [stacked.index(r) for r in pending if r in stacked] if pending is not None and state else None
            carried, pending = [], None
            for found in self._advance_stack(stacked, state, first, until):
                iteration = found.iteration
                if found.shrinks:
                    carried = found.copies(self.left)
                    continue
                if iteration != until:
                    yield replace(found, **segment.others) if segment.others else found
                there = iteration == until or self.ended.keys() >= set(runs)
                if there and (self.context.work_split.kind == "runs" or until is not None):
                    # Ranks that have runs of this wave left, or runs that are not as far yet, may ask for what is here.
                    for piece in found.copies(self.left):
                        self.left.setdefault(piece.run, []).append(piece)
                    found = found.unstacked()
                if iteration == until:
                    return found
        return found

    def _still_stacked(self, runs: list[int], iteration: int) -> list[int]:
        """Return those of some runs that are worth stacking: without the ones that are over, if that is cheaper."""
        clients = [self.context.study.runs[r].clients for r in runs]
        places = {runs.index(r): k for r, k in self.ended.items() if r in runs}
        return [runs[n] for n in shrunk(places, clients, iteration)]

    def _advance_stack(
        self, stacked: list[int], state: State | None, pending: Sequence[int] | None, until: int | None
    ) -> Iterator[Measurement]:
        """Advance some runs of the wave as one stack to its end; ``ended`` is kept up to date.

        Args:
            stacked: The numbers of the runs in the study.
            state: What they carry, by their places in the stack; None: they begin.
            pending: Those that are evaluated before they go on, by their places in the stack.
            until: The iteration at which they stop without an evaluation: they are pending there.
        """
        study, hooks, work_split = self.context.study, self.context.hooks, self.context.work_split
        runs = [study.runs[r] for r in stacked]
        stack = Stack(runs)
        split = work_split.split(stack, stacked)
        members = Members(stacked, split, self.left, work_split.assembled)

        def measured(
            snapshot: Snapshot, rows: list[MetricsRow], accuracies: list[Tensor | None], *, stopped: bool = False
        ) -> Measurement:
            about = ([stacked[r] for r in snapshot.runs], self.wave, self.context.plan, frozenset(self.ended))
            return Measurement(snapshot.iteration, rows, accuracies, *about, members, snapshot, stopped=stopped)

        with products(self.context.precision[0]):
            evaluator, snapshots = self._begin(stack, split, stacked, state, pending, until)
            for snapshot in snapshots:
                if snapshot.iteration == until:
                    yield measured(snapshot, [], [], stopped=True)
                    return
                for r in snapshot.ended:
                    self.ended.setdefault(stacked[r], snapshot.iteration)
                try:
                    with hooks.timing.during("evaluation"):
                        rows, accuracies = evaluator.evaluate(snapshot, hooks.stop)
                except EvaluationStoppedError:
                    yield measured(snapshot, [], [], stopped=True)
                    rows, accuracies = evaluator.evaluate(snapshot)
                for r, row, lost in zip(snapshot.runs, rows, snapshot.diverged, strict=True):
                    if row.diverged and not lost:
                        snapshot.lose(r)
                        if runs[r].spends:
                            self.ended.setdefault(stacked[r], snapshot.iteration)
                yield measured(snapshot, rows, accuracies)

    def _begin(
        self,
        stack: Stack,
        split: Split,
        stacked: list[int],
        state: State | None,
        pending: Sequence[int] | None,
        until: int | None,
    ) -> tuple[Evaluator, Iterator[Snapshot]]:
        """Return what evaluates a stack, and the loop that advances it."""
        study, hooks, ended = self.context.study, self.context.hooks, self.ended
        problem, rule = self.context.problem(stack.runs), study.rules[stacked[0]]
        evaluator = Evaluator(
            stack,
            problem,
            split,
            unchanged_without_events=rests_without_events(rule),
            clients=study.eval_clients,
            on_batch=hooks.batch,
        )
        snapshots = simulate(
            stack,
            problem,
            rule,
            state or study.initial(stack.runs),
            iterations=max(run.cap or LONGEST for run in stack.runs),
            every=study.every,
            at_delay=study.at_delay,
            points=study.points,
            tick=_Tick(hooks, stacked, ended),
            on_block=lambda block: hooks.block(block, stacked),
            reach=_reach(hooks, until),
            split=split,
            # Where clients are split, a rank carries the costs of its own alone: runs that are over stay in the stack.
            shrink=self.context.work_split.kind != "clients",
            pending=pending,
        )
        return evaluator, snapshots


def _reach(hooks: Hooks, until: int | None) -> Callable[[int], int] | None:
    """Return how far a wave may go from an iteration: as ``hooks.reach`` says, and no further than ``until``."""
    reach = hooks.reach
    if until is None:
        return reach
    return lambda iteration: min(until, reach(iteration)) if reach else until


class _Tick:
    """Calls the hook after every iteration with the number of runs that are not over; they are counted when one ends.

    Args:
        hooks: What is called.
        stacked: The runs that advance.
        ended: Runs that are over; others add to it.
    """

    def __init__(self, hooks: Hooks, stacked: Sequence[int], ended: Mapping[int, int]) -> None:
        self._hooks, self._stacked, self._ended = hooks, stacked, ended
        self._known, self._going = -1, 0

    def __call__(self, k: int) -> None:
        if len(self._ended) != self._known:
            self._known = len(self._ended)
            self._going = sum(r not in self._ended for r in self._stacked)
        self._hooks.tick(k, self._going)
