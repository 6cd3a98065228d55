"""Several processes that run one study: torch.distributed behind the engine's `Transport`, and how they are launched.

Process groups are PyTorch's. On one machine `launch` starts the ranks, which meet in a private directory and talk over
the loopback interface. On several machines torchrun does, or any launcher that sets its environment (RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR, MASTER_PORT). gloo carries what is in the host's memory, NCCL what is on a GPU. Nothing else in
the package knows torch.distributed.
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
    """Whether a launcher started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank() -> int:
    """The number of this process; 0 where it is alone."""
    return int(os.environ.get("RANK", "0"))


def restarts() -> int:
    """How often the launcher has started these ranks again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launch_id() -> str:
    """What tells the launch of this process from any other; a restart by the same launcher does not change it."""
    launcher = psutil.Process(os.getppid())
    return f"{socket.gethostname()} {launcher.pid} {launcher.create_time()}"


def own_device(name: str) -> str:
    """The device of this rank: one GPU each where there are GPUs and they are asked for, else the CPU."""
    if name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise InputError("ranks", local + 1, f"at most one for each of the {count} GPUs of a machine (or --device cpu)")
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def join(name: str, timeout: float = 300.0) -> tuple[Transport, str]:
    """The transport of the launch that this process belongs to, or a local one; and its device."""
    if not launched():
        return LocalTransport(), name
    device = own_device(name)
    return Group(choose_device(device), timeout), device


class Group:
    """This process among all that a launcher started: the engine's `Transport` on torch.distributed."""

    def __init__(self, device: torch.device, timeout: float = 300.0) -> None:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        self._timeout, self._device, self.sent = timeout, device, 0
        self.rank, self.ranks = rank(), int(os.environ["WORLD_SIZE"])
        self.local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        # NCCL does one thing after the other: what is expected would wait for what is sent later, on both sides.
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
        # torchrun keeps its store when it starts all ranks again; what the dead left in it is not to be read.
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
        """Send a contiguous tensor to each rank and receive one from each, None being nothing; does not wait."""
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
        """NCCL does them all at once, or both sides might wait for each other; gloo has no such trouble."""
        if self._device.type == "cuda":
            return dist.batch_isend_irecv([dist.P2POp(*one, self._group) for one in operations])
        return [work for what, values, other in operations if (work := what(values, other, self._group))]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over ranks, the same bits on all of them."""
        out = values.clone()
        self._watched(lambda: dist.all_reduce(out, group=self._group))
        return out

    def all_gather(self, values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """What each rank holds, on all of them. Shapes: (sizes[rank], ...) -> ranks × (sizes[rank], ...)."""
        room = values.new_zeros((max(sizes), *values.shape[1:]))
        room[: len(values)] = values
        out = [torch.empty_like(room) for _ in range(self.ranks)]
        self._watched(lambda: dist.all_gather(out, room, group=self._group))
        return [part[:size] for part, size in zip(out, sizes, strict=True)]

    def gather(self, item: Any) -> list[Any] | None:
        """Any picklable thing of each rank, on rank 0; None on the others."""
        return self._watched(lambda: self._gathered(item))

    def _gathered(self, item: Any) -> list[Any] | None:
        mine = _as_tensor(self._messages.sealed(item, self.rank))
        sizes = torch.zeros(self.ranks, dtype=torch.int64)
        sizes[self.rank] = len(mine)
        dist.all_reduce(sizes, group=self._group)
        room = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        room[: len(mine)] = mine
        found = [torch.empty_like(room) for _ in range(self.ranks)] if self.rank == 0 else None
        dist.gather(room, found, dst=0, group=self._group)
        if found is None:
            return None
        parts = [part[:size] for part, size in zip(found, sizes.tolist(), strict=True)]
        return [self._messages.opened(part.numpy().tobytes(), rank) for rank, part in enumerate(parts)]

    def broadcast(self, item: Any) -> Any:
        """Rank 0's thing, on all of them."""
        return self._watched(lambda: self._broadcast(item))

    def _broadcast(self, item: Any) -> Any:
        sealed = _as_tensor(self._messages.sealed(item if self.rank == 0 else None, self.rank))
        size = torch.tensor([len(sealed)])
        dist.broadcast(size, src=0, group=self._group)
        room = sealed if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(room, src=0, group=self._group)
        return item if self.rank == 0 else self._messages.opened(room.numpy().tobytes(), 0)

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on some rank."""
        up = torch.tensor([int(flag)], dtype=torch.int32)
        self._watched(lambda: dist.all_reduce(up, group=self._group))
        return bool(up.item())

    def bell(self) -> Bell:
        """A new bell that nobody has rung; every rank makes as many."""
        self._bells += 1
        return _Bell(self._store, f"bell {self._bells}")

    def barrier(self) -> None:
        """Until all ranks are here."""
        self.any(False)

    def _watched(self, work: Callable[[], T]) -> T:
        """Work whose failure means that somebody is gone, or does not answer."""
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

    A store that does not answer says nothing: the ranks notice at their next exchange.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key, self._rung = store, key, False

    def ring(self) -> None:
        """Let all ranks know."""
        if not self._rung:
            self._rung = True
            with suppress(RuntimeError):
                self._store.set(self._key, "1")

    def rung(self) -> bool:
        """Whether some rank has rung it."""
        with suppress(RuntimeError):
            self._rung = self._rung or bool(self._store.check([self._key]))
        return self._rung


class _Messages:
    """Objects that ranks send each other, pickled.

    Where there is a secret of the launch, nothing is unpickled that was not sealed with it by the rank it is said to
    come from, for this very call. torchrun gives no secret: there the network is trusted.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key, self._count = key, 0

    @classmethod
    def of_launch(cls) -> _Messages:
        """With the secret that the launcher left in the directory where ranks meet, if there is one."""
        folder = os.environ.get(MEETING)
        return cls((Path(folder) / KEY).read_bytes() if folder else None)

    def sealed(self, item: Any, rank: int) -> bytes:
        """An object of this rank, as bytes; every rank calls this once for each collective call."""
        self._count += 1
        data = pickle.dumps(item)
        return self._seal(data, rank) + data

    def opened(self, sealed: bytes, rank: int) -> Any:
        """The object in the bytes that came from a rank."""
        size = len(self._seal(b"", rank))
        seal, data = sealed[:size], sealed[size:]
        if not hmac.compare_digest(seal, self._seal(data, rank)):
            raise LostRankError(f"what came as from rank {rank} was not sent by it, and was thrown away")
        return pickle.loads(data)  # noqa: S301 (sealed by a rank of this launch, or the network is trusted)

    def _seal(self, data: bytes, rank: int) -> bytes:
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

    Cores are divided evenly, unless OMP_NUM_THREADS says otherwise. A signal ends all ranks as it would end one.

    Args:
        ranks: How many processes.
        arguments: The arguments of the module.
        max_restarts: How often to start all ranks again when one of them dies.
        module: The module that each of them runs.
        files: What they find in the private directory where they meet, by name.

    Returns:
        The exit code of the first rank to fail, or 0.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    path = [home for name in {"dspodfl": 0, module: 0} if (home := home_of(name)) is not None]
    return run_ranks(ranks, command, max_restarts=max_restarts, path=path, files=files)
