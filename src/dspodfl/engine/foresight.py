"""Where runs are evaluated and what they have spent there, from their events alone: no model is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dspodfl.engine.counters import Counters
from dspodfl.engine.due import evaluations
from dspodfl.engine.run import Run
from dspodfl.engine.stack import Stack
from dspodfl.network import LONGEST

_MAX_ELEMENTS_PER_CHUNK = 2_000_000


@dataclass(frozen=True, eq=False)
class Due:
    """The runs of a stack that are evaluated at an iteration.

    Args:
        iteration: The number of updates made.
        runs: Their numbers in the stack, ascending.
        counters: What each of them has counted until then.
        ends: Those of them that end there by their budget or their cap.
    """

    iteration: int
    runs: list[int]
    counters: list[Counters]
    ends: list[int]


def foreseen(
    stack: Stack, *, every: int | None, at_delay: Sequence[float] = (), points: int | None = None, over: set[int]
) -> Iterator[Due]:
    """Yield the evaluations of a stack in order, as `simulate` makes them; iteration 0 is the first.

    Divergence is not foreseen: a run that is in ``over`` is not evaluated any more.

    Args:
        stack: The runs, with their budgets and caps.
        every: Evaluate at multiples of this number; None: not for that reason.
        at_delay: Evaluate a run where its raw total delay first reaches each of these.
        points: Evaluate a run where its cost first reaches each of this number of equal parts of its budget.
        over: Runs that are over. Those that end are added; the caller adds those that have diverged.

    Yields:
        What is evaluated at an iteration; the numbers are those of `simulate`, to the last bit.
    """
    everyone = list(range(len(stack.runs)))
    yield Due(0, everyone, [Counters()] * len(everyone), [])
    iterations = max(run.last(run.cap or LONGEST) for run in stack.runs)
    length = max(1, min(1000, _MAX_ELEMENTS_PER_CHUNK // max(1, stack.clients + stack.all_links)))
    for block in stack.blocks(iterations, length):
        over |= block.over
        if len(over) == len(everyone):
            return
        start = int(block.k[0])
        for k, some in evaluations(block, every, at_delay, points, over).items():
            here = [r for r in some if r not in over]
            if here:
                counters = Counters.after(block.tally, k - start - 1)
                ends = [r for r in here if block.ends.get(r) == k]
                over.update(ends)
                yield Due(k, here, [counters[r] for r in here], ends)
            if len(over) == len(everyone):
                return


def evaluated_iterations(
    run: Run, every: int | None, at_delay: Sequence[float] = (), points: int | None = None
) -> list[int]:
    """Return the iterations at which a run is evaluated if it does not diverge; the last is that of its end.

    Args:
        run: With its budget and cap.
        every: Evaluate at multiples of this number; None: not for that reason.
        at_delay: Evaluate where its raw total delay first reaches each of these.
        points: Evaluate where its cost first reaches each of this number of equal parts of its budget.

    Returns:
        The iterations, ascending, from 0 on.
    """
    found = foreseen(Stack([run]), every=every, at_delay=at_delay, points=points, over=set())
    return [due.iteration for due in found]
