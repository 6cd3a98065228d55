"""The loop: all runs advance together, and yield their models wherever they are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import cast

import torch
from torch import Tensor

from dspodfl.algorithms import Rule, gates_links
from dspodfl.engine.counters import Counters, Totals
from dspodfl.engine.counting import Counted, CountedAfter, CountedAhead, Grid
from dspodfl.engine.events import Block, EventSampler
from dspodfl.engine.exchange import Split
from dspodfl.engine.snapshots import Observer, Snapshot
from dspodfl.engine.stack import Stack
from dspodfl.engine.state import Held, State
from dspodfl.engine.steppers.base import Stepper, choose
from dspodfl.engine.steppers.compiled import in_huge_pages
from dspodfl.engine.steppers.plain import Plain
from dspodfl.problem import Problem

_MAX_WORDS_PER_BLOCK = {"cpu": 2_000_000, "cuda": 128_000_000}
"""Random words drawn for a block: enough to keep the device busy, few enough to stay small compared with the models."""
_LONGEST_BLOCK = {"cpu": 250, "cuda": 1000}
SHRINKS = 250
"""A stack is made smaller at multiples of this number of iterations."""


def simulate(  # noqa: PLR0913 (what a loop is given, all by name)
    stack: Stack,
    problem: Problem,
    rule: Rule,
    initial: Tensor | Sequence[Tensor] | State,
    *,
    iterations: int,
    every: int | None,
    at_delay: Sequence[float] = (),
    points: int | None = None,
    tick: Callable[[int], None] | None = None,
    on_block: Callable[[Block], None] | None = None,
    longest: int | None = None,
    reach: Callable[[int], int] | None = None,
    split: Split | None = None,
    shrink: bool = False,
    pending: Sequence[int] | None = None,
) -> Iterator[Snapshot]:
    """Advance all runs together:  Θ⁽ᵏ⁺¹⁾ = P⁽ᵏ⁾Θ⁽ᵏ⁾ − α⁽ᵏ⁾V⁽ᵏ⁾G⁽ᵏ⁾, or what another rule computes.

    A run ends at the first iteration at which its cost is at least its budget, or at its cap. It is evaluated there and
    not after it, and the loop ends with the last of the runs. A run whose parameters are no longer finite is frozen;
    one with a budget ends there. Started from a state, the loop continues as if it had never stopped.

    Args:
        stack: The runs.
        problem: Data and model of the clients held here, in the order of the shard's rows.
        rule: How mixed models and gradients become new models.
        initial: The initial models, (clients, p), or one for each run, (p,); or the state to resume from.
        iterations: The most iterations to make.
        every: Evaluate at multiples of this number; None: not for that reason.
        at_delay: Evaluate a run where its cumulative raw total delay first reaches each of these.
        points: Evaluate a run where its cost first reaches each of this number of equal parts of its budget.
        tick: Called with the number of every iteration, once it is made.
        on_block: Called with the events of each block, before its iterations; of a rule that decides which links fire,
            part by part, after them.
        longest: Iterations of a block, at most; None: by the device.
        reach: Called with an iteration; returns up to which one to advance before the loop yields, whether or not a run
            is evaluated there.
        split: The clients held here, and the transport to the others; None: all clients are held here.
        shrink: Whether to end early where half of the clients belong to runs that are over and still cost time
            (`shrunk` computes where): the other runs continue, from the last snapshot's state, as a smaller stack.
        pending: Runs whose evaluation at the iteration of the state was not finished: they are evaluated there. Unless
            it is None, the loop yields there, even if no run is pending.

    Yields:
        A snapshot at 0, unless it starts from a state, and wherever a run is evaluated. It is valid until the next.

    Raises:
        InputError: The state of the rule is not one that can be saved, or the rule mixes otherwise than it declares.
    """
    resumed = initial if isinstance(initial, State) else None
    totals = resumed.totals(stack) if resumed else Totals.zero(stack)
    split = split or Split.local(stack)
    held = split.shard.held
    theta = _start(held, problem, initial)
    carried = resumed.rule(held, rule.init(theta, len(split.shard.link))) if resumed else None
    stepper = choose(split, problem, rule, theta, carried)
    del theta  # the stepper owns it now, and it may be large
    shrink = shrink and stepper.idles
    with closing(Observer(stack, problem, rule, stepper, held, split.transport)) as observer:
        if resumed is None:
            everyone = list(range(len(stack.runs)))
            yield observer.at(0, everyone, [Counters()] * len(everyone), lambda: totals)
        else:
            observer.freeze_diverged(resumed)
            over = stack.over(totals, iterations, problem.device)
            if (yield from _pending_evaluations(observer, stack, totals, over, pending, shrink)):
                return
        length, grid = _block_length(stack, problem, longest), Grid(every, at_delay, points, observer.ended)
        gated = gates_links(rule)
        sampler = EventSampler(stack, problem.device, problem.dtype, totals, iterations, gated=gated)
        for block in sampler.blocks(length):
            observer.end(block.over)
            if observer.finished:
                return
            if on_block and not gated:
                on_block(block)
            stepper.load(split.shard.block(block))
            first = max(int(block.k[0]), totals.iteration)
            counted: Counted = (
                CountedAhead(block, grid)
                if not gated
                else CountedAfter(block, sampler, split, cast(Plain, stepper).passed, grid, on_block)
            )
            if (yield from _advanced(block, first, counted, observer, stepper, shrink=shrink, tick=tick, reach=reach)):
                return


def _block_length(stack: Stack, problem: Problem, longest: int | None) -> int:
    """Return the iterations of a block."""
    device, words = problem.device.type, stack.clients * (problem.batch_size + 1) + stack.all_links
    return max(1, min(longest or _LONGEST_BLOCK[device], _MAX_WORDS_PER_BLOCK[device] // words))


def _advanced(
    block: Block,
    first: int,
    counted: Counted,
    observer: Observer,
    stepper: Stepper,
    *,
    shrink: bool,
    tick: Callable[[int], None] | None,
    reach: Callable[[int], int] | None,
) -> Generator[Snapshot, None, bool]:
    """Advance through a block that is loaded, from an iteration on, and evaluate the runs that are due.

    Returns whether the loop ends there: all runs are over, or it is to be continued by a smaller stack.
    """
    start, end = int(block.k[0]), int(block.k[-1]) + 1
    shrinking = set(range(start, end + 1)) & _shrinking(end) if shrink else set()
    reached = first
    for stop in counted.stops(first, shrinking):
        while reached < stop:
            pause = min(stop, max(reached + 1, reach(reached))) if reach else stop
            stepper.advance(reached - start, pause - start)
            if tick:
                for k in range(reached, pause):
                    tick(k + 1)
            counted.count(reached, pause)
            reached = pause
            here = [r for r in counted.due(reached) if r not in observer.ended]
            ends = [r for r in here if counted.ends.get(r) == reached]
            totals = partial(counted.totals, reached)
            if here or reach:
                counters = counted.counters(reached) if here else []
                yield observer.at(reached, here, counters, totals, ends)
            if observer.finished:
                return True
            if reached in shrinking and observer.small:
                yield observer.at(reached, [], [], totals, shrinks=True)
                return True
    return False


def _pending_evaluations(
    observer: Observer, stack: Stack, totals: Totals, over: set[int], pending: Sequence[int] | None, shrink: bool
) -> Generator[Snapshot, None, bool]:
    """Evaluate the runs whose evaluation was not finished, where a loop is resumed.

    Returns whether the loop ends there, to be continued by a smaller stack.
    """
    observer.end(over - set(pending or ()))
    if pending is None:
        return False
    counters = Counters.of(totals, stack, observer.device)
    yield observer.at(totals.iteration, list(pending), counters, lambda: totals, over & set(pending))
    if not shrink or totals.iteration % SHRINKS or not observer.small or observer.finished:
        return False
    yield observer.at(totals.iteration, [], [], lambda: totals, shrinks=True)
    return True


def _shrinking(last: int) -> set[int]:
    """Return the iterations at which a stack may be made smaller, up to the last."""
    return set(range(SHRINKS, last + 1, SHRINKS))


def shrunk(ended: Mapping[int, int], clients: Sequence[int], iteration: int) -> list[int]:
    """Return which runs are still stacked after an iteration; it depends on where runs have ended, and on nothing else.

    Args:
        ended: Run -> the iteration that it ended at, of those that have.
        clients: The number of clients of each run.
        iteration: The number of iterations made.

    Returns:
        The numbers of these runs, ascending.

    >>> shrunk({0: 10, 1: 300}, [5, 5, 5], 400)
    [0, 1, 2]
    >>> shrunk({0: 10, 1: 300}, [5, 5, 5], 500)
    [2]
    """
    stacked = list(range(len(clients)))
    for at in sorted({-(-end // SHRINKS) * SHRINKS for end in ended.values()}):
        live = [r for r in stacked if ended.get(r, at + 1) > at]
        if at <= iteration and 2 * sum(clients[r] for r in live) <= sum(clients[r] for r in stacked):
            stacked = live
    return stacked


def _start(held: Held, problem: Problem, initial: Tensor | Sequence[Tensor] | State) -> Tensor:
    """Return the packed initial models, (held, width), in new memory."""
    if isinstance(initial, Tensor):
        return problem.pack(initial.to(problem.device, problem.dtype)).clone()
    shape, dtype = (len(held.rows), problem.width), problem.dtype
    if problem.device.type == "cpu":
        theta = in_huge_pages(shape, dtype)
    else:
        theta = torch.empty(shape, device=problem.device, dtype=dtype)
    if isinstance(initial, State):
        initial.theta(held, theta, problem.pack)
        return theta
    for rows, model in zip(held.of_run, initial, strict=True):
        theta[rows] = problem.pack(model.to(problem.device, problem.dtype)[None])
    return theta
