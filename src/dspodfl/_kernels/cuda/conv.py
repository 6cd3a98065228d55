"""3×3 convolutions of many clients at once, each with its own weights: forward, and back to inputs and weights.

Activations are (clients, images, height, width, channels); padding is 1, the stride 1. The weights of a client lie
inside its row of ``theta (n, width)``, at an offset, in the order (maps, tap row, tap column, channels), its biases at
another; slopes by them are written into a matrix of the same form. Nothing is copied. Client a of the activations has
row ``index[a]`` of ``theta``, or row a without an ``index``; slopes by parameters go to row a.

ReLU and 2×2 max pooling behind a convolution are parts of it: what is kept for the way back is the output (with
pooling, a *code* besides: the place 0 … 3 of the first maximum in scan order, 4 where ReLU was off). A convolution's
way back to its inputs leads through the ReLU and pooling before it as well, if a `Gate` says what they are.

``precision``: of the products. "fp32", "tf32" (float32 numbers, of which the tensor cores see 19 bits) or "bf16"
(activations and their slopes are stored so too; parameters, their slopes and all sums stay as they are).

Every function has a twin in plain PyTorch, ``<name>_twin``, of the same signature: what runs where Triton does not
(`conv_reference`, next to this module). How products are cut into blocks is decided in `tiling`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from dspodfl._kernels import triton_support as _triton
from dspodfl._kernels.cuda.conv_reference import (
    forward_twin,
    input_gradient_twin,
    max_pool_twin,
    through_twin,
    weight_gradient_twin,
)
from dspodfl._kernels.cuda.conv_terms import TAPS, Gate, Precision, gated, stored
from dspodfl._kernels.cuda.tiling import Shape, cdiv, product_shape, weight_shape

if _triton.found:
    from dspodfl._kernels.cuda import _conv
    from dspodfl._kernels.cuda import _conv_weight_grad as _conv_weights

__all__ = [
    "Gate",
    "Precision",
    "available",
    "forward",
    "input_gradient",
    "max_pool",
    "max_pool_gradient",
    "on",
    "stored",
    "stores_tf32",
    "through",
    "weight_gradient",
]

_DOT = {"fp32": "ieee", "tf32": "tf32", "bf16": "tf32"}


def available(device: torch.device | str, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the kernels run there, rather than their twins."""
    return dtype == torch.float32 and (_triton.usable(device) or _interpreted())


def _interpreted() -> bool:
    return _triton.found and bool(_triton.triton.knobs.runtime.interpret)


