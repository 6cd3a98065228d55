"""How much memory this process may still take."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def available() -> int:
    """Return the bytes this process can still allocate.

    The least of what is free on the machine, what is left under the limit of its control group (containers, batch
    systems) and what is left under its own limit (``ulimit -v``).
    """
    import psutil

    left = [int(psutil.virtual_memory().available), _left_in_cgroup(), _left_in_address_space()]
    return max(0, min(value for value in left if value is not None))


def _left_in_cgroup() -> int | None:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text())
        except (OSError, ValueError):  # another version of control groups, or "max"
            continue
    return None


def _left_in_address_space() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return soft
    return soft - pages * _PAGE


def gib(size: float) -> str:
    """Format a size in bytes.

    Args:
        size: The number of bytes.

    Returns:
        The size in GiB, MiB or bytes.

    >>> gib(3 * 2**30), gib(5_000_000)
    ('3.0 GiB', '5 MiB')
    """
    if size >= 2**30:
        return f"{size / 2**30:,.1f} GiB"
    return f"{size / 2**20:,.0f} MiB" if size >= 2**20 else f"{size:,.0f} bytes"
