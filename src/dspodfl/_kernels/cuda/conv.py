"""3×3 convolutions of many clients in one call, each with its own weights: forward and backward pass.

Activations are (clients, images, height, width, channels); padding is 1, the stride 1. The weights of a client are
inside its row of ``theta (n, width)``, at an offset, in the order (output channels, kernel row, kernel column,
channels), its biases at another offset; gradients with respect to them are written into a matrix of the same form.
Nothing is copied. Client a of the activations has row ``index[a]`` of ``theta``, or row a without an ``index``;
gradients with respect to parameters go to row a.

ReLU and 2×2 max pooling behind a convolution are parts of it: the tensor saved for the backward pass is the output
(with pooling, also a *code*: the place 0 … 3 of the first maximum in scan order, 4 where ReLU was off). The backward
pass to a convolution's inputs includes the ReLU and pooling before it, if a `Gate` says what they are. ``grad`` is the
gradient with respect to the pre-activations, before ReLU and pooling.

``precision``: of the products. "fp32", "tf32" (float32 numbers, of which the tensor cores see 19 bits) or "bf16"
(activations and gradients with respect to them are stored so too; parameters, their gradients and all sums are not).

Every function has a reference implementation in plain PyTorch, ``<name>_reference``, of the same signature: it runs
where Triton does not (`conv_reference`, next to this module). How products are cut into blocks is decided in `tiling`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from dspodfl._kernels import triton_support as _triton
from dspodfl._kernels.cuda.conv_reference import (
    forward_reference,
    input_gradient_reference,
    max_pool_reference,
    through_reference,
    weight_gradient_reference,
)
from dspodfl._kernels.cuda.conv_terms import POSITIONS, Gate, Precision, gated, stored
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
    """Return whether the kernels run there, rather than their reference implementations."""
    return dtype == torch.float32 and (_triton.usable(device) or _interpreted())


def _interpreted() -> bool:
    return _triton.found and bool(_triton.triton.knobs.runtime.interpret)


def forward(
    x: Tensor,
    theta: Tensor,
    weight: int,
    bias: int | None,
    out_channels: int,
    *,
    relu: bool = False,
    pool: bool = False,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Outputs, and with pooling their codes. ``weight`` and ``bias`` are offsets in a row of ``theta``.

    Shapes: x (G, B, H, W, C), of any strides, theta (n, width), index (G,) -> (G, B, H', W', out_channels).
    """
    if not available(x.device, theta.dtype):
        return forward_reference(
            x, theta, weight, bias, out_channels, relu=relu, pool=pool, precision=precision, index=index
        )
    clients, images, height, width, channels = x.shape
    h, w = (height // 2, width // 2) if pool else (height, width)
    out = torch.empty(clients, images, h, w, out_channels, dtype=stored(precision, theta.dtype), device=x.device)
    code = torch.empty(out.shape, dtype=torch.int8, device=x.device) if pool else None
    rows = images * h * w * (4 if pool else 1)
    shape = product_shape(
        x.device, clients, rows, out_channels, channels, precision, not x.is_contiguous(), backward=False
    )
    columns = POSITIONS * channels
    _product(
        x, theta, index, out, code, shape, precision,
        offsets=(weight, bias), strides=(channels, columns, 1), rows=rows, out_channels=out_channels,
        backward=False, relu=relu, pool=pool, gate="none", full=(0, 0),
    )  # fmt: skip
    return out, code


def input_gradient(
    grad: Tensor,
    theta: Tensor,
    weight: int,
    channels: int,
    *,
    gate: Gate | None = None,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> Tensor:
    """Return the gradients with respect to a convolution's inputs, from those with respect to its pre-activations.

    With a gate: with respect to the pre-activations of the convolution before it.
    Shapes: grad (G, B, H, W, out_channels), contiguous -> (G, B, H, W, channels), or the size before the gate's
    pooling.
    """
    if not available(grad.device, theta.dtype):
        return input_gradient_reference(grad, theta, weight, channels, gate=gate, precision=precision, index=index)
    clients, images, height, width, out_channels = grad.shape
    gate = gate or Gate()
    out = gated(grad, gate, channels)
    rows = images * height * width
    shape = product_shape(grad.device, clients, rows, channels, out_channels, precision, False, backward=True)
    columns = POSITIONS * channels
    _product(
        grad, theta, index, out, gate.code if gate.code is not None else gate.output, shape, precision,
        offsets=(weight, None), strides=(channels, 1, columns), rows=rows, out_channels=channels,
        backward=True, relu=False, pool=False, gate=gate.kind, full=(gate.height, gate.width),
    )  # fmt: skip
    return out


def through(grad: Tensor, gate: Gate, *, precision: Precision = "fp32") -> Tensor:
    """Return the gradients with respect to a convolution's pre-activations, from those with respect to its outputs.

    Shapes: (G, B, H, W, out_channels) -> before the pooling.
    """
    if gate.kind == "none":
        return grad
    if not available(grad.device, torch.float32 if grad.dtype == torch.bfloat16 else grad.dtype):
        return through_reference(grad, gate)
    grad = grad.contiguous()
    _, images, height, width, out_channels = grad.shape
    out = gated(grad, gate, out_channels)
    saved = gate.code if gate.code is not None else gate.output
    _finish(
        grad, None, None, out, saved, splits=1, bias=None, rows=images * height * width, out_channels=out_channels,
        size=(height, width), backward=True, relu=False, pool=False, gate=gate.kind, full=(gate.height, gate.width),
        precision=precision,
    )  # fmt: skip
    return out


def weight_gradient(
    x: Tensor,
    grad: Tensor,
    out: Tensor,
    weight: int,
    bias: int | None,
    *,
    theta: Tensor | None = None,
    l2: float = 0.0,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> None:
    """Write gradients with respect to weights and biases into ``out``, plus ``l2`` times the parameters (``theta``).

    Shapes: x (G, B, H, W, C), of any strides, grad (G, B, H, W, out_channels), contiguous, out (G, width).
    """
    if not available(x.device, out.dtype):
        return weight_gradient_reference(
            x, grad, out, weight, bias, theta=theta, l2=l2, precision=precision, index=index
        )
    clients, images, height, width, channels = x.shape
    out_channels = grad.shape[4]
    rows, columns = images * height * width, POSITIONS * channels
    shape = weight_shape(x.device, clients, rows, out_channels, channels, precision, not x.is_contiguous())
    count = (columns + 1) * out_channels
    partial = torch.empty(shape.splits * clients * count, device=x.device) if shape.splits > 1 else out
    where = theta if theta is not None else out
    with on(x):
        tiles = cdiv(columns, shape.k) + (bias is not None)
        _conv_weights.weight_product[(cdiv(out_channels, shape.n) * tiles, shape.splits, clients)](
            x, grad, where, index, out, partial, *x.stride(), where.stride(0), out.stride(0), weight, bias or 0,
            l2, rows, channels, out_channels, shape.splits, HEIGHT=height, WIDTH=width,
            INDEXED=index is not None, FLAT=channels if shape.flat else 0, SPLIT=shape.splits > 1, PENALTY=l2 != 0,
            HAS_BIAS=int(bias is not None), BF16=precision == "bf16", PRECISION=_DOT[precision],
            SWAP=shape.swap, HOLD=0 if _interpreted() else shape.round,
            BLOCK_M=shape.m, BLOCK_N=shape.n, BLOCK_K=shape.k, num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip
        if shape.splits > 1:
            count = count if bias is not None else columns * out_channels
            _conv_weights.weight_finish[(cdiv(count, 512), clients)](
                partial, where, index, out, where.stride(0), out.stride(0), weight, bias or 0, l2,
                columns * out_channels, count, (columns + 1) * out_channels, shape.splits,
                INDEXED=index is not None, PENALTY=l2 != 0, BLOCK=512,
            )  # fmt: skip
    return None


def max_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """2×2 maxima and their places 0 … 3. Shapes: (G, B, H, W, C), contiguous -> (G, B, H // 2, W // 2, C), twice."""
    if not available(x.device, torch.float32 if x.dtype == torch.bfloat16 else x.dtype):
        return max_pool_reference(x)
    clients, images, height, width, out_channels = x.shape
    out = torch.empty(clients, images, height // 2, width // 2, out_channels, dtype=x.dtype, device=x.device)
    code = torch.empty(out.shape, dtype=torch.int8, device=x.device)
    cells = out.numel() // out_channels
    block = (32, 64)
    with on(x):
        _conv.pool[(cdiv(cells, block[0]) * cdiv(out_channels, block[1]),)](
            x, out, code, cells, height, width, out_channels, BLOCK_M=block[0], BLOCK_N=block[1]
        )
    return out, code


def max_pool_gradient(grad: Tensor, code: Tensor, height: int, width: int) -> Tensor:
    """Return the gradients with respect to the inputs of pooling, (…, height, width, …), from those of its outputs."""
    return through(grad, Gate(code=code, height=height, width=width))


# Launches.


def _product(
    x: Tensor,
    theta: Tensor,
    index: Tensor | None,
    out: Tensor,
    saved: Tensor | None,
    shape: Shape,
    precision: Precision,
    *,
    offsets: tuple[int, int | None],
    strides: tuple[int, int, int],
    rows: int,
    out_channels: int,
    backward: bool,
    relu: bool,
    pool: bool,
    gate: str,
    full: tuple[int, int],
) -> None:
    clients, _, height, width, channels = x.shape
    weight, bias = offsets
    split = shape.splits > 1
    partial = torch.empty(shape.splits * clients * rows * out_channels, device=x.device) if split else out
    per_client = out[0].numel(), 0 if saved is None else saved[0].numel()
    with on(x):
        _conv.product[(cdiv(rows, shape.m) * cdiv(out_channels, shape.n), shape.splits, clients)](
            x, theta, index, out, out if saved is None else saved, partial, *x.stride(),
            theta.stride(0), weight, bias or 0, *strides,
            rows, height, width, channels, out_channels, *full, *per_client, shape.splits,
            INDEXED=index is not None, BACKWARD=backward, FLAT=channels if shape.flat else 0, SPLIT=split,
            HAS_BIAS=bias is not None and not split, RELU=relu and not split, POOL=pool,
            GATE="none" if split else gate, BF16=precision == "bf16", PRECISION=_DOT[precision],
            TF32=stores_tf32(precision), SWAP=shape.swap, ROUND=0 if _interpreted() else shape.round,
            BLOCK_M=shape.m, BLOCK_N=shape.n, BLOCK_K=shape.k,
            num_warps=shape.warps, num_stages=shape.stages, **_triton.early(x.device),
        )  # fmt: skip
    if split:
        _finish(
            partial, theta, index, out, saved, splits=shape.splits, bias=bias, rows=rows, out_channels=out_channels,
            size=(height, width), backward=backward, relu=relu, pool=pool, gate=gate, full=full, precision=precision,
        )  # fmt: skip


def _finish(
    partial: Tensor,
    theta: Tensor | None,
    index: Tensor | None,
    out: Tensor,
    saved: Tensor | None,
    *,
    splits: int,
    bias: int | None,
    rows: int,
    out_channels: int,
    size: tuple[int, int],
    backward: bool,
    relu: bool,
    pool: bool,
    gate: str,
    full: tuple[int, int],
    precision: Precision,
) -> None:
    clients = len(out)
    block = (16, 64)
    per_client = out[0].numel(), 0 if saved is None else saved[0].numel()
    with on(out):
        _conv.finish[(cdiv(rows, block[0]) * cdiv(out_channels, block[1]), clients)](
            partial, out if theta is None else theta, index, out, out if saved is None else saved,
            0 if theta is None else theta.stride(0), bias or 0,
            rows, out_channels, *size, *full, *per_client, splits,
            INDEXED=index is not None, BACKWARD=backward, HAS_BIAS=bias is not None, RELU=relu, POOL=pool, GATE=gate,
            TF32=stores_tf32(precision), BLOCK_M=block[0], BLOCK_N=block[1], **_triton.early(out.device),
        )  # fmt: skip


def stores_tf32(precision: Precision) -> bool:
    """Whether activations are rounded where they are stored: once, and to nearest, not cut off in every product."""
    return precision == "tf32" and not _interpreted()


def on(x: Tensor) -> AbstractContextManager[Any]:
    """Launches go to the current device, which need not be the tensors'."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
