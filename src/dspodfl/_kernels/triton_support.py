"""Triton where there is one. Without it every name here exists, and `found` is False."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

found = False
triton: Any = None
tl: Any = None
try:
    import triton  # type: ignore[no-redef]
    import triton.language as tl  # type: ignore[no-redef]  # noqa: F401

    found = True
except ImportError:  # pragma: no cover - as it is on a machine without one
    pass
gdc_wait: Any = None
gdc_launch_dependents: Any = None
with suppress(ImportError):
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait  # type: ignore[no-redef]  # noqa: F401

EARLY = True
"""Whether kernels may be launched before the one ahead of them has ended."""


def usable(device: torch.device | str) -> bool:
    """Whether kernels can be compiled for a device: NVIDIA GPUs since Ampere, whose tensor cores they use."""
    device = torch.device(device)
    return found and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


def early(device: torch.device) -> dict[str, bool]:
    """Options of kernels that may be launched before the one ahead of them in the stream has ended.

    Such a kernel waits (`gdc_wait`) before it reads or writes, and says (`gdc_launch_dependents`) when the next may be
    launched: the time that launching takes is hidden. Hopper and later know it.
    """
    able = EARLY and gdc_wait is not None and usable(device) and torch.cuda.get_device_capability(device)[0] >= 9
    return {"EARLY": True, "launch_pdl": True} if able else {"EARLY": False}


def jit(function: Any) -> Any:
    """`triton.jit`, or the function as it is where there is no Triton."""
    return triton.jit(function) if found else function


def power_of_two(n: int, least: int = 16) -> int:
    """The smallest power of two that is at least n and ``least``."""
    return max(least, 1 << max(0, n - 1).bit_length())
