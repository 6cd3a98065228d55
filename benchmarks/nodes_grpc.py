"""The same swap by grpc.aio over mutual TLS, where grpcio is installed: what our wire is compared with."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np

from dspodfl.nodes import new_keys

_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_METHOD = "/dspodfl.Benchmark/Swap"


def available() -> bool:
    """Whether grpcio is installed."""
    return importlib.util.find_spec("grpc") is not None


async def _serve(folder: Path, size: int, pipe: Pipe) -> None:
    import grpc

    model = bytes(np.random.default_rng(0).standard_normal(size // 4, np.float32).data)

    async def swap(request: bytes, context: Any) -> bytes:
        np.frombuffer(request, np.float32)
        return model

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(swap) if details.method == _METHOD else None

    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((Handler(),))
    pair = [((folder / "0.key").read_bytes(), (folder / "0.crt").read_bytes())]
    root = (folder / "1.crt").read_bytes()
    credentials = grpc.ssl_server_credentials(pair, root_certificates=root, require_client_auth=True)
    pipe.send(server.add_secure_port("127.0.0.1:0", credentials))
    await server.start()
    while not pipe.poll():
        await asyncio.sleep(0.02)
    await server.stop(0)


def _other_end(folder: Path, size: int, pipe: Pipe) -> None:
    asyncio.run(_serve(folder, size, pipe))


async def _swaps(folder: Path, size: int, rounds: int, port: int) -> list[float]:
    import grpc

    root, key, own = ((folder / name).read_bytes() for name in ("0.crt", "1.key", "1.crt"))
    credentials = grpc.ssl_channel_credentials(root, key, own)
    options = [*_OPTIONS, ("grpc.ssl_target_name_override", "dspodfl-0")]
    model = bytes(np.random.default_rng(1).standard_normal(size // 4, np.float32).data)
    seconds = []
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        swap = channel.unary_unary(_METHOD)
        for _ in range(rounds):
            begin = time.perf_counter()
            assert len(await swap(model)) == size
            seconds.append(time.perf_counter() - begin)
    return seconds[rounds // 5 :]


def swap(size: int, rounds: int) -> list[float]:
    """Measure swaps of models of some size, one unary call each: seconds of each."""
    with tempfile.TemporaryDirectory() as folder:
        new_keys(Path(folder), [0, 1])
        near, far = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=_other_end, args=(Path(folder), size, far))
        process.start()
        try:
            return asyncio.run(_swaps(Path(folder), size, rounds, near.recv()))
        finally:
            near.send("stop")
            process.join(10)
            process.kill()
