"""What every transport has: connections that carry messages to neighbours, and callbacks that receive them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from dspodfl.errors import DspodflError, InputError, plain
from dspodfl.nodes.schema import Bytes, Schema
from dspodfl.nodes.wire import Wire, WireError
from dspodfl.protocol import Hello, Message

HELLO_SECONDS = 10.0
"""A connection whose peer makes no progress with the handshake or does not send HELLO for this long is closed."""


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of an address.

    Args:
        text: ``host:port``, an IPv6 address in brackets.

    Returns:
        The host without brackets, and the port.

    Raises:
        InputError: It is not of this form.

    >>> split_address("[::1]:7733")
    ('::1', 7733)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or not host:
        raise InputError("address", text, "of the form host:port")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise InputError("address", text, "of the form host:port, an IPv6 address in brackets")
    return host.strip("[]"), int(port)


class RefusedError(DspodflError):
    """A connection that was refused before anything was received; the message says why.

    >>> RefusedError("node 7 is not a neighbour").exit_code
    1
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))


class Fault(Enum):
    """What a test does to a frame."""

    DROP = "drop"
    CUT = "cut"


Faults = Callable[[], Fault | None]
"""Called once for every frame that a connection writes: what happens to it; None: it is written."""


@dataclass
class Counters:
    """What a connection wrote and read, in bytes of frames (without those of TLS)."""

    sent: int = 0
    received: int = 0
    frames_sent: int = 0
    messages_received: int = 0


class Handler(Protocol):
    """What a transport calls; every call is made in the thread of the event loop."""

    def opened(self, connection: Connection) -> None:
        """Receive a connection to an authenticated neighbour.

        Args:
            connection: The connection; HELLO is to be sent on it.
        """
        ...

    def received(self, connection: Connection, message: Message, payload: Bytes | None) -> None:
        """Receive a message.

        Args:
            connection: Where it came from.
            message: The message; the first one is HELLO, with the id of the certificate.
            payload: What travelled beside it, (bytes,) of the agreed schema, its floats finite; it is never written
                to again.
        """
        ...

    def progressed(self, connection: Connection, done: int, total: int) -> None:
        """Learn that a part of a payload arrived, or that a part of one was written: the peer is alive.

        Args:
            connection: The connection.
            done: Bytes of it that are here, or that were written.
            total: Bytes of the payload.
        """
        ...

    def closed(self, connection: Connection, reason: str) -> None:
        """Learn that a connection is over; called once for every connection that was opened.

        Args:
            connection: The connection.
            reason: Why, for the log.
        """
        ...

    def refused(self, where: str, reason: str) -> None:
        """Learn that a connection was refused before it was opened.

        Args:
            where: The address that it came from, or the neighbour that was dialled.
            reason: Why, for the log.
        """
        ...


class Connection:
    """One connection to one authenticated neighbour; the transports differ in how they move its frames.

    Args:
        wire: Its frames.
        handler: What is called.
        faults: What happens to its frames, for tests.
        hello_seconds: How long to wait for the peer's HELLO.
    """

    def __init__(self, wire: Wire, handler: Handler, faults: Faults | None, hello_seconds: float) -> None:
        self.wire, self.peer = wire, wire.peer
        self.counters = Counters()
        self.over = False
        self._handler, self._faults = handler, faults
        self._finishing: str | None = None
        self._on_over: Callable[[Connection], None] | None = None
        self._loop = asyncio.get_running_loop()
        self.last_received = self._loop.time()
        self._timer = self._loop.call_later(
            hello_seconds, lambda: None if wire.greeted else self.abort(f"no HELLO for {hello_seconds:g} s")
        )

    def send(self, message: Message, payload: Any = None) -> None:
        """Write a message as soon as possible; one without payload overtakes the chunks that wait.

        Args:
            message: The message.
            payload: What travels beside a STATE: a contiguous buffer of the agreed size that does not change until it
                is written. None: nothing.

        Raises:
            ValueError: The payload is not of the agreed size, or HELLO is not the first message.
        """
        if self.over or self._finishing is not None:
            return
        self.wire.put(message, payload)
        self._flush()

    def close(self, reason: str) -> None:
        """Close the connection after the messages without payload that wait; payloads are not completed.

        Args:
            reason: Why, for the log.
        """
        if self.over or self._finishing is not None:
            return
        self._finishing = reason
        self.wire.sender.drop_payloads()
        self._flush()

    def abort(self, reason: str) -> None:
        """Close the connection immediately, and drop what waits.

        Args:
            reason: Why, for the log.
        """
        if self.over:
            return
        self.over = True
        self._timer.cancel()
        self._release()
        if self._on_over is not None:
            self._on_over(self)
        self._loop.call_soon(self._handler.closed, self, self._finishing or reason)

    def start(self, on_over: Callable[[Connection], None]) -> None:
        """Begin to read, after the handler received the connection.

        Args:
            on_over: Called when the connection is over.
        """
        self._on_over = on_over
        self._handler.opened(self)

    def _frame(self) -> tuple[bytes, memoryview] | None:
        """The next frame that is to be written, after the faults of a test; None: there is none."""
        counters = self.counters
        while (frame := self.wire.sender.take()) is not None:
            fault = None if self._faults is None else self._faults()
            if fault is Fault.CUT:
                self.abort("the connection was cut by a fault of the test")
                return None
            if fault is None:
                counters.frames_sent += 1
                counters.sent += len(frame[0]) + len(frame[1])
                return frame
        return None

    def _filled(self, count: int) -> None:
        """Hand over what the bytes complete that were read into the buffer of the wire."""
        self.counters.received += count
        self.last_received = self._loop.time()
        if self._finishing is not None:
            return
        try:
            for message, payload in self.wire.filled(count):
                self.counters.messages_received += 1
                self._handler.received(self, message, payload)
                if self.over or self._finishing is not None:
                    return
                if isinstance(message, Hello):
                    self._flush()  # what waited for the session
        except WireError as error:
            self.abort(f"refused: {error}")

    def _progressed(self, *, sent: bool = False) -> None:
        """Say how much of the payload under way is here, or was written, if one is."""
        progress = self.wire.sender.progress if sent else self.wire.receiver.progress
        if progress is not None and not self.over:
            self._handler.progressed(self, *progress)

    def _flush(self) -> None:
        """Write what waits, as far as possible without waiting; then, if the connection is finishing, end it."""
        raise NotImplementedError

    def _release(self) -> None:
        """Let go of socket and callbacks."""
        raise NotImplementedError


