"""Philox4x32-10, compiled: the words at many addresses. The reference implementation is `dspodfl.rng.philox`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.cpu import linear as compiled
from dspodfl._kernels.triton_support import jit, tl, usable

MANY = 4096
"""Words on the CPU for which it pays to load compiled code."""
_BLOCK = 256


def available(device: torch.device) -> bool:
    """Whether this kernel works there."""
    return usable(device)


@jit
def _words(
    out, seed, i, j, k,
    seed_row, seed_column, i_row, i_column, j_row, j_column, k_row, k_column,
    columns, count, upper, first, groups, slots, BLOCK: tl.constexpr,
):  # fmt: skip
    # The multipliers and the steps of the keys are Philox's own constants.
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    group = place % groups
    row = place // groups // columns
    column = place // groups % columns
    key = tl.load(seed + row * seed_row + column * seed_column, mask=inside, other=0)
    k0 = (key & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c0 = tl.load(i + row * i_row + column * i_column, mask=inside, other=0).to(tl.uint32)
    c1 = tl.load(j + row * j_row + column * j_column, mask=inside, other=0).to(tl.uint32)
    c2 = tl.load(k + row * k_row + column * k_column, mask=inside, other=0).to(tl.uint32)
    c3 = (upper + first + group).to(tl.uint32)
    m0 = tl.full((BLOCK,), 0xD2511F53, dtype=tl.uint32)
    m1 = tl.full((BLOCK,), 0xCD9E8D57, dtype=tl.uint32)
    w0 = tl.full((BLOCK,), 0x9E3779B9, dtype=tl.uint32)
    w1 = tl.full((BLOCK,), 0xBB67AE85, dtype=tl.uint32)
    for _ in tl.static_range(10):
        h0 = tl.umulhi(c0, m0)
        h1 = tl.umulhi(c2, m1)
        l0 = c0 * m0
        l1 = c2 * m1
        c0 = h1 ^ c1 ^ k0
        c1 = l1
        c2 = h0 ^ c3 ^ k1
        c3 = l0
        k0 += w0
        k1 += w1
    where = (row * columns + column) * slots + group * 4
    tl.store(out + where, c0.to(tl.int64), mask=inside & (group * 4 < slots))
    tl.store(out + where + 1, c1.to(tl.int64), mask=inside & (group * 4 + 1 < slots))
    tl.store(out + where + 2, c2.to(tl.int64), mask=inside & (group * 4 + 2 < slots))
    tl.store(out + where + 3, c3.to(tl.int64), mask=inside & (group * 4 + 3 < slots))


def words(seed: Tensor, i: Tensor, j: Tensor, k: Tensor, stream: int, slots: int, first: int) -> Tensor:
    """Words at slots first … first + slots − 1 of addresses.

    Shapes: four that broadcast to two axes (rows, columns) -> (rows, columns, slots).
    """
    inputs = torch.broadcast_tensors(seed, i, j, k)
    rows, columns = inputs[0].shape
    out = torch.empty((rows, columns, slots), dtype=torch.int64, device=seed.device)
    groups = -(-slots // 4)
    count = rows * columns * groups
    if count:
        strides = [stride for array in inputs for stride in array.stride()]
        _words[(-(-count // _BLOCK),)](
            out, *inputs, *strides, columns, count, stream << 26, first // 4, groups, slots, BLOCK=_BLOCK
        )
    return out


def words_on_cpu(
    seed: np.ndarray, i: np.ndarray, j: np.ndarray, k: np.ndarray, stream: int, slots: int, first: int
) -> np.ndarray | None:
    """The same on the CPU; None where there is no compiler, or too little to do, or more than two axes."""
    shape = np.broadcast_shapes(seed.shape, i.shape, j.shape, k.shape)
    if len(shape) > 2 or np.prod(shape, dtype=np.int64) * slots < MANY or not compiled.available():
        return None
    from dspodfl._kernels.cpu._philox import LANES, fill

    flat = (1,) * (2 - len(shape)) + shape
    out = np.empty((*flat, slots), dtype=np.int64)
    scratch = np.zeros(6 * LANES, dtype=np.uint32)
    address = [np.broadcast_to(a, flat) for a in (seed, i, j, k)]
    fill(out, address[0], address[1], address[2], address[3], stream << 26, first // 4, scratch)
    return out.reshape(*shape, slots)
