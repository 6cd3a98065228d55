"""Several processes that run one study: torch.distributed behind the engine's `Team`, and how they are launched.

Process groups, rendezvous and elastic restart are PyTorch's: torchrun, or any launcher that sets its environment
(RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). gloo carries what lies in the host's memory, NCCL what lies
on a GPU. Nothing else in the package knows torch.distributed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dspodfl.engine import Alone, Team
from dspodfl.engine.team import Wait
from dspodfl.errors import InputError, LostRankError
from dspodfl.study import choose_device

T = TypeVar("T")


def launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank() -> int:
    """The number of this process; 0 where it is alone."""
    return int(os.environ.get("RANK", "0"))


def restarts() -> int:
    """How often the launcher has started this team anew after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def own_device(name: str) -> str:
    """The device of this rank: one GPU each where there are GPUs and they are asked for, else the CPU."""
    if name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise InputError("ranks", local + 1, f"at most one for each of the {count} GPUs of a machine (or --device cpu)")
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def join(name: str, timeout: float = 300.0) -> tuple[Team, str]:
    """The team that this process was launched into, or itself alone; and its device."""
    if not launched():
        return Alone(), name
    device = own_device(name)
    return Group(choose_device(device), timeout), device


class Group:
    """This process among all that a launcher started: the engine's `Team` on torch.distributed."""

    def __init__(self, device: torch.device, timeout: float = 300.0) -> None:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        self._timeout, self._device, self.sent = timeout, device, 0
        self.rank, self.ranks = rank(), int(os.environ["WORLD_SIZE"])
        self.near = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        # NCCL does one thing after the other: what is expected would wait for what is sent later, on both sides.
        self.ahead = device.type != "cuda"
        self._group: dist.ProcessGroup | None = None
        self._watched(lambda: self._meet(backend))

    def _meet(self, backend: str) -> None:
        store, number, count = next(rendezvous("env://"))
        # A launcher keeps its store when it starts a team anew; what the dead left in it would be taken for the living.
        store = PrefixStore(f"start {restarts()}", store)
        wait = timedelta(seconds=self._timeout)
        dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=wait)

    def patience(self, timeout: float) -> None:
        """Wait so many seconds for the others from now on, before they count as gone; all ranks call it."""
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
            return lambda: None
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

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks, the same bits on all of them."""
        out = values.clone()
        self._watched(lambda: dist.all_reduce(out, group=self._group))
        return out

    def collect(self, values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """What each rank holds, on all of them. Shapes: (sizes[rank], ...) -> ranks × (sizes[rank], ...)."""
        room = values.new_zeros((max(sizes), *values.shape[1:]))
        room[: len(values)] = values
        out = [torch.empty_like(room) for _ in range(self.ranks)]
        self._watched(lambda: dist.all_gather(out, room, group=self._group))
        return [part[:size] for part, size in zip(out, sizes, strict=True)]

    def gather(self, item: Any) -> list[Any] | None:
        """Any picklable thing of each rank, on rank 0; None on the others."""
        found: list[Any] | None = [None] * self.ranks if self.rank == 0 else None
        self._watched(lambda: dist.gather_object(item, found, group=self._group))
        return found

    def share(self, item: Any) -> Any:
        """Rank 0's thing, on all of them."""
        box = [item]
        self._watched(lambda: dist.broadcast_object_list(box, group=self._group))
        return box[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on some rank."""
        up = torch.tensor([int(flag)], dtype=torch.int32)
        self._watched(lambda: dist.all_reduce(up, group=self._group))
        return bool(up.item())

    def barrier(self) -> None:
        """Until all ranks are here."""
        self.any(False)

    def _watched(self, work: Callable[[], T]) -> T:
        """Work whose failure means that somebody is gone, or does not answer."""
        try:
            return work()
        except (RuntimeError, ValueError) as error:
            why = str(error).strip().splitlines()[0].split("] ", 1)[-1].split(". ")[0]
            raise LostRankError(
                f"rank {self.rank} of {self.ranks} has lost the others: one of them is gone, or has not answered "
                f"within {self._timeout:g} s ({why})"
            ) from error


def launch(ranks: int, arguments: Sequence[str], *, max_restarts: int = 0, module: str = "dspodfl") -> int:
    """Run a module, with these arguments, on so many ranks of this machine; gives the exit code of the first to fail.

    Cores are shared out evenly, unless OMP_NUM_THREADS says otherwise. A signal ends all ranks as it would end one.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # the launcher's: ranks say themselves what went wrong
    os.environ["DSPODFL_LAUNCHED"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="dspodfl",
        max_restarts=max_restarts,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except SignalException as came:
        return 128 + int(came.sigval)
    except ChildFailedError as failure:
        for number, one in failure.failures.items():
            if one.exitcode < 0 and -one.exitcode != signal.SIGTERM:  # which is how the launcher ends the others
                name = signal.Signals(-one.exitcode).name
                raise LostRankError(f"rank {number} was killed ({name}), and the others were stopped") from None
        said = [one.exitcode for one in failure.failures.values() if one.exitcode > 0]
        return int(said[0]) if said else 128 + signal.SIGTERM
    finally:
        logging.disable(logging.NOTSET)
    return 0
