"""How the products of a convolution are cut into blocks, and their sums into parts, so that a device is full.

A program computes one block of results, or a part of its sum; a *round* is as many programs as run at a time. Large
blocks read the least, but where results are few they leave processors idle: then blocks are smaller, or their sums come
in parts, which are added up afterwards. The rules are what measuring found to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch

from dspodfl._kernels.cuda.conv_terms import POSITIONS, Precision
from dspodfl._kernels.triton_support import power_of_two

_PLENTY = 4
"""This many blocks of 128 × 128 a processor are plenty."""
_SHORT = 24
"""Sums of fewer steps are not parted."""
_PARTING = 0.04
"""What one more part of a sum costs, as a share of the whole."""


@dataclass(frozen=True)
class Shape:
    """How a product is cut: block sizes, warps, stages of the pipeline, parts of its sum, which factor is left.

    ``round``: bits for the factors that are rounded on their way (1: weights, 2: pixels), or, of sums over pixels, that
    pass through registers (1: gradients, 2: pixels). ``flat``: kernel positions and channels count as one axis.
    """

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 3
    splits: int = 1
    swap: bool = False
    round: int = 0
    flat: bool = False


def product_shape(
    device: torch.device,
    clients: int,
    rows: int,
    out_channels: int,
    channels: int,
    precision: Precision,
    strided: bool,
    *,
    backward: bool,
) -> Shape:
    """The cut of a sum over 9 × ``channels`` for ``rows`` × ``out_channels`` results a client.

    Measured with VGG11 (3, 5, 10 and 110 clients, 16 images each; 11 clients, 138 images); what is not like its layers
    gets what is nearest.
    """
    n = min(64, power_of_two(out_channels))
    processors, roomy = _chip(device)
    tf32 = precision == "tf32"
    if channels % 16 or strided:
        return Shape(128, n, 32, 4, 1, swap=n == 64, round=3 if tf32 else 0, flat=True)
    k = 32 if channels % 32 == 0 else 16
    if precision == "fp32":
        return Shape(64, n, 16, 4, 2)
    steps = POSITIONS * channels // k
    wide = precision == "bf16" and channels % 64 == 0
    if n < 64:
        shape = Shape(64, n, k, 4, 4)
    elif rows <= 128:
        shape = Shape(64, 64, 64 if channels % 64 == 0 else k, 4, 3, swap=backward or not tf32)
    elif wide and roomy and rows % 256 == 0 and out_channels % 128 == 0:
        shape = Shape(256, 128, 64, 8, 3, swap=True)
    elif (
        tf32
        and roomy
        and out_channels % 64 == 0
        and clients * cdiv(rows, 128) * out_channels >= _PLENTY * processors * 128
    ):
        # Large blocks read the least; there are enough of them to keep all processors busy to the end.
        shape = _large(rows, out_channels, k, backward)
    elif out_channels % 128 == 0 and tf32:
        # Blocks half as large are as fast where there are enough of them without parting the sum.
        halves = clients * cdiv(rows, 64) * (out_channels // 128)
        many = not backward and (halves >= 2 * processors or steps < _SHORT)
        shape = Shape(64 if many else 128, 128, k, 4, 3, swap=backward)
    else:
        shape = Shape(
            64 if backward and out_channels == 64 else 128, 64, k, 4, 3 if tf32 else 4, swap=backward or not tf32
        )
    blocks = clients * cdiv(rows, shape.m) * cdiv(out_channels, shape.n)
    # As many programs as fit the device at a time: one of the large ones a processor, three of the small.
    room = {256: 1, 128: 2, 64: 3 if tf32 and rows > 128 else 2}[shape.m] * processors
    # In the backward pass, gradients with respect to weights run in parallel: fewer parts fill the device.
    most = 1 if steps < _SHORT else min(steps * k // (8 * shape.k), 8, max(3, 24 // clients) if backward else 8)
    splits = _splits(blocks, room, most)
    return replace(shape, splits=splits, round=1 if tf32 and shape.swap else 0)


def weight_shape(
    device: torch.device, clients: int, rows: int, out_channels: int, channels: int, precision: Precision, strided: bool
) -> Shape:
    """The cut of a sum over ``rows`` for ``out_channels`` × 9·``channels`` results a client; measured likewise."""
    n = min(64, power_of_two(out_channels))
    flat = bool(channels % 16) or strided
    k = 32 if flat else next(k for k in (64, 32, 16) if channels % k == 0)
    hold = 1 if precision == "tf32" else 0
    if precision == "fp32":
        shape = Shape(16, n, k, 4, 3)
    elif flat:
        shape = Shape(64, n, k, 4, 1, round=hold)
    elif precision == "tf32":
        # The tensor instructions of two warps take float32 factors stored across the sum; those of four do not.
        shape = Shape(32, 128 if out_channels % 128 == 0 else n, k, 2, 3)
    elif channels % 128 == 0:
        shape = Shape(32, 128, 128, 4, 4) if out_channels % 128 == 0 and rows > 64 else Shape(64, n, 128, 4, 2)
    else:
        shape = Shape(64, 128 if out_channels % 128 == 0 else n, k, 4, 3)
    blocks = clients * cdiv(out_channels, shape.n) * cdiv(POSITIONS * channels, shape.k)
    room = (3 if shape.warps == 2 else 2) * _chip(device)[0]
    splits = max(1, min(room // blocks, rows // (8 * shape.m)))
    return replace(shape, splits=splits, flat=flat)


def _large(rows: int, out_channels: int, k: int, backward: bool) -> Shape:
    """The cut where there is plenty to do."""
    if out_channels % 128:
        return Shape(256 if backward else 128, 64, k, 4, 3, swap=backward)
    if backward:
        return (
            Shape(256, 128, k, 8, 3, swap=True)
            if rows % 256 == 0 and out_channels > 128
            else Shape(128, 128, k, swap=True)
        )
    return Shape(128, 256, k, 8, 3) if out_channels % 256 == 0 else Shape(128, 128, k)


def _splits(blocks: int, room: int, most: int) -> int:
    """Into how many parts to cut a sum, so that rounds of ``room`` programs are full; parts cost something, too."""
    if blocks >= room:
        return 1

    def worth(parts: int) -> float:
        programs = blocks * parts
        return programs / (cdiv(programs, room) * room) * (1 - _PARTING * (parts - 1))

    return max(range(1, max(1, most) + 1), key=worth)


@cache
def _chip(device: torch.device) -> tuple[int, bool]:
    """The number of a device's processors, and whether one has the memory for large blocks."""
    if device.type != "cuda":
        return 132, True
    roomy = torch.cuda.get_device_capability(device)[0] in {9, 10}  # 227 KB of it; the others have at most 163
    return torch.cuda.get_device_properties(device).multi_processor_count, roomy


def cdiv(a: int, b: int) -> int:
    """How many b it takes to hold a."""
    return -(-a // b)
