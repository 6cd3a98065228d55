"""What the machine itself can do, measured at the start of every run: how fast it copies, how fast it multiplies."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dspodfl.engine.device import products

_REPEATS = 10
_ROOM = {"cpu": 2**30, "cuda": 2**32}
_SIDE = {"cpu": 2048, "cuda": 8192}


@dataclass(frozen=True)
class Machine:
    """A device and its rates: bytes read plus written a second, and FLOP a second in each precision of products."""

    name: str
    threads: int
    bandwidth: float
    rates: dict[str, float]


def measure_machine(device: torch.device, room: int | None = None, side: int | None = None) -> Machine:
    """The best of a few tries, since a floor must not move with what else runs.

    ``room`` is the size of the array that is copied, in bytes; ``side`` that of the square matrices multiplied.
    """
    room, side = room or _ROOM[device.type], side or _SIDE[device.type]
    rates = {}
    for precision in ("fp32", "tf32", "bf16") if device.type == "cuda" else ("fp32",):
        with products(precision):
            rates[precision] = _multiplying(device, side, torch.bfloat16 if precision == "bf16" else torch.float32)
    return Machine(name_of(device), torch.get_num_threads(), _copying(device, room), rates)


def name_of(device: torch.device) -> str:
    """What the maker calls the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Release memory that is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of a few tries, after one that does not count."""
    work()
    found = []
    for _ in range(_REPEATS):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - start)
    return min(found)


def _copying(device: torch.device, room: int) -> float:
    count = room // 4
    if device.type == "cuda":
        source, target = torch.ones(count, device=device), torch.empty(count, device=device)
        return 2 * 4 * count / fastest(lambda: target.copy_(source), device)
    # The C library's copy goes around the cache where PyTorch's reads what it is about to overwrite.
    threads = torch.get_num_threads()
    here, there = np.ones(count, np.float32), np.zeros(count, np.float32)
    parts = [slice(n * count // threads, (n + 1) * count // threads) for n in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = fastest(lambda: list(pool.map(lambda part: np.copyto(there[part], here[part]), parts)), device)
    return 2 * 4 * count / seconds


def _multiplying(device: torch.device, side: int, dtype: torch.dtype) -> float:
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / fastest(lambda: torch.mm(a, b, out=out), device)
