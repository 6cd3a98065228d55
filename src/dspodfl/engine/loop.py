"""The loop: one iteration of every run at a time, yielding the models wherever they are to be looked at."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dspodfl.engine.mix import Mixer
from dspodfl.engine.stack import Block, Stack, Tally
from dspodfl.problem import Problem
from dspodfl.rule import Rule

_WORDS_AT_ONCE = 2_000_000
_LONGEST_BLOCK = 250


@dataclass(frozen=True, eq=False)
class Counters:
    """Counts and raw and normalized delays of one run, summed over the events before an iteration."""

    delay_processing: float = 0.0
    delay_transmission: float = 0.0
    delay_processing_normalized: float = 0.0
    delay_transmission_normalized: float = 0.0
    sgd_steps: int = 0
    link_uses: int = 0

    @staticmethod
    def after(tally: Tally, t: int) -> Counters:
        """The counters after the t-th iteration of a block."""
        d = tally.delays
        return Counters(
            delay_processing=float(d.processing[t]),
            delay_transmission=float(d.transmission[t]),
            delay_processing_normalized=float(d.processing_normalized[t]),
            delay_transmission_normalized=float(d.transmission_normalized[t]),
            sgd_steps=int(tally.sgd_steps[t]),
            link_uses=int(tally.link_uses[t]),
        )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The stacked models after ``iteration`` updates, and the runs that are to be evaluated there."""

    iteration: int
    theta: Tensor  # (clients, p); rows of run r are stack.rows[r]
    runs: list[int]
    counters: list[Counters]  # of the runs above
    diverged: list[bool]  # of the runs above


def simulate(
    stack: Stack,
    problem: Problem,
    rule: Rule,
    initial: Tensor,
    *,
    iterations: int,
    every: int,
    at_delay: Sequence[float] = (),
    tick: Callable[[int], None] | None = None,
    on_block: Callable[[Block], None] | None = None,
) -> Iterator[Snapshot]:
    """Advance all runs together:  Θ⁽ᵏ⁺¹⁾ = P⁽ᵏ⁾Θ⁽ᵏ⁾ − α⁽ᵏ⁾V⁽ᵏ⁾G⁽ᵏ⁾, or whatever the rule makes of it.

    Yields at 0, every multiple of ``every``, the last iteration, and, run by run, where the cumulative raw total
    delay first reaches each of ``at_delay``. A run whose parameters are no longer finite is frozen. ``tick`` hears
    of every iteration; ``on_block`` sees the events. Shapes: initial (clients, p).
    """
    theta = problem.pack(initial.to(problem.device, problem.dtype)).clone()
    state = rule.init(theta)
    mixer = Mixer(stack, problem.device, problem.dtype)
    alive = torch.ones(stack.clients, dtype=torch.bool, device=problem.device)
    diverged = [False] * len(stack.runs)
    everyone = list(range(len(stack.runs)))

    def look(iteration: int, due: list[int], counters: list[Counters]) -> Snapshot:
        finite = torch.isfinite(theta).all(dim=1)
        for r in due:
            if not diverged[r] and not bool(finite[stack.rows[r]].all()):
                diverged[r] = True
                alive[stack.rows[r]] = False
        return Snapshot(iteration, problem.unpack(theta), due, counters, [diverged[r] for r in due])

    yield look(0, everyone, [Counters()] * len(everyone))
    words = stack.clients * problem.batch_size + sum(run.rates.graph.links for run in stack.runs)
    length = max(1, min(_LONGEST_BLOCK, _WORDS_AT_ONCE // words))
    for block in stack.blocks(iterations, length):
        if on_block:
            on_block(block)
        mixer.load(block.active)
        v = _stacked([e.v for e in block.events], problem)
        lr = _stacked([np.repeat(run.learning_rate(block.k)[:, None], run.clients, 1) for run in stack.runs], problem)
        batches = problem.batches(block.k)
        due = _crossings(block, at_delay)
        for t, k in enumerate(block.k.tolist()):
            x, y = batches[t]
            mix, gradient = partial(mixer.apply, t), partial(_gradient, problem, x, y)
            new, state = rule.step(theta, mix, gradient, v[t], lr[t], state)
            theta = torch.where(alive[:, None], new, theta) if any(diverged) else new
            if tick:
                tick(k + 1)
            regular = (k + 1) % every == 0 or k + 1 == iterations
            here = everyone if regular else due.get(k + 1)
            if here:
                yield look(k + 1, here, [Counters.after(block.tallies[r], t) for r in here])


def _gradient(problem: Problem, x: Tensor, y: Tensor, theta: Tensor, scale: Tensor | None = None) -> Tensor:
    return problem.gradient(theta, x, y, scale)


def _stacked(runs: list[np.ndarray], problem: Problem) -> tuple[Tensor, ...]:
    """What every client has at each iteration of a block: iterations × (clients,)."""
    return torch.from_numpy(np.concatenate(runs, axis=1)).to(problem.device, problem.dtype).unbind()


def _crossings(block: Block, at_delay: Sequence[float]) -> dict[int, list[int]]:
    """Iteration -> runs whose cumulative raw total delay first reaches one of the values there, in this block."""
    due: dict[int, list[int]] = {}
    for r, tally in enumerate(block.tallies):
        total = tally.delays.total
        for value in at_delay:
            t = bisect_left(total, value)
            if t < len(total) and tally.before < value:
                runs = due.setdefault(int(block.k[t]) + 1, [])
                if r not in runs:
                    runs.append(r)
    return due
