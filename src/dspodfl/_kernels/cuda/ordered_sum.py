"""Sums in a fixed order on a GPU, one number after the other; a device's own sums are in no such order.

The reference implementations are the loops in `dspodfl.engine.counters`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspodfl._kernels.triton_support import jit, tl, usable

_COLUMNS = 128


def available(device: torch.device) -> bool:
    """Whether these kernels work there."""
    return usable(device)


@jit
def _running(carry, values, out, count, width, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.load(carry + column, mask=inside, other=0.0)
    value, sums = values + column, out + column
    for _ in range(count):
        total += tl.load(value, mask=inside, other=0.0)
        tl.store(sums, total, mask=inside)
        value += width
        sums += width


@jit
def _fold(values, out, rows, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    total = tl.load(values + row * width, mask=inside, other=0.0)
    for n in range(1, width):
        total += tl.load(values + row * width + n, mask=inside, other=0.0)
    tl.store(out + row, total, mask=inside)


def running(carry: Tensor, values: Tensor) -> Tensor:
    """Carry + the sum of the first, the first two, … rows. Shapes: (n,), (T, n) -> (T, n), float64."""
    values, out = values.contiguous(), torch.empty_like(values, memory_format=torch.contiguous_format)
    count, width = values.shape
    if out.numel():
        _running[(-(-width // _COLUMNS),)](carry.contiguous(), values, out, count, width, BLOCK=_COLUMNS, num_warps=4)
    return out


def fold(values: Tensor) -> Tensor:
    """The sum over the last axis, first to last. Shapes: (..., n) -> (...), float64; n at least 1."""
    values = values.contiguous()
    out = values.new_empty(values.shape[:-1])
    if out.numel():
        rows = out.numel()
        _fold[(-(-rows // _COLUMNS),)](values, out, rows, values.shape[-1], BLOCK=_COLUMNS, num_warps=4)
    return out
