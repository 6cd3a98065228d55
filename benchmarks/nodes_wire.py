"""One end of a mutual-TLS link, in a process of its own: swaps models with the other end and measures."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np

from dspodfl.nodes import Identity, Schema, TlsConnection, TlsTransport, new_keys
from dspodfl.protocol import Hello, Message, State


@dataclass(frozen=True)
class Swap:
    """What one size of model gave.

    Attributes:
        model_bytes: Bytes of a model.
        seconds: Of each swap.
        ratio: Bytes on the wire over bytes of models, as the kernel counted them, handshake included; None where it
            does not say.
        cpu: Seconds of CPU time of one end for a swap: what it would take on a machine without other users.
    """

    model_bytes: int
    seconds: list[float]
    ratio: float | None
    cpu: float

    @property
    def median(self) -> float:
        """Seconds of a swap."""
        return float(np.median(self.seconds))


class _End:
    """The handler of one end: a swap is over at this end when the other's model is here."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.ready: asyncio.Event = asyncio.Event()
        self.arrived: Callable[[], None] = lambda: None

    def opened(self, connection: Any) -> None:
        """Greet."""
        self.connection = connection
        end = connection.wire.local
        connection.send(Hello(1, end, "benchmark", os.urandom(16), (), bytes(32), None, 0))

    def received(self, connection: Any, message: Message, payload: Any) -> None:
        """Note what came."""
        if isinstance(message, State):
            self.arrived()
        else:
            self.ready.set()

    def progressed(self, connection: Any, done: int, total: int) -> None:
        """Ignore it."""

    def closed(self, connection: Any, reason: str) -> None:
        """Ignore it."""

    def refused(self, where: str, reason: str) -> None:
        """Fail."""
        raise RuntimeError(reason)


async def _swaps(id_: int, folder: Path, size: int, rounds: int, port: int, pipe: Pipe | None) -> Swap:
    """Swap models ``rounds`` times: end 1 begins each, end 0 answers as soon as it is there, both send in full."""
    schema = Schema.of([[("float32", (size // 4,))]])
    identity = Identity(id_, folder / f"{id_}.crt", folder / f"{id_}.key", {1 - id_: [folder / f"{1 - id_}.crt"]})
    end = _End()
    transport = TlsTransport(
        identity,
        frozenset({1 - id_}),
        schema,
        end,
        listen_at=f"127.0.0.1:{port}",
        addresses={0: f"127.0.0.1:{port}"},
    )
    if id_ == 0:
        await transport.listen()
        assert pipe is not None
        pipe.send("listening")
    else:
        await transport.dial(0)
    await end.ready.wait()
    model = np.random.default_rng(id_).standard_normal(size // 4, np.float32)
    loop = asyncio.get_running_loop()
    connection: TlsConnection = end.connection
    cpu = time.process_time()
    seconds = []
    k = 0
    for k in range(rounds):
        done: asyncio.Future[None] = loop.create_future()
        end.arrived = lambda done=done: done.set_result(None)  # type: ignore[misc]
        begin = time.perf_counter()
        connection.send(State(k, 0), model)
        await done
        seconds.append(time.perf_counter() - begin)
    cpu = (time.process_time() - cpu) / rounds
    counted, earlier = connection.socket_bytes(), None
    while counted != earlier:  # the other end may still be receiving
        await asyncio.sleep(0.3)
        counted, earlier = connection.socket_bytes(), counted
    ratio = None if counted is None else sum(counted) / (2 * rounds * size)
    await asyncio.sleep(1.0 if id_ == 0 else 0.0)
    await transport.close()
    return Swap(size, seconds[rounds // 5 :], ratio, cpu)


def _other_end(folder: Path, size: int, rounds: int, port: int, pipe: Pipe) -> None:
    asyncio.run(_swaps(0, folder, size, rounds, port, pipe))


def swap(size: int, rounds: int) -> Swap:
    """Measure swaps of models of some size between two processes over one mutual-TLS link on loopback."""
    with tempfile.TemporaryDirectory() as folder:
        new_keys(Path(folder), [0, 1])
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        near, far = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=_other_end, args=(Path(folder), size, rounds, port, far))
        process.start()
        try:
            near.recv()
            return asyncio.run(_swaps(1, Path(folder), size, rounds, port, None))
        finally:
            process.join(10)
            process.kill()
