"""Ways to advance the models that one of several processes holds; the others send the rows that its links need.

    Θ ← PΘ − αVG,   P = P_here + P_cut

Rows start on their way, then come gradients and mixing among the clients here, then the rows that have come: nothing
waits that does not have to. `Stepwise` works for every model, rule and device; `Compiled` for linear models on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl.engine.advance import ALONE, BUSY, Advance, in_huge_pages
from dspodfl.engine.mix import sparse
from dspodfl.engine.shard import Crossings, Shard
from dspodfl.engine.stack import Block, Neighbours
from dspodfl.engine.team import Team, Wait
from dspodfl.kernels import compiled, mixing
from dspodfl.models.gradients import has_bias
from dspodfl.problem import Problem
from dspodfl.rule import Rule, Simultaneous


@dataclass(frozen=True, eq=False)
class Split:
    """The part of a stack that is held here, and those who hold the rest."""

    shard: Shard
    team: Team

    def assembled(self, values: Tensor, run: int) -> Tensor:
        """What each process holds of the clients of a run, in their order; all processes ask together.

        Shapes: (clients of the run owned here, ...) -> (clients of the run, ...).
        """
        owned = [self.shard.owned(rank, run) for rank in range(self.team.ranks)]
        parts = self.team.collect(values, [len(numbers) for numbers in owned])
        out = values.new_empty((self.shard.stack.runs[run].clients, *values.shape[1:]))
        for numbers, part in zip(owned, parts, strict=True):
            out[torch.from_numpy(numbers).to(out.device)] = part
        return out


def choose(split: Split, problem: Problem, rule: Rule, theta: Tensor, state: Any = None) -> Advance:
    """The fastest way that there is for a rule, a model and a device. ``theta`` is used up.

    ``state`` is what the rule carries where it is taken up again; without one, it begins.
    """
    exact = problem.compute == problem.dtype and problem.device.type == "cpu"
    if isinstance(rule, Simultaneous) and problem.model.is_linear and exact and compiled.available():
        return Compiled(split, problem, theta)
    return Stepwise(split, problem, rule, theta, state)


class _Rows:
    """The rows that cross one way in a block: which, and where those of each process begin and end."""

    def __init__(self, crossings: Crossings, active: np.ndarray) -> None:
        needed = crossings.needed(active)
        self.place = np.cumsum(needed, axis=1) - 1  # (iterations, crossing) of those that cross, one after the other
        count = np.concatenate([np.zeros((len(active), 1), dtype=np.int64), self.place + 1], axis=1)
        self.bounds = count[:, crossings.bounds]  # (iterations, ranks + 1)
        at, which = np.nonzero(needed)
        self._row, self._start = crossings.row[which], np.searchsorted(at, np.arange(len(active) + 1))

    def at(self, t: int) -> np.ndarray:
        """The rows that cross at the t-th iteration, by process."""
        return self._row[self._start[t] : self._start[t + 1]]


class Exchange:
    """Sends the rows of owned clients that fire across, and receives those of the halo.

    Where the transport allows it, rows are expected one iteration ahead, in another buffer: whoever is first then need
    not ask whether the other is ready. ``buffers`` are two, (halo, width) each; iterations take turns.
    """

    def __init__(self, split: Split, buffers: Sequence[Tensor]) -> None:
        self.split, self._buffers = split, buffers
        self._out = buffers[0].new_empty((len(split.shard.leave.row), buffers[0].shape[1]))
        self._nothing: list[Tensor | None] = [None] * split.team.ranks
        self._expected: tuple[int, Wait] | None = None

    def load(self, active: np.ndarray) -> None:
        """Take the active weights of a block. Shape: (iterations, links of the shard)."""
        shard = self.split.shard
        self.leave, self.come = _Rows(shard.leave, active), _Rows(shard.come, active)

    def came(self, t: int) -> Tensor:
        """Where the rows of the t-th iteration are, one after the other, once they have been waited for."""
        return self._buffers[t % 2]

    def start(self, t: int, theta: Tensor) -> Wait:
        """Start what crosses at the t-th iteration of the block."""
        rows = torch.from_numpy(self.leave.at(t)).to(theta.device)
        torch.index_select(theta, 0, rows, out=self._out[: len(rows)])
        team, leaving = self.split.team, _cut(self._out, self.leave.bounds[t])
        if not team.ahead:
            return team.start(leaving, self._coming(t))
        arrived = self._expect(t)
        sent = team.start(leaving, self._nothing)
        if t + 1 < len(self.come.bounds):
            self._expected = t + 1, self._expect(t + 1)

        def wait() -> None:
            arrived()
            sent()

        return wait

    def _expect(self, t: int) -> Wait:
        expected, self._expected = self._expected, None
        if expected is not None and expected[0] == t:
            return expected[1]
        return self.split.team.start(self._nothing, self._coming(t))

    def _coming(self, t: int) -> list[Tensor | None]:
        return _cut(self.came(t), self.come.bounds[t])


def _cut(buffer: Tensor, bounds: np.ndarray) -> list[Tensor | None]:
    ends = bounds.tolist()
    return [buffer[a:b] if b > a else None for a, b in pairwise(ends)]


class Stepwise:
    """One iteration at a time, as the rule says it. Of the paper's own update, rows travel beside the gradients."""

    def __init__(self, split: Split, problem: Problem, rule: Rule, theta: Tensor, state: Any = None) -> None:
        self.theta, self._rule, self._problem, self._shard = theta, rule, problem, split.shard
        self.state: Any = rule.init(theta) if state is None else state
        shard = split.shard
        self._exchange = Exchange(split, theta.new_empty((2, len(shard.halo), theta.shape[1])).unbind())
        self._both = theta.new_zeros((len(shard.own) + len(shard.halo), theta.shape[1]))
        fast = mixing.available(theta.device, theta.dtype)
        links = _with_halo(shard)
        self._links = mixing.Links.of(links, theta.device) if fast else None
        self._alive: Tensor | None = None

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._v, self._lr = block.v.to(self._problem.dtype).unbind(), block.lr.unbind()
        self._active = block.active
        self._exchange.load(block.active.cpu().numpy())
        self._batches = self._problem.batches(block.k)

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        for t in range(first, last):
            x, y = self._batches[t]
            early = self._exchange.start(t, self.theta) if isinstance(self._rule, Simultaneous) else None
            gradient: Any = partial(_gradient, self._problem, x, y)
            mix: Any = partial(self._mix, t, early)
            new, self.state = self._rule.step(self.theta, mix, gradient, self._v[t], self._lr[t], self.state)
            self.theta = new if self._alive is None else torch.where(self._alive[:, None], new, self.theta)

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        if self._alive is None:
            self._alive = torch.ones(len(self.theta), dtype=torch.bool, device=self.theta.device)
        self._alive[self._shard.rows[run]] = False

    def _mix(self, t: int, early: Wait | None, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """P(k)x less ``minus``; what crosses is on its way already if it was started early."""
        wait = early or self._exchange.start(t, x)
        own, both = len(x), self._both
        both[:own] = x
        wait()
        rows = torch.from_numpy(self._exchange.come.at(t)).to(x.device)
        both.index_copy_(0, own + rows, self._exchange.came(t)[: len(rows)])
        if self._links is not None:
            mixed = mixing.mixed(both, self._links, self._active[t])[:own]
        else:
            mixed = sparse(self._shard.ends, self._active[t], both)[:own]
        return mixed if minus is None else torch.sub(mixed, minus, out=minus)


def _with_halo(shard: Shard) -> Neighbours:
    """The links seen from each row, of which the halo's have none."""
    return Neighbours(np.pad(shard.all.ptr, (0, len(shard.halo)), "edge"), shard.all.col, shard.all.link)


def _gradient(problem: Problem, x: Tensor, y: Tensor, theta: Tensor, scale: Tensor | None = None) -> Tensor:
    return problem.gradient(theta, x, y, scale)


class Compiled:
    """Linear models on the CPU, in machine code.

    While rows travel, the clients that need none of them are advanced, and then the others: each client's numbers are
    those of one process, to the bit. Where most clients need rows, all are advanced without them first, and what has
    come is added.
    """

    state = None

    def __init__(self, split: Split, problem: Problem, theta: Tensor) -> None:
        self._problem, self._shard = problem, split.shard
        own, halo = len(split.shard.own), len(split.shard.halo)
        # One piece of memory: a neighbour's row is then so many rows away, wherever it lies.
        memory = in_huge_pages((2 * (own + halo), theta.shape[1]), theta.dtype)
        self._models, self._turn = [memory[:own], memory[own : 2 * own]], 0
        self._models[0].copy_(theta)
        self._exchange = Exchange(split, memory[2 * own :].split(halo) if halo else [memory[2 * own :]] * 2)
        self._first = np.array([0, *(rows.stop for rows in split.shard.rows)])
        self._alive = np.ones(len(split.shard.rows), dtype=bool)
        inner, self._links = split.shard.inner, split.shard.all
        self._order = compiled.order_for(theta.numpy(), inner.ptr, inner.col, torch.get_num_threads())
        self._alone = 0
        self._far = np.flatnonzero(self._links.col >= own)
        self._col = self._links.col.copy()
        self._active = np.zeros((0, 0), dtype=self._models[0].numpy().dtype)

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        return self._models[self._turn]

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._rows = self._problem.draws(block.k).numpy()
        self._step, self._active = block.step.contiguous().numpy(), block.active.contiguous().numpy().copy()
        self._exchange.load(self._active)
        self._still()

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        own = len(self._order)
        for t in range(first, last):
            wait = self._exchange.start(t, self.theta)
            waiting = self._waiting(t)
            if 2 * np.count_nonzero(waiting) <= own:
                self._advance(t, self._links, self._order[~waiting[self._order]])
                wait()
                place = self._exchange.come.place[t]
                first = (2 - self._turn) * own + (t % 2) * len(self._shard.halo)
                self._col[self._far] = first + place[self._links.col[self._far] - own]
                late = Neighbours(self._links.ptr, self._col, self._links.link)
                self._advance(t, late, self._order[waiting[self._order]])
            else:
                self._advance(t, self._shard.inner, self._order)
                wait()
                self._join(t)
            self._turn = 1 - self._turn

    def _waiting(self, t: int) -> np.ndarray:
        """Which clients need a row that travels at the t-th iteration. Shape: (owned,), bool."""
        outer = self._shard.outer
        row = np.repeat(np.arange(len(outer.ptr) - 1), np.diff(outer.ptr))
        waiting = np.zeros(len(self._order), dtype=bool)
        waiting[row[self._active[t, outer.link] != 0]] = True
        return waiting

    def _advance(self, t: int, links: Neighbours, clients: np.ndarray) -> None:
        """Steps and mixing of some clients, from one buffer to the other."""
        problem = self._problem
        yields = compiled.advance(
            theta=self._models[self._turn].numpy(),
            other=self._models[1 - self._turn].numpy(),
            x=problem.x.numpy(),
            scale=problem.scale,
            shift=problem.shift,
            y=problem.y.numpy(),
            rows=self._rows[t : t + 1],
            batch_of=problem.batch_of.numpy(),
            step=self._step[t : t + 1],
            ptr=links.ptr,
            col=links.col,
            link=links.link,
            active=self._active[t : t + 1],
            first=self._first,
            alive=self._alive,
            loss=problem.model.loss,
            bias=has_bias(problem.model),
            l2=problem.model.l2,
            threads=1 if self._alone else torch.get_num_threads(),
            home=False,
            order=clients,
        )
        self._alone = max(0, self._alone - 1) if self._alone else ALONE * (yields > BUSY)

    def _join(self, t: int) -> None:
        """Add what has come from elsewhere."""
        here, there = (self._models[n].numpy() for n in (self._turn, 1 - self._turn))
        links, come = self._shard.outer, self._exchange.come
        came = self._exchange.came(t).numpy()
        compiled.join(here, there, came, links.ptr, links.col, links.link, self._active[t], come.place[t])

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        self._alive[run] = False
        rows = self._shard.rows[run]
        self._models[1 - self._turn][rows] = self._models[self._turn][rows]
        self._still()

    def _still(self) -> None:
        """Rows of frozen runs still travel, since who sends them was settled before; nothing is made of them."""
        for run in np.flatnonzero(~self._alive) if len(self._active) else ():  # a run may be frozen before any block
            self._active[:, self._shard.links[run]] = 0
