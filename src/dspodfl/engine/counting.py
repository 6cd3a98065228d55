"""How a block of iterations is counted, and where its runs are evaluated and end.

Where events do not depend on models, all of it is known before the first iteration (`CountedAhead`). Where a rule
decides which links fire (`dspodfl.algorithms.gates_links`), what happened is counted after it has (`CountedAfter`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dspodfl.engine.counters import Counters, Totals
from dspodfl.engine.due import evaluations
from dspodfl.engine.events import Block, EventSampler
from dspodfl.engine.exchange import Split

OnBlock = Callable[[Block], None]


@dataclass(frozen=True, eq=False)
class Grid:
    """Where runs are evaluated: the arguments of `dspodfl.engine.due.evaluations`."""

    every: int | None
    at_delay: Sequence[float]
    points: int | None
    ended: Collection[int]

    def reads_costs(self, sampler: EventSampler) -> bool:
        """Return whether it depends on what events cost where runs are evaluated or end."""
        return bool(self.at_delay or self.points or sampler.spending)

    def due(self, block: Block) -> dict[int, list[int]]:
        """Return which runs are evaluated where in a block."""
        return evaluations(block, self.every, self.at_delay, self.points, self.ended)


class Counted(Protocol):
    """A block that is advanced through, from stop to stop."""

    @property
    def ends(self) -> Mapping[int, int]:
        """Run -> the number of iterations after which it is over, as far as known."""
        ...

    def stops(self, first: int, others: Collection[int]) -> Iterator[int]:
        """Yield where to stop, in order; ``others`` are further iterations. The last is the end of the block."""
        ...

    def count(self, first: int, last: int) -> None:
        """Count iterations first … last − 1, which are made."""
        ...

    def due(self, reached: int) -> Sequence[int]:
        """Return the runs that are evaluated at an iteration that is counted."""
        ...

    def counters(self, reached: int) -> list[Counters]:
        """Return the counters of every run there."""
        ...

    def totals(self, reached: int) -> Totals:
        """Return what was counted before it."""
        ...


class CountedAhead:
    """A block whose events are known: its tally is that of the block.

    Args:
        block: The events, and where runs end.
        grid: Where runs are evaluated.
    """

    def __init__(self, block: Block, grid: Grid) -> None:
        self._block, self._due, self.ends = block, grid.due(block), block.ends
        self._first = int(block.k[0])

    def stops(self, first: int, others: Collection[int]) -> Iterator[int]:
        """Yield where to stop."""
        yield from sorted({*self._due, *others, int(self._block.k[-1]) + 1})

    def count(self, first: int, last: int) -> None:
        """Do nothing: all is counted."""

    def due(self, reached: int) -> Sequence[int]:
        """Return the runs that are evaluated at an iteration."""
        return self._due.get(reached, ())

    def counters(self, reached: int) -> list[Counters]:
        """Return the counters of every run there."""
        return Counters.after(self._block.tally, reached - self._first - 1)

    def totals(self, reached: int) -> Totals:
        """Return what was counted before it."""
        return self._block.tally.totals(reached, reached - self._first)


class CountedAfter:
    """A block of which models decide which links fire.

    What the links that are drawn would cost is at least what those cost that fire. So no run reaches a mark (the end of
    its budget, a delay at which it is evaluated) before that upper bound does: iterations up to there are made without
    a look at what they cost, then they are counted, and so on. Numbers stay on the device until a run is evaluated, or
    such a bound is reached.

    Args:
        block: The events that are drawn.
        sampler: What has drawn them; it has the ledger, and is told which runs are over.
        split: The clients held here, and the transport to the others.
        passed: Returns which links of the shard fired between two iterations of the block.
        grid: Where runs are evaluated.
        on_block: Called with what happened, part by part.
    """

    def __init__(
        self,
        block: Block,
        sampler: EventSampler,
        split: Split,
        passed: Callable[[int, int], Tensor],
        grid: Grid,
        on_block: OnBlock | None,
    ) -> None:
        self._block, self._sampler, self._split, self._passed = block, sampler, split, passed
        self._grid, self._on_block = grid, on_block
        self._start, self._end = int(block.k[0]), int(block.k[-1]) + 1
        self._part, self._due = block, dict[int, list[int]]()
        self.ends: dict[int, int] = {}

    def stops(self, first: int, others: Collection[int]) -> Iterator[int]:
        """Yield the next iteration at which a run may be due; it is computed when the one before is counted."""
        reached = first
        while reached < self._end:
            reached = min([*self._possible(reached), *(k for k in others if k > reached), self._end])
            yield reached

    def _possible(self, reached: int) -> dict[int, list[int]]:
        """Where runs would be evaluated from an iteration on, if all links fired that are drawn."""
        block, sampler, a = self._block, self._sampler, reached - self._start
        tally = block.tally  # that of all links that are drawn
        if a and self._grid.reads_costs(sampler):
            tally = sampler.ledger.trial(block.k[a:], block.v[a:], block.v_hat[a:]).tally
        ends = sampler.ends(tally.cost, reached, self._end)
        return self._grid.due(replace(block, k=block.k[a:], tally=tally, ends=ends))

    def count(self, first: int, last: int) -> None:
        """Count iterations first … last − 1, which are made."""
        block, sampler, a, b = self._block, self._sampler, first - self._start, last - self._start
        v, v_hat = block.v[a:b], self._everywhere(self._passed(a, b)) & block.v_hat[a:b]
        tally = sampler.ledger.add(block.k[a:b], v, v_hat)
        self.ends = sampler.ends(tally.cost, first, last)
        self._part = replace(
            block,
            k=block.k[a:b],
            v=v,
            v_hat=v_hat,
            active=block.active[a:b] * v_hat,
            lr=block.lr[a:b],
            tally=tally,
            ends=self.ends,
            new=None,
        )
        if self._on_block:
            self._on_block(self._part)
        self._due = self._grid.due(self._part)
        for r in self.ends:  # nothing of it happens any more
            block.v[b:, block.stack.rows[r]] = False
            block.v_hat[b:, block.stack.links[r]] = False
            block.active[b:, block.stack.links[r]] = 0.0
        sampler.end(self.ends)

    def _everywhere(self, passed: Tensor) -> Tensor:
        """Which links of the stack fired, from those of the shards. Shapes: (T, links here) -> (T, links)."""
        shard = self._split.shard
        if shard.is_whole:
            return passed
        held = torch.from_numpy(shard.held.links).to(passed.device)  # every link is held by one process
        here = torch.from_numpy(shard.link).to(passed.device)
        mine = passed.new_zeros((len(passed), shard.stack.all_links), dtype=torch.float32)
        mine[:, held] = passed[:, torch.searchsorted(here, held)].to(torch.float32)
        return self._split.transport.all_reduce_sum(mine) > 0

    def due(self, reached: int) -> Sequence[int]:
        """Return the runs that are evaluated at an iteration that is counted."""
        return self._due.get(reached, ())

    def counters(self, reached: int) -> list[Counters]:
        """Return the counters of every run there."""
        return Counters.after(self._part.tally, reached - int(self._part.k[0]) - 1)

    def totals(self, reached: int) -> Totals:
        """Return what was counted before it."""
        return self._part.tally.totals(reached, reached - int(self._part.k[0]))
