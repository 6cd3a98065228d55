"""Several processes that run one study: torch.distributed behind the engine's `Transport`, and how they are launched.

Process groups are PyTorch's. On one machine `launch` starts the ranks; they meet in a private directory and communicate
over the loopback interface. On several machines torchrun starts them, or any launcher that sets its environment (RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). gloo carries what is in the host's memory, NCCL what is on a GPU.
Nothing else in the package imports torch.distributed.
"""

from __future__ import annotations

import hmac
import os
import pickle
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from dspodfl.engine.device import choose_device
from dspodfl.engine.transport.base import Bell, LocalTransport, Transport, Wait, nothing
from dspodfl.engine.transport.launch import KEY, MEETING, follow_launcher, home_of, run_ranks
from dspodfl.errors import InputError, LostRankError

T = TypeVar("T")


def launched() -> bool:
    """Return whether a launcher started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank() -> int:
    """Return the number of this process; 0 for a single process."""
    return int(os.environ.get("RANK", "0"))


def restarts() -> int:
    """Return how often the launcher has started these ranks again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launch_id() -> str:
    """Return an identifier of the launch of this process; a restart by the same launcher does not change it."""
    launcher = psutil.Process(os.getppid())
    return f"{socket.gethostname()} {launcher.pid} {launcher.create_time()}"


def own_device(name: str) -> str:
    """Return the device of this rank: a GPU for each rank of a machine where ``name`` allows it, else ``name``.

    Args:
        name: The device of the configuration: "auto", "cpu", "cuda" or "cuda:0", ….

    Returns:
        The name of the device, which is PyTorch's current one if it is a GPU.

    Raises:
        InputError: There are more ranks on this machine than GPUs.
    """
    if name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise InputError("ranks", local + 1, f"at most one for each of the {count} GPUs of a machine (or --device cpu)")
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def join(name: str, timeout: float = 300.0) -> tuple[Transport, str]:
    """Connect to the other ranks of the launch that this process belongs to.

    Args:
        name: The device of the configuration.
        timeout: Seconds to wait for the other ranks, before they count as lost.

    Returns:
        The transport, a local one for a single process, and the device of this rank.

    Raises:
        InputError: There is no such device.
        LostRankError: The other ranks have not answered in time.
    """
    if not launched():
        return LocalTransport(), name
    device = own_device(name)
    return Group(choose_device(device), timeout), device


