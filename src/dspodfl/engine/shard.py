"""The clients of a stack that one of several processes holds, and which rows cross to which other, and when.

Both ends of a link know when it fires, so both know what is sent and in which order: nothing is negotiated. A row is
sent once to each process that needs it, however many of its links fire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from dspodfl.engine.events import Block
from dspodfl.engine.stack import Neighbours, Stack, slices
from dspodfl.engine.state import Held
from dspodfl.network import Part


@dataclass(frozen=True, eq=False)
class Crossings:
    """Rows that may cross to, or from, each other process; those of process q are ``bounds[q] … bounds[q+1] − 1``.

    Row n crosses when one of ``link[first[n]], …`` fires, which are links of the shard.
    """

    row: np.ndarray  # (crossing,) owned rows that leave, or halo rows, counted from 0, that come
    bounds: np.ndarray  # (ranks + 1,)
    link: np.ndarray  # (cut links,)
    first: np.ndarray  # (crossing,)

    def needed(self, active: np.ndarray) -> np.ndarray:
        """Return which rows cross. Shapes: active (iterations, links of the shard) -> (iterations, crossing), bool."""
        if not len(self.first):
            return np.zeros((len(active), 0), dtype=bool)
        return np.logical_or.reduceat(active[:, self.link] != 0, self.first, axis=1)

    def expected(self, q: np.ndarray) -> np.ndarray:
        """Return the probability that each row crosses, 1 − Π (1 − q). Shapes: (links of the shard,) -> (crossing,)."""
        if not len(self.first):
            return np.zeros(0)
        return 1.0 - np.multiply.reduceat(1.0 - q[self.link], self.first)


@dataclass(frozen=True, eq=False)
class Shard:
    """A process's rows: the clients it owns, run by run and in order, then the halo, by owner and in order.

    A single process has a shard too, with an empty halo (`Shard.whole`).
    """

    stack: Stack
    rank: int
    ranks: int
    owner: np.ndarray  # (clients of the stack,)
    own: np.ndarray  # (owned,) rows of the stack
    halo: np.ndarray  # (halo,) rows of the stack
    link: np.ndarray  # (links,) those of the stack that touch an owned client
    rows: list[slice]  # of run r here
    links: list[slice]  # of run r here

    @staticmethod
    def of(stack: Stack, owners: Sequence[np.ndarray], rank: int, ranks: int) -> Shard:
        """Return the shard of a rank.

        Args:
            stack: The runs.
            owners: The rank of each client, (clients,) for each run.
            rank: The number of this process.
            ranks: The number of processes.

        Returns:
            Its clients, the links that touch them, and the halo.
        """
        parts = [
            Part.of(run.rates.graph, run.seed, np.flatnonzero(owner == rank))
            for run, owner in zip(stack.runs, owners, strict=True)
        ]
        owner = np.concatenate(owners)
        offsets = [rows.start for rows in stack.rows]
        own = np.concatenate([part.client + start for part, start in zip(parts, offsets, strict=True)])
        halo = np.concatenate([part.halo + start for part, start in zip(parts, offsets, strict=True)])
        halo = halo[np.lexsort((halo, owner[halo]))]
        link = np.concatenate([part.link + at.start for part, at in zip(parts, stack.links, strict=True)])
        rows, links = (slices([len(part.client) for part in parts]), slices([len(part.link) for part in parts]))
        return Shard(stack, rank, ranks, owner, own, halo, link, rows, links)

    @staticmethod
    def whole(stack: Stack) -> Shard:
        """Return the shard of a process that owns all clients: its rows are those of the stack, and its halo is empty.

        Args:
            stack: The runs.
        """
        own, link = np.arange(stack.clients), np.arange(stack.all_links)
        return Shard(stack, 0, 1, np.zeros_like(own), own, own[:0], link, stack.rows, stack.links)

    @property
    def clients(self) -> int:
        """The number of clients it owns."""
        return len(self.own)

    @property
    def is_whole(self) -> bool:
        """Whether it owns every client: rows and links here are those of the stack."""
        return len(self.own) == self.stack.clients

    @cached_property
    def ends(self) -> np.ndarray:
        """Both ends of every link, as rows here. Shape: (links, 2)."""
        if self.is_whole:
            return self.stack.edges
        here = np.full(self.stack.clients, -1)
        here[self.own] = np.arange(len(self.own))
        here[self.halo] = len(self.own) + np.arange(len(self.halo))
        return np.asarray(here[self.stack.edges[self.link]])

    @cached_property
    def inner(self) -> Neighbours:
        """The neighbours of owned clients that are owned themselves."""
        numbers = np.flatnonzero((self.ends < len(self.own)).all(axis=1))
        i, j = self.ends[numbers].T
        return _neighbours(np.concatenate([i, j]), np.concatenate([j, i]), np.tile(numbers, 2), len(self.own))

    @cached_property
    def outer(self) -> Neighbours:
        """The neighbours of owned clients that are in the halo, counted from 0."""
        cut, mine, theirs = self._cut
        return _neighbours(mine, theirs, cut, len(self.own))

    @cached_property
    def neighbours(self) -> Neighbours:
        """The neighbours of owned clients, as rows here, in the order of the stack."""
        return self.stack.neighbours if self.is_whole else _everyone(self.ends, self.own, self.halo)

    def addresses(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the seed and the number of each owned client, by which its random words are addressed.

        Shapes: (clients,) each, int64.
        """
        if device not in self._addresses:
            run = np.repeat(np.arange(len(self.rows)), [rows.stop - rows.start for rows in self.rows])
            seed = np.array([run.seed for run in self.stack.runs], dtype=np.int64)[run]
            start = np.array([rows.start for rows in self.stack.rows])[run]
            self._addresses[device] = torch.from_numpy(seed).to(device), torch.from_numpy(self.own - start).to(device)
        return self._addresses[device]

    @cached_property
    def _addresses(self) -> dict[torch.device, tuple[torch.Tensor, torch.Tensor]]:
        return {}

    def padded(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the neighbours of each owned client as a table: their rows here, the links, and which there are.

        Shapes: (clients, most neighbours) each.
        """
        if device not in self._padded:
            near = self.neighbours
            count = np.diff(near.ptr)[: self.clients]
            at = near.ptr[: self.clients, None] + np.arange(max(1, int(count.max(initial=0))))
            there = at < near.ptr[1 : self.clients + 1, None]
            at = np.where(there, at, 0)
            col, link = (a[at].astype(np.int64) if len(a) else np.zeros_like(at) for a in (near.col, near.link))
            tables = [torch.from_numpy(a).to(device) for a in (col, link, there)]
            self._padded[device] = tables[0], tables[1], tables[2]
        return self._padded[device]

    @cached_property
    def _padded(self) -> dict[torch.device, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        return {}

    @cached_property
    def leave(self) -> Crossings:
        """Owned rows that other processes may need."""
        cut, mine, theirs = self._cut
        return crossings(mine, self.owner[self.halo[theirs]], cut, self.ranks)

    @cached_property
    def come(self) -> Crossings:
        """Rows of the halo that may be needed here."""
        cut, _, theirs = self._cut
        return crossings(theirs, self.owner[self.halo[theirs]], cut, self.ranks)

    @cached_property
    def _cut(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The links that lead to the halo, and their ends: the owned row, and the row of the halo, counted from 0."""
        cut = np.flatnonzero((self.ends >= len(self.own)).any(axis=1))
        ends = self.ends[cut]
        return cut, ends.min(axis=1), ends.max(axis=1) - len(self.own)

    def block(self, block: Block) -> Block:
        """Return the events of the clients and links of the shard; tallies are of the whole stack."""
        if self.is_whole:
            return block
        own, link = (torch.from_numpy(numbers).to(block.v.device) for numbers in (self.own, self.link))
        here = replace(
            block,
            v=block.v[:, own],
            v_hat=block.v_hat[:, link],
            active=block.active[:, link],
            lr=block.lr[:, own],
            new=None if block.new is None else block.new[:, link],
        )
        if block.back is None or block.into is None or block.row is None:
            return here
        ends = torch.stack([2 * link, 2 * link + 1], dim=1).flatten()
        return replace(here, back=block.back[:, link], into=block.into[:, ends], row=block.row[:, ends])

    def owned(self, rank: int, run: int) -> np.ndarray:
        """Return the clients of a run that a rank owns, by their numbers in the run."""
        return np.flatnonzero(self.owner[self.stack.rows[run]] == rank)

    @cached_property
    def held(self) -> Held:
        """What is carried here: the owned rows, and the links whose first client is owned."""
        if self.is_whole:
            return Held.all(self.stack)
        first = self.owner[self.stack.edges[self.link, 0]] == self.rank
        links = [int(first[its].sum()) for its in self.links]
        return Held(self.stack, self.own, self.link[first], self.rows, slices(links), self.link)


def _neighbours(row: np.ndarray, col: np.ndarray, link: np.ndarray, rows: int) -> Neighbours:
    order = np.lexsort((col, row))
    ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    return Neighbours(ptr, col[order], link[order])


def _everyone(ends: np.ndarray, own: np.ndarray, halo: np.ndarray) -> Neighbours:
    row, col = np.concatenate([ends, ends[:, ::-1]]).T
    number, mine = np.tile(np.arange(len(ends)), 2), row < len(own)
    row, col, number = row[mine], col[mine], number[mine]
    order = np.lexsort((np.concatenate([own, halo])[col], row))
    ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(own)))])
    return Neighbours(ptr, col[order], number[order])


def crossings(row: np.ndarray, peer: np.ndarray, link: np.ndarray, ranks: int) -> Crossings:
    """Group links that lead to other ranks by the rows that cross over them.

    Args:
        row: The row at the end of each link, (cut links,).
        peer: The rank at its other end, (cut links,).
        link: The number of each link, (cut links,).
        ranks: The number of ranks.

    Returns:
        The rows that may cross, by rank, and the links over which each does.

    >>> found = crossings(np.array([0, 0, 2]), np.array([1, 1, 1]), np.array([5, 6, 7]), ranks=2)
    >>> found.row.tolist(), found.first.tolist(), found.bounds.tolist()
    ([0, 2], [0, 2], [0, 0, 2])
    """
    order = np.lexsort((row, peer))
    row, peer, link = row[order], peer[order], link[order]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(row) != 0) | (np.diff(peer) != 0)])[: len(row)])
    bounds = np.concatenate([[0], np.cumsum(np.bincount(peer[first], minlength=ranks))])
    return Crossings(row[first], bounds, link, first)
