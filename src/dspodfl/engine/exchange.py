"""Rows that cross between processes, iteration by iteration.

Both ends of a link know when it fires, so both know what is sent and in which order: nothing is negotiated. Where all
clients are in one process, nothing crosses, and `NoExchange` does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dspodfl.engine.shard import Crossings, Shard
from dspodfl.engine.stack import Stack
from dspodfl.engine.transport.base import LocalTransport, Transport, Wait, nothing


@dataclass(frozen=True, eq=False)
class Split:
    """The clients of a stack that are held here, and the transport to the processes that hold the others."""

    shard: Shard
    transport: Transport

    @staticmethod
    def local(stack: Stack) -> Split:
        """Return the split of a stack whose clients are all held here."""
        return Split(Shard.whole(stack), LocalTransport())

    def exchange(self, like: Tensor, *, buffers: Sequence[Tensor] | None = None, once: bool = True) -> Exchange:
        """Return the exchange of rows with the other processes.

        Args:
            like: Models, (clients, width); rows are received on their device, in their precision.
            buffers: Where rows are received: two, (halo, width) each. Default: new ones.
            once: Whether rows cross exactly once in every iteration.
        """
        if not len(self.shard.halo):
            return NoExchange()
        if buffers is None:
            buffers = like.new_empty((2, len(self.shard.halo), like.shape[1])).unbind()
        return Exchange(self.shard, self.transport, buffers, once=once)

    def assembled(self, values: Tensor, run: int) -> Tensor:
        """Gather the values of all clients of a run from the processes that hold them; all processes call it.

        Args:
            values: Of the clients of the run that are owned here, (owned, ...).
            run: The number of the run in the stack.

        Returns:
            Of all clients of the run, in their order, (clients of the run, ...).
        """
        owned = [self.shard.owned(rank, run) for rank in range(self.transport.ranks)]
        parts = self.transport.all_gather(values, [len(numbers) for numbers in owned])
        out = values.new_empty((self.shard.stack.runs[run].clients, *values.shape[1:]))
        for numbers, part in zip(owned, parts, strict=True):
            out[torch.from_numpy(numbers).to(out.device)] = part
        return out


class _Rows:
    """The rows that cross one way in a block: which, and where those of each process begin and end."""

    def __init__(self, crossings: Crossings, active: np.ndarray, device: torch.device) -> None:
        needed = crossings.needed(active)
        self.place = np.cumsum(needed, axis=1) - 1  # (iterations, crossing) of those that cross, one after the other
        count = np.concatenate([np.zeros((len(active), 1), dtype=np.int64), self.place + 1], axis=1)
        self.bounds = count[:, crossings.bounds]  # (iterations, ranks + 1)
        at, which = np.nonzero(needed)
        self._row = torch.from_numpy(crossings.row[which]).to(device)
        self._start = np.searchsorted(at, np.arange(len(active) + 1)).tolist()

    def at(self, t: int) -> Tensor:
        """The rows that cross at the t-th iteration, by process."""
        return self._row[self._start[t] : self._start[t + 1]]


class Exchange:
    """Sends the rows of owned clients that fire across, and receives those of the halo.

    Where the transport allows it and rows cross exactly once in every iteration (``once``), those of the next iteration
    are received in advance, in the other buffer: the rank that is first then need not wait until the other is ready.
    Rows that cross several times, or not at all, are received when they are due: a receive posted before would match
    what was sent for another. ``buffers`` are two, (halo, width) each; iterations alternate between them.
    """

    def __init__(self, shard: Shard, transport: Transport, buffers: Sequence[Tensor], *, once: bool = True) -> None:
        self._shard, self._transport, self._buffers = shard, transport, buffers
        self._prepost = transport.prepost_receives and once
        self._out = buffers[0].new_empty((len(shard.leave.row), buffers[0].shape[1]))
        self._nothing: list[Tensor | None] = [None] * transport.ranks
        self._expected: tuple[int, Wait] | None = None
        self._last = 0

    @property
    def halo(self) -> int:
        """The number of rows that may be received."""
        return len(self._shard.halo)

    def load(self, active: Tensor) -> None:
        """Take the active weights of a block. Shape: (iterations, links of the shard)."""
        device, weights = self._out.device, active.cpu().numpy()
        self.leave, self.come = (_Rows(which, weights, device) for which in (self._shard.leave, self._shard.come))
        self._last = 0

    def limit(self, last: int) -> None:
        """Promise that iterations up to ``last`` − 1 of the block follow.

        Nothing is received in advance beyond: where a loop ends within a block, because its runs are stacked again, a
        receive posted for the next iteration would match what is sent for another.
        """
        self._last = last

    def stretches(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Cut iterations first … last − 1 of the block into those in which rows cross, one by one, and the others.

        Yields:
            The first iteration of a stretch, the one after its last, and whether rows cross.
        """
        self.limit(last)
        crosses = (self.leave.bounds[first:last, -1] > 0) | (self.come.bounds[first:last, -1] > 0)
        at = first
        for t in (first + np.flatnonzero(crosses)).tolist():
            if at < t:
                yield at, t, False
            yield t, t + 1, True
            at = t + 1
        if at < last:
            yield at, last, False

    def of_width(self, width: int) -> Exchange:
        """Return an exchange of rows of another width, within the loaded block; nothing is received in advance."""
        buffers = self._buffers[0].new_empty((2, self.halo, width)).unbind()
        out = Exchange(self._shard, self._transport, buffers, once=False)
        out.leave, out.come = self.leave, self.come
        return out

    def came(self, t: int) -> Tensor:
        """Return the buffer of the rows of the t-th iteration, in order; they are there once they were waited for."""
        return self._buffers[t % 2]

    def receive(self, t: int, wait: Wait, halo: Tensor) -> None:
        """Wait for the rows of the t-th iteration, and copy them to their places. Shape: halo (halo, width)."""
        wait()
        rows = self.come.at(t)
        halo.index_copy_(0, rows, self.came(t)[: len(rows)])

    def start(self, t: int, theta: Tensor, row_index: Tensor | None = None) -> Wait:
        """Start to send and receive the rows of an iteration.

        Args:
            t: The number of the iteration in the block.
            theta: The models, (rows, width).
            row_index: The row of each client in ``theta``, (clients,); None: client n is row n.

        Returns:
            A function that waits until everything is sent and received.
        """
        rows = self.leave.at(t)
        rows = rows if row_index is None else row_index.index_select(0, rows)
        torch.index_select(theta, 0, rows, out=self._out[: len(rows)])
        transport, leaving = self._transport, _cut(self._out, self.leave.bounds[t])
        if not self._prepost:
            return transport.start(leaving, self._coming(t))
        arrived = self._expect(t)
        sent = transport.start(leaving, self._nothing)
        if t + 1 < self._last:
            self._expected = t + 1, self._expect(t + 1)

        def wait() -> None:
            arrived()
            sent()

        return wait

    def _expect(self, t: int) -> Wait:
        expected, self._expected = self._expected, None
        if expected is not None and expected[0] == t:
            return expected[1]
        return self._transport.start(self._nothing, self._coming(t))

    def _coming(self, t: int) -> list[Tensor | None]:
        return _cut(self.came(t), self.come.bounds[t])


class NoExchange(Exchange):
    """The exchange of a shard without a halo: no row comes, and none leaves."""

    halo = 0

    def __init__(self) -> None:
        pass

    def load(self, active: Tensor) -> None:
        """Do nothing."""

    def limit(self, last: int) -> None:
        """Do nothing."""

    def stretches(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Yield all iterations as one stretch in which no row crosses."""
        yield first, last, False

    def of_width(self, width: int) -> Exchange:
        """Return itself."""
        return self

    def receive(self, t: int, wait: Wait, halo: Tensor) -> None:
        """Do nothing."""

    def start(self, t: int, theta: Tensor, row_index: Tensor | None = None) -> Wait:
        """Return immediately: nothing crosses."""
        return nothing


def _cut(buffer: Tensor, bounds: np.ndarray) -> list[Tensor | None]:
    ends = bounds.tolist()
    return [buffer[a:b] if b > a else None for a, b in pairwise(ends)]
