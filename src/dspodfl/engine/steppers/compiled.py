"""Linear models on the CPU, in machine code: whole blocks of iterations in which no row crosses are one call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.cpu import linear
from dspodfl.engine import compiled_linear
from dspodfl.engine.events import Block
from dspodfl.engine.exchange import Split
from dspodfl.engine.stack import Neighbours
from dspodfl.problem import Problem
from dspodfl.problem.models import has_bias

BUSY, SINGLE = 20, 16
"""Yields an iteration above which the cores count as busy; calls that are then made with a single thread."""


def in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an empty tensor in memory of NumPy, which uses huge pages where there are any: fewer address translations.

    Args:
        shape: Of the tensor.
        dtype: Of its elements.
    """
    return torch.from_numpy(np.empty(shape, dtype=str(dtype).removeprefix("torch.")))


class Compiled:
    """Linear models on the CPU: a run's models stay in a core's cache for as long as no row crosses.

    Where rows cross, the clients that need none of them are advanced while they travel, and then the others: each
    client's numbers are those of one process, to the bit. Where most clients need rows, all are advanced without them
    first, and what has come is added.
    """

    state, rests, idles = None, False, False

    @staticmethod
    def available(problem: Problem) -> bool:
        """Whether there is compiled code for a problem."""
        return compiled_linear.available(problem)

    def __init__(self, split: Split, problem: Problem, theta: Tensor) -> None:
        self._problem, self._shard = problem, split.shard
        self._models, buffers = _memory(theta, len(split.shard.halo))
        self._buffer = 0
        self._exchange = split.exchange(theta, buffers=buffers)
        self._links = split.shard.neighbours
        self._first = np.array([0, *(rows.stop for rows in split.shard.rows)])
        self._alive = np.ones(len(split.shard.rows), dtype=bool)
        self._single = 0
        self._active = np.zeros((0, 0), dtype=self.theta.numpy().dtype)  # a run may be frozen before any block
        self._order: np.ndarray | None = None
        if len(split.shard.halo):
            self._prepare_halo()

    def _prepare_halo(self) -> None:
        """Compute what iterations in which rows cross need: the order of clients, and which of them need which rows."""
        shard, own = self._shard, self._shard.clients
        inner = shard.inner
        self._order = linear.order_for(self.theta.numpy(), inner.ptr, inner.col, torch.get_num_threads())
        self._far = np.flatnonzero(self._links.col >= own)
        self._col = self._links.col.copy()
        self._needing = np.repeat(
            np.arange(own), np.diff(shard.outer.ptr)
        )  # the client of each link that leads elsewhere

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        return self._models[self._buffer]

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._rows = self._problem.draws(block.k).numpy()
        self._step, self._active = block.step.contiguous().numpy(), block.active.contiguous().numpy()
        self._exchange.load(block.active)
        self._silence()

    def advance(self, first: int, last: int) -> None:
        """Make iterations first … last − 1 of the block."""
        for start, stop, crosses in self._exchange.stretches(first, last):
            if crosses:
                self._cross(start)
            else:
                self._call(start, stop, self._links, self._order)
            self._buffer ^= (stop - start) % 2

    def _cross(self, t: int) -> None:
        """Make an iteration in which rows cross."""
        own, order = self._shard.clients, self._order
        assert order is not None
        wait = self._exchange.start(t, self.theta)
        waiting = self._waiting(t)
        if 2 * np.count_nonzero(waiting) <= own:
            self._call(t, t + 1, self._links, order[~waiting[order]])
            wait()
            place = self._exchange.come.place[t]
            first = (2 - self._buffer) * own + (t % 2) * len(self._shard.halo)
            self._col[self._far] = first + place[self._links.col[self._far] - own]
            late = Neighbours(self._links.ptr, self._col, self._links.link)
            self._call(t, t + 1, late, order[waiting[order]])
        else:
            self._call(t, t + 1, self._shard.inner, order)
            wait()
            self._join(t)

    def _waiting(self, t: int) -> np.ndarray:
        """Return which clients need a row that crosses at the t-th iteration. Shape: (owned,), bool."""
        waiting = np.zeros(self._shard.clients, dtype=bool)
        waiting[self._needing[self._active[t, self._shard.outer.link] != 0]] = True
        return waiting

    def _call(self, first: int, last: int, links: Neighbours, clients: np.ndarray | None) -> None:
        """Make iterations of some clients, or all: the buffers of models alternate."""
        problem = self._problem
        yields = linear.advance(
            theta=self._models[self._buffer].numpy(),
            back_buffer=self._models[1 - self._buffer].numpy(),
            x=problem.x.numpy(),
            scale=problem.scale,
            shift=problem.shift,
            y=problem.y.numpy(),
            rows=self._rows[first:last],
            batch_of=problem.batch_of.numpy(),
            step=self._step[first:last],
            ptr=links.ptr,
            col=links.col,
            link=links.link,
            active=self._active[first:last],
            first=self._first,
            alive=self._alive,
            loss=problem.model.loss,
            bias=has_bias(problem.model),
            l2=problem.model.l2,
            threads=1 if self._single else torch.get_num_threads(),
            end_in_theta=False,
            order=clients,
        )
        # Threads that wait for each other are slower than a single one where another program uses their cores.
        self._single = max(0, self._single - 1) if self._single else SINGLE * (yields > BUSY * (last - first))

    def _join(self, t: int) -> None:
        """Add what has come from other processes."""
        front, back = (self._models[n].numpy() for n in (self._buffer, 1 - self._buffer))
        links, come = self._shard.outer, self._exchange.come
        came = self._exchange.came(t).numpy()
        linear.join(front, back, came, links.ptr, links.col, links.link, self._active[t], come.place[t])

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        self._alive[run] = False
        rows = self._shard.rows[run]
        self._models[1 - self._buffer][rows] = self._models[self._buffer][rows]
        self._silence()

    def _silence(self) -> None:
        """Take the links of frozen runs out of the block: their rows still cross, as the other ranks expect."""
        if self._exchange.halo:
            for run in np.flatnonzero(~self._alive):
                self._active[:, self._shard.links[run]] = 0


def _memory(theta: Tensor, halo: int) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Return two buffers of models, the first of which holds the initial ones, and two of halo rows, (halo, width)."""
    (own, width), dtype = theta.shape, theta.dtype
    if not halo:
        return [theta.contiguous(), in_huge_pages((own, width), dtype)], []
    # One allocation: a neighbour's row is then a row index of it, wherever it comes from.
    memory = in_huge_pages((2 * (own + halo), width), dtype)
    memory[:own] = theta
    return [memory[:own], memory[own : 2 * own]], memory[2 * own :].split(halo)