class Group:
    """This process among all that a launcher started: the engine's `Transport` on torch.distributed.

    Args:
        device: Where models are.
        timeout: Seconds to wait for the other ranks, before they count as lost.

    Raises:
        LostRankError: The other ranks have not answered in time; from any method as well.
    """

    def __init__(self, device: torch.device, timeout: float = 300.0) -> None:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        self._timeout, self._device, self.sent = timeout, device, 0
        self.rank, self.ranks = rank(), int(os.environ["WORLD_SIZE"])
        self.local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        # NCCL executes operations in order: a receive posted in advance would block the send after it, on both sides.
        self.prepost_receives = device.type != "cuda"
        self._group: dist.ProcessGroup | None = None
        self._store: Any = None
        self._bells = 0
        self._messages = _Messages.of_launch()
        follow_launcher()
        self._watched(lambda: self._meet(backend))

    def _meet(self, backend: str) -> None:
        wait = timedelta(seconds=self._timeout)
        store: Any
        if MEETING in os.environ:  # a local launch: a file that only this user can open, and no port
            store = dist.FileStore(  # type: ignore[attr-defined]
                str(Path(os.environ[MEETING]) / f"store-{restarts()}"), self.ranks
            )
            store.set_timeout(wait)
        else:
            store, _, _ = next(rendezvous("env://", timeout=wait))
        # torchrun keeps its store when it starts all ranks again; entries of the earlier start must not be read.
        store = dist.PrefixStore(f"start {restarts()}", store)  # type: ignore[attr-defined]
        self._store = store
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.ranks, timeout=wait)

    def set_timeout(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the others from now on, before they count as lost; all ranks call it."""
        if timeout != self._timeout:
            self._timeout = timeout
            self._group = self._watched(lambda: dist.new_group(timeout=timedelta(seconds=timeout)))

    def leave(self) -> None:
        """Close the connections, once all ranks are done with them."""
        self.barrier()
        dist.destroy_process_group()

    def start(self, send: Sequence[Tensor | None], receive: Sequence[Tensor | None]) -> Wait:
        """Start to send a contiguous tensor to each rank and to receive one from each, None being nothing."""
        operations: list[tuple[Any, Tensor, int]] = []
        for other in range(self.ranks):
            outward, inward = send[other], receive[other]
            if inward is not None:
                operations.append((dist.irecv, inward, other))
            if outward is not None:
                operations.append((dist.isend, outward, other))
                self.sent += outward.nbytes
        if not operations:
            return nothing
        works = self._watched(lambda: self._begun(operations))

        def wait() -> None:
            for work in works:
                self._watched(work.wait)

        return wait

    def _begun(self, operations: Sequence[tuple[Any, Tensor, int]]) -> list[dist.Work]:
        """Start operations: NCCL in one batch, or both sides might wait for each other; gloo one by one."""
        if self._device.type == "cuda":
            return dist.batch_isend_irecv([dist.P2POp(*one, self._group) for one in operations])
        return [work for what, values, other in operations if (work := what(values, other, self._group))]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over ranks, the same bits on all of them."""
        out = values.clone()
        self._watched(lambda: dist.all_reduce(out, group=self._group))
        return out

    def all_gather(self, values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Return what each rank holds, on all of them. Shapes: (sizes[rank], ...) -> ranks × (sizes[rank], ...)."""
        room = values.new_zeros((max(sizes), *values.shape[1:]))
        room[: len(values)] = values
        out = [torch.empty_like(room) for _ in range(self.ranks)]
        self._watched(lambda: dist.all_gather(out, room, group=self._group))
        return [part[:size] for part, size in zip(out, sizes, strict=True)]

    def gather(self, item: Any) -> list[Any] | None:
        """Return the objects of all ranks on rank 0, and None on the others; they must be picklable."""
        return self._watched(lambda: self._gathered(item))

    def _gathered(self, item: Any) -> list[Any] | None:
        own = _as_tensor(self._messages.signed(item, self.rank))
        sizes = torch.zeros(self.ranks, dtype=torch.int64)
        sizes[self.rank] = len(own)
        dist.all_reduce(sizes, group=self._group)
        room = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        room[: len(own)] = own
        found = [torch.empty_like(room) for _ in range(self.ranks)] if self.rank == 0 else None
        dist.gather(room, found, dst=0, group=self._group)
        if found is None:
            return None
        parts = [part[:size] for part, size in zip(found, sizes.tolist(), strict=True)]
        return [self._messages.verified(part.numpy().tobytes(), rank) for rank, part in enumerate(parts)]

    def broadcast(self, item: Any) -> Any:
        """Return rank 0's object on all ranks; it must be picklable."""
        return self._watched(lambda: self._broadcast(item))

    def _broadcast(self, item: Any) -> Any:
        signed = _as_tensor(self._messages.signed(item if self.rank == 0 else None, self.rank))
        size = torch.tensor([len(signed)])
        dist.broadcast(size, src=0, group=self._group)
        room = signed if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(room, src=0, group=self._group)
        return item if self.rank == 0 else self._messages.verified(room.numpy().tobytes(), 0)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on some rank."""
        up = torch.tensor([int(flag)], dtype=torch.int32)
        self._watched(lambda: dist.all_reduce(up, group=self._group))
        return bool(up.item())

    def bell(self) -> Bell:
        """Return a new bell that is not rung; every rank makes the same number of them."""
        self._bells += 1
        return _Bell(self._store, f"bell {self._bells}")

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.any(False)

    def _watched(self, work: Callable[[], T]) -> T:
        """Call a function whose failure means that a rank has ended, or does not answer."""
        try:
            return work()
        except LostRankError:
            raise
        except (RuntimeError, ValueError) as error:
            why = str(error).strip().splitlines()[0].split("] ", 1)[-1].split(". ")[0]
            raise LostRankError(
                f"rank {self.rank} of {self.ranks} has lost the others: one of them is gone, or has not answered "
                f"within {self._timeout:g} s ({why})"
            ) from error


class _Bell:
    """A key of the store through which the ranks have met: it is set once, and can be read at any time.

    A store that does not answer is no error here: the ranks notice at their next exchange.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key, self._rung = store, key, False

    def ring(self) -> None:
        """Set the flag on all ranks."""
        if not self._rung:
            self._rung = True
            with suppress(RuntimeError):
                self._store.set(self._key, "1")

    def rung(self) -> bool:
        """Return whether some rank has set it."""
        with suppress(RuntimeError):
            self._rung = self._rung or bool(self._store.check([self._key]))
        return self._rung


class _Messages:
    """Objects that ranks send each other, pickled.

    A local launch has a secret: a message carries an HMAC of it, the sending rank and the number of the call, and is
    unpickled only if the HMAC matches. torchrun gives no secret: there the network is trusted.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key, self._count = key, 0

    @classmethod
    def of_launch(cls) -> _Messages:
        """Return messages with the secret that the launcher has stored in the directory where ranks meet, if any."""
        folder = os.environ.get(MEETING)
        return cls((Path(folder) / KEY).read_bytes() if folder else None)

    def signed(self, item: Any, rank: int) -> bytes:
        """Return an object of this rank as signed bytes; every rank calls this once for each collective call."""
        self._count += 1
        data = pickle.dumps(item)
        return self._signature(data, rank) + data

    def verified(self, message: bytes, rank: int) -> Any:
        """Return the object in signed bytes that came from a rank."""
        size = len(self._signature(b"", rank))
        signature, data = message[:size], message[size:]
        if not hmac.compare_digest(signature, self._signature(data, rank)):
            raise LostRankError(f"a message in the name of rank {rank} was not sent by it, and was rejected")
        return pickle.loads(data)  # noqa: S301 (signed by a rank of this launch, or the network is trusted)

    def _signature(self, data: bytes, rank: int) -> bytes:
        if self._key is None:
            return b""
        return hmac.digest(self._key, f"{self._count} {rank} ".encode() + data, "sha256")


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def launch(
    ranks: int,
    arguments: Sequence[str],
    *,
    max_restarts: int = 0,
    module: str = "dspodfl",
    files: Mapping[str, bytes] | None = None,
) -> int:
    """Run a module on several ranks of this machine; see `dspodfl.engine.transport.launch.run_ranks`.

    Cores are divided evenly, unless OMP_NUM_THREADS is set. A signal ends all ranks as it would end one.

    Args:
        ranks: The number of processes.
        arguments: The arguments of the module.
        max_restarts: How often to start all ranks again when one of them dies.
        module: The module that each of them runs.
        files: Name -> content of files in the private directory where they meet.

    Returns:
        The exit code of the first rank to fail, or 0.

    Raises:
        LostRankError: A rank was killed.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    path = [home for name in {"dspodfl": 0, module: 0} if (home := home_of(name)) is not None]
    return run_ranks(ranks, command, max_restarts=max_restarts, path=path, files=files)
