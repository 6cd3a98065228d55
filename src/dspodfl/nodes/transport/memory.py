"""A network inside one event loop, for tests: the same frames, counters, lanes and cuts as over TLS, no socket."""

from __future__ import annotations

import asyncio

from dspodfl.nodes.schema import Schema
from dspodfl.nodes.transport.base import HELLO_SECONDS, Connection, Faults, Handler, RefusedError, Transport
from dspodfl.nodes.wire import Wire


class MemoryNetwork:
    """The nodes that can reach each other; it says who a node is, as certificates do.

    >>> sorted(MemoryNetwork().nodes)
    []
    """

    def __init__(self) -> None:
        self.nodes: dict[int, MemoryTransport] = {}

    def cut(self, one: int, other: int) -> None:
        """Cut the connection between two nodes, if there is one.

        Args:
            one: A node.
            other: Another.
        """
        for near, far in ((one, other), (other, one)):
            connection = self.nodes[near].connections.get(far) if near in self.nodes else None
            if isinstance(connection, MemoryConnection) and connection.other is not None:
                connection.other.abort("the connection was cut")
                connection.abort("the connection was cut")


class MemoryConnection(Connection):
    """One end of a connection in memory: a frame is moved in each step of the event loop.

    Args:
        wire: Its frames.
        handler: What is called.
        faults: What happens to its frames, for tests.
        hello_seconds: How long to wait for the peer's HELLO.
    """

    def __init__(self, wire: Wire, handler: Handler, faults: Faults | None, hello_seconds: float) -> None:
        super().__init__(wire, handler, faults, hello_seconds)
        self.other: MemoryConnection | None = None
        self._scheduled = False

    def _flush(self) -> None:
        if not self._scheduled and not self.over:
            self._scheduled = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        """Move one frame to the other end."""
        self._scheduled = False
        if self.over or self.other is None:
            return
        frame = self._frame()
        if frame is None:
            if self._finishing is not None:
                self.abort(self._finishing)
            return
        self.other.deliver(b"".join(frame))
        self._progressed(sent=True)
        self._flush()

    def deliver(self, data: bytes) -> None:
        """Read bytes that the other end wrote.

        Args:
            data: The bytes.
        """
        rest = memoryview(data)
        while rest and not self.over:
            buffer = self.wire.receiver.buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            self._filled(count)
        self._progressed()

    def _release(self) -> None:
        other, self.other = self.other, None
        if other is not None and not other.over:
            self._loop.call_soon(other.abort, "the peer closed the connection")


class MemoryTransport(Transport):
    """A node of a network in memory.

    Args:
        network: The network.
        id: This node.
        neighbours: Its neighbours.
        schema: What payloads consist of.
        handler: What is called.
        hello_seconds: How long to wait for HELLO.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        id: int,
        neighbours: frozenset[int],
        schema: Schema,
        handler: Handler,
        hello_seconds: float = HELLO_SECONDS,
    ) -> None:
        super().__init__(id, neighbours, schema, handler, hello_seconds)
        self._network = network

    async def listen(self) -> str | None:
        """Accept connections from neighbours of higher id; see `Transport`."""
        self._network.nodes[self.id] = self
        return None

    async def dial(self, peer: int) -> Connection:
        """Connect to a neighbour of lower id; see `Transport`."""
        self.check_dial(peer)
        await asyncio.sleep(0)
        other = self._network.nodes.get(peer)
        if other is None:
            raise ConnectionRefusedError(f"node {peer} does not listen")
        try:
            other.check_accept(self.id)
        except RefusedError as error:
            other.handler.refused(f"node {self.id}", str(error))
            raise
        near = MemoryConnection(*self._parts(peer))
        far = MemoryConnection(*other._parts(self.id))
        near.other, far.other = far, near
        other.adopt(far)
        self.adopt(near)
        return near

    def _parts(self, peer: int) -> tuple[Wire, Handler, Faults | None, float]:
        wire, faults = self.new_wire(peer)
        return wire, self.handler, faults, self._hello_seconds

    async def close(self) -> None:
        """Close every connection, and accept no more."""
        self._network.nodes.pop(self.id, None)
        await self.close_connections()
