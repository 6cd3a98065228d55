"""Where runs are evaluated: at multiples of a number of iterations, delays, parts of a budget, and their end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from dspodfl.engine.events import Block


def evaluations(
    block: Block, every: int | None, at_delay: Sequence[float], points: int | None, ended: Collection[int]
) -> dict[int, list[int]]:
    """Return which runs are evaluated where in a block.

    Args:
        block: The events, and where runs end.
        every: Evaluate at multiples of this number of iterations; None: not for that reason.
        at_delay: Evaluate a run where its raw total delay first reaches each of these.
        points: Evaluate a run where its cost first reaches each of this number of equal parts of its budget.
        ended: Runs that are over.

    Returns:
        Iteration -> the runs that are evaluated there, in order of iterations; none after its end.
    """
    start, end = int(block.k[0]), int(block.k[-1]) + 1
    runs = [r for r in range(len(block.stack.runs)) if r not in ended]
    due: dict[int, set[int]] = {}
    for k in range(start + every - start % every, end + 1, every) if every else ():
        due.setdefault(k, set()).update(runs)
    tally = block.tally
    crossed = [_crossings(block, tally.total, tally.before, {r: list(at_delay) for r in runs})] if at_delay else []
    if points:
        budgets = {r: budget for r in runs if (budget := block.stack.runs[r].budget)}
        marks = {r: budget.points(points) for r, budget in budgets.items()}
        crossed.append(_crossings(block, tally.cost, tally.cost_before, marks))
    for r, k in [pair for pairs in crossed for pair in pairs] + list(block.ends.items()):
        due.setdefault(k, set()).add(r)
    last = {r: block.ends.get(r, end) for r in runs}
    found = {k: sorted(r for r in some if k <= last.get(r, 0)) for k, some in sorted(due.items())}
    return {k: some for k, some in found.items() if some}


def _crossings(
    block: Block, cost: Tensor, before: Tensor, marks: Mapping[int, Sequence[float]]
) -> list[tuple[int, int]]:
    """Return runs and the iterations in a block at which their cost first reaches each of their marks.

    Args:
        block: The iterations.
        cost: The cost of each run after each iteration, (iterations, runs).
        before: The same before the block, (runs,).
        marks: Run -> costs, the same number for each run.
    """
    if not marks:
        return []
    some = list(marks)
    after, first = cost.T[some].contiguous(), before[some]
    values = torch.tensor([list(marks[r]) for r in some], dtype=after.dtype, device=after.device)  # (runs, marks)
    places = torch.searchsorted(after, values)
    new = (first[:, None] < values) & (places < len(block.k))
    which, _ = torch.nonzero(new, as_tuple=True)
    at = int(block.k[0]) + places[new] + 1
    return list({(some[n], k) for n, k in zip(which.tolist(), at.tolist(), strict=True)})
