"""Faults for tests, above TLS: frames that are dropped and connections that are cut, by seed."""

from __future__ import annotations

import numpy as np

from dspodfl.errors import InputError
from dspodfl.nodes.transport.base import Connection, Fault, Faults, Transport


class LossyTransport:
    """A transport over another one that loses frames and cuts connections at random.

    A frame that is dropped leaves a gap in the counters, so that the peer closes the connection at the next frame.
    The faults are those of the seed, of the two ends and of the number of the connection between them.

    Args:
        inner: The transport, over TLS or in memory.
        drop: The probability that a frame is dropped.
        cut: The probability that the connection is cut in place of a frame.
        seed: The seed of the faults.
    """

    def __init__(self, inner: Transport, *, drop: float = 0.0, cut: float = 0.0, seed: int = 0) -> None:
        for name, value in (("drop", drop), ("cut", cut)):
            if not 0 <= value <= 1:
                raise InputError(name, value, "a probability")
        self.inner = inner
        self._drop, self._cut, self._seed = drop, cut, seed
        self._made: dict[int, int] = {}
        self.dropped = self.cuts = 0
        inner.faults = self._faults

    def _faults(self, peer: int) -> Faults:
        number = self._made[peer] = self._made.get(peer, 0) + 1
        generator = np.random.default_rng([self._seed, self.inner.id, peer, number])

        def fault() -> Fault | None:
            draw = generator.random()
            if draw < self._cut:
                self.cuts += 1
                return Fault.CUT
            if draw < self._cut + self._drop:
                self.dropped += 1
                return Fault.DROP
            return None

        return fault

    async def listen(self) -> str | None:
        """Accept connections from neighbours of higher id; see `Transport`."""
        return await self.inner.listen()

    async def dial(self, peer: int) -> Connection:
        """Connect to a neighbour of lower id; see `Transport`."""
        return await self.inner.dial(peer)

    async def close(self) -> None:
        """Close every connection, and accept no more."""
        await self.inner.close()
