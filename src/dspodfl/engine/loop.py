"""The loop: all runs advance together, yielding the models wherever they are to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dspodfl.engine import split as splitting
from dspodfl.engine.advance import Advance, choose, in_huge_pages
from dspodfl.engine.ledger import Tally
from dspodfl.engine.split import Split
from dspodfl.engine.stack import Block, Stack
from dspodfl.problem import Problem
from dspodfl.rule import Rule

_WORDS_AT_ONCE = {"cpu": 2_000_000, "cuda": 128_000_000}
"""Random words drawn for a block: enough to keep the device busy, few enough to stay small beside the models."""
_LONGEST_BLOCK = {"cpu": 250, "cuda": 1000}
_NUMBERS_AT_ONCE = {"cpu": 2**21, "cuda": 2**27}


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
    def after(tally: Tally, t: int) -> list[Counters]:
        """The counters of every run after the t-th iteration of a block."""
        delays = (
            tally.processing,
            tally.transmission,
            tally.processing_normalized,
            tally.transmission_normalized,
        )
        found = torch.stack([column[t] for column in delays]).cpu().T.tolist()
        counts = torch.stack([tally.sgd_steps[t], tally.link_uses[t]]).cpu().T.tolist()
        return [Counters(*d, *c) for d, c in zip(found, counts, strict=True)]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The stacked models after ``iteration`` updates, and the runs that are to be evaluated there.

    It is good until the loop goes on.
    """

    iteration: int
    packed: Tensor  # (clients, width); rows of run r are stack.rows[r]
    runs: list[int]
    counters: list[Counters]  # of the runs above
    diverged: list[bool]  # of the runs above
    problem: Problem

    @cached_property
    def theta(self) -> Tensor:
        """All models in the order of named_parameters. Shape: (clients, p)."""
        return self.problem.unpack(self.packed)

    def models(self, rows: slice) -> Tensor:
        """Some models in the order of named_parameters. Shape: (rows, p)."""
        return self.problem.unpack(self.packed[rows])


def simulate(
    stack: Stack,
    problem: Problem,
    rule: Rule,
    initial: Tensor | Sequence[Tensor],
    *,
    iterations: int,
    every: int,
    at_delay: Sequence[float] = (),
    tick: Callable[[int], None] | None = None,
    on_block: Callable[[Block], None] | None = None,
    longest: int | None = None,
    split: Split | None = None,
) -> Iterator[Snapshot]:
    """Advance all runs together:  Θ⁽ᵏ⁺¹⁾ = P⁽ᵏ⁾Θ⁽ᵏ⁾ − α⁽ᵏ⁾V⁽ᵏ⁾G⁽ᵏ⁾, or whatever the rule makes of it.

    Yields at 0, every multiple of ``every``, the last iteration, and, run by run, where the cumulative raw total
    delay first reaches each of ``at_delay``. A run whose parameters are no longer finite is frozen. ``tick`` hears
    of every iteration; ``on_block`` sees the events, of at most ``longest`` iterations at a time.
    With a ``split`` the problem and the models are those of the clients held here, in the order of the shard's rows.
    Shapes: initial (clients, p), or a run each (p,).
    """
    device = problem.device.type
    rows = stack.rows if split is None else split.shard.rows
    theta = _start(rows, problem, initial)
    advance = choose(stack, problem, rule, theta) if split is None else splitting.choose(split, problem, rule, theta)
    diverged = [False] * len(stack.runs)
    everyone = list(range(len(stack.runs)))

    def look(iteration: int, due: list[int], counters: list[Counters]) -> Snapshot:
        _freeze(rows, advance, due, diverged, split)
        here = [counters[r] for r in due]
        return Snapshot(iteration, advance.theta, due, here, [diverged[r] for r in due], problem)

    yield look(0, everyone, [Counters()] * len(everyone))
    words = stack.clients * (problem.batch_size + 1) + stack.all_links
    length = max(1, min(longest or _LONGEST_BLOCK[device], _WORDS_AT_ONCE[device] // words))
    for block in stack.blocks(iterations, length, problem.device, problem.dtype):
        if on_block:
            on_block(block)
        advance.load(block if split is None else split.shard.block(block))
        start, end = int(block.k[0]), int(block.k[-1]) + 1
        due = _crossings(block, at_delay)
        regular = {k for k in range(start + 1, end + 1) if k % every == 0 or k == iterations}
        reached = start
        for stop in sorted({*regular, *due, end}):
            advance.go(reached - start, stop - start)
            if tick:
                for k in range(reached, stop):
                    tick(k + 1)
            reached = stop
            here = everyone if stop in regular else due.get(stop)
            if here:
                yield look(stop, here, Counters.after(block.tally, stop - start - 1))


def _start(rows: list[slice], problem: Problem, initial: Tensor | Sequence[Tensor]) -> Tensor:
    """The packed initial models, in memory of their own."""
    if isinstance(initial, Tensor):
        return problem.pack(initial.to(problem.device, problem.dtype)).clone()
    shape, dtype = (rows[-1].stop, problem.width), problem.dtype
    if problem.device.type == "cpu":
        theta = in_huge_pages(shape, dtype)
    else:
        theta = torch.empty(shape, device=problem.device, dtype=dtype)
    for here, model in zip(rows, initial, strict=True):
        theta[here] = problem.pack(model.to(problem.device, problem.dtype)[None])
    return theta


def _freeze(
    rows: list[slice], advance: Advance, due: list[int], diverged: list[bool], split: Split | None
) -> None:
    """Freeze the runs among those looked at whose parameters are no longer all finite, on any process."""
    theta = advance.theta
    if len(due) < len(rows):
        finite = [_finite(theta[rows[r]]).all() for r in due]
        sound = torch.stack(finite).tolist()
    else:
        every = _finite(theta)
        sound = [True] * len(due) if bool(every.all()) else [bool(every[rows[r]].all()) for r in due]
    if split is not None:
        lost = split.team.total(torch.tensor([not fine for fine in sound], dtype=torch.float64, device=theta.device))
        sound = [count == 0 for count in lost.tolist()]
    for r, fine in zip(due, sound, strict=True):
        if not diverged[r] and not fine:
            diverged[r] = True
            advance.freeze(r)


def _finite(theta: Tensor) -> Tensor:
    """Whether all parameters of each client are finite. Shapes: (clients, width) -> (clients,)."""
    step = max(1, _NUMBERS_AT_ONCE[theta.device.type] // theta.shape[1])
    if not len(theta):
        return torch.ones(0, dtype=torch.bool, device=theta.device)
    return torch.cat([torch.isfinite(theta[n : n + step]).all(dim=1) for n in range(0, len(theta), step)])


def _crossings(block: Block, at_delay: Sequence[float]) -> dict[int, list[int]]:
    """Iteration -> runs whose cumulative raw total delay first reaches one of the values there, in this block."""
    due: dict[int, list[int]] = {}
    if not at_delay:
        return due
    total, before = block.tally.total.T.contiguous(), block.tally.before
    values = torch.tensor(list(at_delay), dtype=total.dtype, device=total.device)
    places = torch.searchsorted(total, values.expand(len(total), -1).contiguous()).cpu()  # (runs, values)
    fresh = (before[:, None] < values).cpu()
    for r in range(len(total)):
        for t in sorted({int(t) for t, new in zip(places[r], fresh[r], strict=True) if new and t < len(block.k)}):
            due.setdefault(int(block.k[0]) + t + 1, []).append(r)
    return due
