"""Two ends of a link for tests: a handler that records, nodes in memory and over TLS on loopback."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from dspodfl.nodes import Identity, MemoryNetwork, MemoryTransport, Schema, TlsTransport
from dspodfl.protocol import Hello

SCHEMA = Schema.of([[("float32", (4,))], [("float64", (2,)), ("uint8", (3,))]])


def hello(id, nonce=None):
    return Hello(1, id, "run", os.urandom(16) if nonce is None else nonce, (), bytes(32), None, 0)


class Recorder:
    """A handler that says HELLO and writes down what it is called with."""

    def __init__(self, greets=True):
        self.greets = greets
        self.connections, self.messages, self.reasons, self.refusals = [], [], [], []
        self.parts, self.written = [], []

    def opened(self, connection):
        self.connections.append(connection)
        if self.greets:
            connection.send(hello(connection.wire.local))

    def received(self, connection, message, payload):
        self.messages.append((connection.peer, message, None if payload is None else bytes(payload)))

    def progressed(self, connection, done, total):
        sent = connection.wire.sender.progress == (done, total)
        (self.written if sent else self.parts).append((done, total))

    def closed(self, connection, reason):
        self.reasons.append(reason)

    def refused(self, where, reason):
        self.refusals.append(reason)

    @property
    def after_hello(self):
        return [message for _, message, _ in self.messages if not isinstance(message, Hello)]


async def until(condition: Callable[[], object], seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.001)


class Pair:
    """Nodes 0 and 1, connected, in memory or over TLS; ``keys``: the folder of their keys, for TLS."""

    def __init__(self, keys=None, schema=SCHEMA, hello_seconds=10.0):
        self.low, self.high = Recorder(), Recorder()
        self.network = MemoryNetwork()
        if keys is None:
            nodes = ((0, self.low), (1, self.high))
            self.transports = [
                MemoryTransport(self.network, id, frozenset({1 - id}), schema, handler, hello_seconds)
                for id, handler in nodes
            ]
        else:
            self.transports = [
                tls_node(keys, 0, {1}, self.low, schema, hello_seconds=hello_seconds),
                tls_node(keys, 1, {0}, self.high, schema, hello_seconds=hello_seconds),
            ]

    async def connect(self):
        address = await self.transports[0].listen()
        if address is not None:
            self.transports[1].addresses[0] = address
        await self.transports[1].dial(0)
        await until(lambda: self.low.messages and self.high.messages)
        return self

    async def __aenter__(self):
        return await self.connect()

    async def __aexit__(self, *_):
        for transport in self.transports:
            await transport.close()


def identity(keys, id, peers, own=None):
    own = own or id
    return Identity(id, keys / f"{own}.crt", keys / f"{own}.key", {peer: [keys / f"{peer}.crt"] for peer in peers})


def tls_node(keys, id, neighbours, handler, schema=SCHEMA, address=None, who=None, **how):
    return TlsTransport(
        who or identity(keys, id, neighbours),
        frozenset(neighbours),
        schema,
        handler,
        listen_at="127.0.0.1:0",
        addresses={0: address} if address else {},
        **how,
    )


@contextlib.asynccontextmanager
async def closing(*transports):
    try:
        yield
    finally:
        for transport in transports:
            await transport.close()
