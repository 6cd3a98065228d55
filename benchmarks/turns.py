"""Seconds an iteration, measured turn by turn, so that what else runs on the machine hits all alike."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from benchmarks.machine import wait
from dspodfl.algorithms.rules import RULES, Rule
from dspodfl.engine import Block, Snapshot, Stack, simulate
from dspodfl.problem.problem import Problem

_FOREVER = 10**12


class Work(Protocol):
    """Something that iterates."""

    def turn(self) -> float:
        """Advance for a while; return seconds an iteration."""
        ...


class Repeated:
    """A function that does one iteration; a turn repeats it for some seconds."""

    def __init__(self, iterate: Callable[[], None], device: torch.device, seconds: float) -> None:
        self.iterate, self.device = iterate, device
        self.count = 2
        self.turn()  # the first calls set things up
        once = self.turn()
        while once * self.count < seconds / 4 and self.count < 100:
            self.count *= 2
            once = self.turn()
        self.count = max(1, int(seconds / once))

    def turn(self) -> float:
        """Seconds an iteration."""
        wait(self.device)
        start = time.perf_counter()
        for _ in range(self.count):
            self.iterate()
        wait(self.device)
        return (time.perf_counter() - start) / self.count


class Steady:
    """The engine, well on its way: a turn is a whole number of blocks, with their draws, and without looking at models.

    ``count`` is the number of iterations a turn where it is given; else blocks that take about some seconds. ``before``
    is how many turns do not count: kernels are compiled in them, and CUDA graphs captured, one for each number of
    clients that take a step, when it occurs for the second time.
    """

    def __init__(
        self,
        stack: Stack,
        problem: Problem,
        initial: Sequence[Tensor],
        seconds: float,
        count: int | None = None,
        rule: Rule = RULES["simultaneous"],
        longest: int | None = None,
        before: int = 1,
    ) -> None:
        self._longest = longest
        self.device = problem.device
        self._stack, self._problem, self._initial, self._rule = stack, problem, initial, rule
        self.count = count or self._counted(seconds)
        self.diverged = False
        self._end = 0.0
        self._way = self._simulate(self.count, self._tick)
        next(self._way)
        for _ in range(before):
            self.turn()

    def turn(self) -> float:
        """Seconds an iteration."""
        wait(self.device)
        start = time.perf_counter()
        shot = next(self._way)
        self.diverged |= any(shot.diverged)
        return (self._end - start) / self.count

    def _tick(self, k: int) -> None:
        if k % self.count == 0:
            wait(self.device)
            self._end = time.perf_counter()

    def _simulate(
        self, every: int, tick: Callable[[int], None], on_block: Callable[[Block], None] | None = None
    ) -> Iterator[Snapshot]:
        return simulate(
            self._stack,
            self._problem,
            self._rule,
            self._initial,
            iterations=_FOREVER,
            every=every,
            tick=tick,
            on_block=on_block,
            longest=self._longest,
        )

    def _counted(self, seconds: float) -> int:
        """Iterations of a turn, found by two blocks that do not count."""
        ends: dict[int, float] = {}
        lengths: list[int] = []

        def tick(k: int) -> None:
            if not lengths or k in (lengths[0], 2 * lengths[0]):  # a block of a gated run is known after it
                wait(self.device)
                ends[k] = time.perf_counter()
            if lengths and k == 2 * lengths[0]:
                raise _Enough

        try:
            for _ in self._simulate(_FOREVER, tick, lambda block: lengths.append(len(block.k))):
                pass
        except _Enough:
            pass
        length = lengths[0]
        return length * max(1, round(seconds / (ends[2 * length] - ends[length])))


class _Enough(Exception):  # noqa: N818
    """A measurement has seen what it wanted to see."""


def in_turns(works: Sequence[Work], rounds: int) -> list[list[float]]:
    """Seconds an iteration of each work in each round."""
    found: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, times in zip(works, found, strict=True):
            times.append(work.turn())
    return found


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """The median over rounds of theirs over ours."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def say(what: str) -> None:
    """Progress, on stderr."""
    print(what, file=sys.stderr, flush=True)