class Transport(ABC):
    """What a node needs of the network: who may connect, one connection to each neighbour, faults of a test.

    Args:
        id: This node.
        neighbours: Its neighbours in this run.
        schema: What payloads consist of.
        handler: What is called.
        hello_seconds: How long to wait for progress of the handshake and for HELLO.
    """

    def __init__(
        self,
        id: int,
        neighbours: frozenset[int],
        schema: Schema,
        handler: Handler,
        hello_seconds: float = HELLO_SECONDS,
    ) -> None:
        if id in neighbours:
            raise ValueError(f"node {id} cannot be its own neighbour")
        self.id, self.neighbours, self.schema, self.handler = id, neighbours, schema, handler
        self.connections: dict[int, Connection] = {}
        self.faults: Callable[[int], Faults] | None = None
        """Makes the faults of a connection to a peer, for tests (`LossyTransport`)."""
        self._hello_seconds = hello_seconds

    @abstractmethod
    async def listen(self) -> str | None:
        """Accept connections from neighbours of higher id.

        Returns:
            The address with its port; None where there is no address.

        Raises:
            InputError: The address cannot be listened on.
        """

    @abstractmethod
    async def dial(self, peer: int) -> Connection:
        """Connect to a neighbour of lower id.

        A neighbour that refuses this end's certificate says so after the connection was opened: it is then closed
        before anything was received.

        Args:
            peer: The neighbour.

        Returns:
            The connection, which the handler received as opened.

        Raises:
            RefusedError: The other end is not that neighbour.
            OSError: There is no connection to its address.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close every connection, after the messages without payload that wait, and accept no more."""

    def check_dial(self, peer: int) -> None:
        """Refuse to dial a node that is not a neighbour of lower id.

        Args:
            peer: The node.

        Raises:
            RefusedError: It is not.
        """
        if peer not in self.neighbours:
            raise RefusedError(f"node {peer} is not a neighbour of node {self.id} in this run")
        if peer >= self.id:
            raise RefusedError(f"node {peer} dials node {self.id}: the higher id dials the lower")

    def check_accept(self, peer: int) -> None:
        """Refuse a connection from a node that is not a neighbour of higher id.

        Args:
            peer: The id of its certificate.

        Raises:
            RefusedError: It is not.
        """
        if peer not in self.neighbours:
            raise RefusedError(f"node {peer} is not a neighbour of node {self.id} in this run")
        if peer <= self.id:
            raise RefusedError(f"node {self.id} dials node {peer}: the higher id dials the lower")

    def new_wire(self, peer: int) -> tuple[Wire, Faults | None]:
        """Make the frames of a new connection, and its faults.

        Args:
            peer: The authenticated neighbour.

        Returns:
            The wire, and the faults, None without any.
        """
        return Wire(self.id, peer, self.schema), None if self.faults is None else self.faults(peer)

    def adopt(self, connection: Connection) -> None:
        """Hand a new connection over; an older one to the same neighbour is closed first.

        Args:
            connection: The connection, authenticated.
        """
        older = self.connections.get(connection.peer)
        if older is not None:
            older.abort("the peer connected again")
        self.connections[connection.peer] = connection
        connection.start(self._over)

    def _over(self, connection: Connection) -> None:
        if self.connections.get(connection.peer) is connection:
            del self.connections[connection.peer]

    async def close_connections(self, reason: str = "this node ends", seconds: float = 2.0) -> None:
        """Close all connections, after the messages without payload that wait.

        Args:
            reason: Why, for the log.
            seconds: The most to wait for the peers.
        """
        for connection in list(self.connections.values()):
            connection.close(reason)
        end = asyncio.get_running_loop().time() + seconds
        while self.connections and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.005)
        for connection in list(self.connections.values()):
            connection.abort(reason)
        await asyncio.sleep(0)  # the callbacks of closed connections