def forward(
    x: Tensor,
    theta: Tensor,
    weight: int,
    bias: int | None,
    maps: int,
    *,
    relu: bool = False,
    pool: bool = False,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Outputs, and with pooling their codes. ``weight`` and ``bias`` are offsets in a row of ``theta``.

    Shapes: x (G, B, H, W, C), of any strides, theta (n, width), index (G,) -> (G, B, H', W', maps).
    """
    if not available(x.device, theta.dtype):
        return forward_twin(x, theta, weight, bias, maps, relu=relu, pool=pool, precision=precision, index=index)
    clients, images, height, width, channels = x.shape
    h, w = (height // 2, width // 2) if pool else (height, width)
    out = torch.empty(clients, images, h, w, maps, dtype=stored(precision, theta.dtype), device=x.device)
    code = torch.empty(out.shape, dtype=torch.int8, device=x.device) if pool else None
    rows = images * h * w * (4 if pool else 1)
    shape = product_shape(x.device, clients, rows, maps, channels, precision, not x.is_contiguous(), back=False)
    columns = TAPS * channels
    _product(
        x, theta, index, out, code, shape, precision,
        offsets=(weight, bias), strides=(channels, columns, 1), rows=rows, maps=maps,
        back=False, relu=relu, pool=pool, gate="none", full=(0, 0),
    )  # fmt: skip
    return out, code


def input_gradient(
    slope: Tensor,
    theta: Tensor,
    weight: int,
    channels: int,
    *,
    gate: Gate | None = None,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> Tensor:
    """Slopes by a convolution's inputs, from those by its sums; with a gate, by the sums of the convolution before it.

    Shapes: slope (G, B, H, W, maps), contiguous -> (G, B, H, W, channels), or the size before the gate's pooling.
    """
    if not available(slope.device, theta.dtype):
        return input_gradient_twin(slope, theta, weight, channels, gate=gate, precision=precision, index=index)
    clients, images, height, width, maps = slope.shape
    gate = gate or Gate()
    out = gated(slope, gate, channels)
    rows = images * height * width
    shape = product_shape(slope.device, clients, rows, channels, maps, precision, False, back=True)
    columns = TAPS * channels
    _product(
        slope, theta, index, out, gate.code if gate.code is not None else gate.output, shape, precision,
        offsets=(weight, None), strides=(channels, 1, columns), rows=rows, maps=channels,
        back=True, relu=False, pool=False, gate=gate.kind, full=(gate.height, gate.width),
    )  # fmt: skip
    return out


def through(slope: Tensor, gate: Gate, *, precision: Precision = "fp32") -> Tensor:
    """Slopes by a convolution's sums from those by its outputs. Shapes: (G, B, H, W, maps) -> before the pooling."""
    if gate.kind == "none":
        return slope
    if not available(slope.device, torch.float32 if slope.dtype == torch.bfloat16 else slope.dtype):
        return through_twin(slope, gate)
    slope = slope.contiguous()
    _, images, height, width, maps = slope.shape
    out = gated(slope, gate, maps)
    kept = gate.code if gate.code is not None else gate.output
    _finish(
        slope, None, None, out, kept, splits=1, bias=None, rows=images * height * width, maps=maps,
        size=(height, width), back=True, relu=False, pool=False, gate=gate.kind, full=(gate.height, gate.width),
        precision=precision,
    )  # fmt: skip
    return out


def weight_gradient(
    x: Tensor,
    slope: Tensor,
    out: Tensor,
    weight: int,
    bias: int | None,
    *,
    theta: Tensor | None = None,
    l2: float = 0.0,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> None:
    """Slopes by weights and biases into ``out``, plus ``l2`` times the parameters themselves (in ``theta``).

    Shapes: x (G, B, H, W, C), of any strides, slope (G, B, H, W, maps), contiguous, out (G, width).
    """
    if not available(x.device, out.dtype):
        return weight_gradient_twin(x, slope, out, weight, bias, theta=theta, l2=l2, precision=precision, index=index)
    clients, images, height, width, channels = x.shape
    maps = slope.shape[4]
    rows, columns = images * height * width, TAPS * channels
    shape = weight_shape(x.device, clients, rows, maps, channels, precision, not x.is_contiguous())
    count = (columns + 1) * maps
    partial = torch.empty(shape.splits * clients * count, device=x.device) if shape.splits > 1 else out
    where = theta if theta is not None else out
    with on(x):
        tiles = cdiv(columns, shape.k) + (bias is not None)
        _conv_weights.weight_product[(cdiv(maps, shape.n) * tiles, shape.splits, clients)](
            x, slope, where, index, out, partial, *x.stride(), where.stride(0), out.stride(0), weight, bias or 0,
            l2, rows, channels, maps, shape.splits, HEIGHT=height, WIDTH=width,
            INDEXED=index is not None, FLAT=channels if shape.flat else 0, SPLIT=shape.splits > 1, PENALTY=l2 != 0,
            HAS_BIAS=int(bias is not None), BF16=precision == "bf16", PRECISION=_DOT[precision],
            SWAP=shape.swap, HOLD=0 if _interpreted() else shape.round,
            BLOCK_M=shape.m, BLOCK_N=shape.n, BLOCK_K=shape.k, num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip
        if shape.splits > 1:
            count = count if bias is not None else columns * maps
            _conv_weights.weight_finish[(cdiv(count, 512), clients)](
                partial, where, index, out, where.stride(0), out.stride(0), weight, bias or 0, l2,
                columns * maps, count, (columns + 1) * maps, shape.splits,
                INDEXED=index is not None, PENALTY=l2 != 0, BLOCK=512,
            )  # fmt: skip
    return None


def max_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """2×2 maxima and their places 0 … 3. Shapes: (G, B, H, W, C), contiguous -> (G, B, H // 2, W // 2, C), twice."""
    if not available(x.device, torch.float32 if x.dtype == torch.bfloat16 else x.dtype):
        return max_pool_twin(x)
    clients, images, height, width, maps = x.shape
    out = torch.empty(clients, images, height // 2, width // 2, maps, dtype=x.dtype, device=x.device)
    code = torch.empty(out.shape, dtype=torch.int8, device=x.device)
    cells = out.numel() // maps
    block = (32, 64)
    with on(x):
        _conv.pool[(cdiv(cells, block[0]) * cdiv(maps, block[1]),)](
            x, out, code, cells, height, width, maps, BLOCK_M=block[0], BLOCK_N=block[1]
        )
    return out, code


def max_pool_gradient(slope: Tensor, code: Tensor, height: int, width: int) -> Tensor:
    """Slopes by the inputs of pooling, which were ``height`` × ``width``, from those by its outputs."""
    return through(slope, Gate(code=code, height=height, width=width))


# Launches.


def _product(
    x: Tensor,
    theta: Tensor,
    index: Tensor | None,
    out: Tensor,
    kept: Tensor | None,
    shape: Shape,
    precision: Precision,
    *,
    offsets: tuple[int, int | None],
    strides: tuple[int, int, int],
    rows: int,
    maps: int,
    back: bool,
    relu: bool,
    pool: bool,
    gate: str,
    full: tuple[int, int],
) -> None:
    clients, _, height, width, channels = x.shape
    weight, bias = offsets
    split = shape.splits > 1
    partial = torch.empty(shape.splits * clients * rows * maps, device=x.device) if split else out
    per_client = out[0].numel(), 0 if kept is None else kept[0].numel()
    with on(x):
        _conv.product[(cdiv(rows, shape.m) * cdiv(maps, shape.n), shape.splits, clients)](
            x, theta, index, out, out if kept is None else kept, partial, *x.stride(),
            theta.stride(0), weight, bias or 0, *strides,
            rows, height, width, channels, maps, *full, *per_client, shape.splits,
            INDEXED=index is not None, BACK=back, FLAT=channels if shape.flat else 0, SPLIT=split,
            HAS_BIAS=bias is not None and not split, RELU=relu and not split, POOL=pool,
            GATE="none" if split else gate, BF16=precision == "bf16", PRECISION=_DOT[precision],
            TF32=stores_tf32(precision), SWAP=shape.swap, ROUND=0 if _interpreted() else shape.round,
            BLOCK_M=shape.m, BLOCK_N=shape.n, BLOCK_K=shape.k,
            num_warps=shape.warps, num_stages=shape.stages, **_triton.early(x.device),
        )  # fmt: skip
    if split:
        _finish(
            partial, theta, index, out, kept, splits=shape.splits, bias=bias, rows=rows, maps=maps,
            size=(height, width), back=back, relu=relu, pool=pool, gate=gate, full=full, precision=precision,
        )  # fmt: skip


def _finish(
    partial: Tensor,
    theta: Tensor | None,
    index: Tensor | None,
    out: Tensor,
    kept: Tensor | None,
    *,
    splits: int,
    bias: int | None,
    rows: int,
    maps: int,
    size: tuple[int, int],
    back: bool,
    relu: bool,
    pool: bool,
    gate: str,
    full: tuple[int, int],
    precision: Precision,
) -> None:
    clients = len(out)
    block = (16, 64)
    per_client = out[0].numel(), 0 if kept is None else kept[0].numel()
    with on(out):
        _conv.finish[(cdiv(rows, block[0]) * cdiv(maps, block[1]), clients)](
            partial, out if theta is None else theta, index, out, out if kept is None else kept,
            0 if theta is None else theta.stride(0), bias or 0,
            rows, maps, *size, *full, *per_client, splits,
            INDEXED=index is not None, BACK=back, HAS_BIAS=bias is not None, RELU=relu, POOL=pool, GATE=gate,
            TF32=stores_tf32(precision), BLOCK_M=block[0], BLOCK_N=block[1], **_triton.early(out.device),
        )  # fmt: skip


def stores_tf32(precision: Precision) -> bool:
    """Whether activations are rounded where they are stored: once, and to nearest, not cut off in every product."""
    return precision == "tf32" and not _interpreted()


def on(x: Tensor) -> AbstractContextManager[Any]:
    """Launches go to the current device, which need not be the tensors'."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
