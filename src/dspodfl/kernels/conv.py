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

Every function has a twin in plain PyTorch, ``<name>_twin``, of the same signature: what runs where Triton does not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from dspodfl.kernels import _triton

if _triton.found:
    from dspodfl.kernels import _conv

Precision = Literal["fp32", "tf32", "bf16"]
TAPS = 9


@dataclass(frozen=True)
class Gate:
    """What lies between a convolution's sums and its outputs, as the way back needs it.

    ``output`` for ReLU alone; ``code`` with pooling, whose inputs were ``height`` × ``width``.
    """

    output: Tensor | None = None
    code: Tensor | None = None
    height: int = 0
    width: int = 0

    @property
    def kind(self) -> str:
        """The name that the kernels know it by."""
        return "pool" if self.code is not None else "relu" if self.output is not None else "none"


def available(device: torch.device | str, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the kernels run there, rather than their twins."""
    return dtype == torch.float32 and (_triton.usable(device) or _interpreted())


def _interpreted() -> bool:
    return _triton.found and bool(_triton.triton.knobs.runtime.interpret)


def stored(precision: Precision, dtype: torch.dtype) -> torch.dtype:
    """The dtype of activations."""
    return torch.bfloat16 if precision == "bf16" else dtype


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
    shape = _product_shape(x.device, clients, rows, maps, channels, precision, not x.is_contiguous(), back=False)
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
    out = _gated(slope, gate, channels)
    rows = images * height * width
    shape = _product_shape(slope.device, clients, rows, channels, maps, precision, False, back=True)
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
    out = _gated(slope, gate, maps)
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
    shape = _weight_shape(x.device, clients, rows, maps, channels, precision, not x.is_contiguous())
    count = (columns + 1) * maps
    partial = torch.empty(shape.splits * clients * count, device=x.device) if shape.splits > 1 else out
    where = theta if theta is not None else out
    with on(x):
        tiles = _cdiv(columns, shape.k) + (bias is not None)
        _conv.weight_product[(_cdiv(maps, shape.n) * tiles, shape.splits, clients)](
            x, slope, where, index, out, partial, *x.stride(), where.stride(0), out.stride(0), weight, bias or 0,
            l2, rows, channels, maps, shape.splits, HEIGHT=height, WIDTH=width,
            INDEXED=index is not None, FLAT=channels if shape.flat else 0, SPLIT=shape.splits > 1, PENALTY=l2 != 0,
            HAS_BIAS=int(bias is not None), BF16=precision == "bf16", PRECISION=_DOT[precision],
            SWAP=shape.swap, HOLD=0 if _interpreted() else shape.round,
            BLOCK_M=shape.m, BLOCK_N=shape.n, BLOCK_K=shape.k, num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip
        if shape.splits > 1:
            count = count if bias is not None else columns * maps
            _conv.weight_finish[(_cdiv(count, 512), clients)](
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
        _conv.pool[(_cdiv(cells, block[0]) * _cdiv(maps, block[1]),)](
            x, out, code, cells, height, width, maps, BLOCK_M=block[0], BLOCK_N=block[1]
        )
    return out, code


def max_pool_gradient(slope: Tensor, code: Tensor, height: int, width: int) -> Tensor:
    """Slopes by the inputs of pooling, which were ``height`` × ``width``, from those by its outputs."""
    return through(slope, Gate(code=code, height=height, width=width))


# The twins.


def forward_twin(
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
    """`forward` in plain PyTorch."""
    clients, images, height, width, channels = x.shape
    owned = theta if index is None else theta[index]
    columns = TAPS * channels
    weights = owned[:, weight : weight + maps * columns].unflatten(1, (maps, columns))
    out = _rounded(_neighbourhoods(x, theta.dtype), precision) @ _rounded(weights, precision).mT
    if bias is not None:
        out += owned[:, None, bias : bias + maps]
    out = out.view(clients, images, height, width, maps)
    code = None
    if relu:
        out = torch.relu(out)
    if pool:
        out, code = max_pool_twin(out)
        if relu:
            code[out <= 0] = 4
    return out.to(stored(precision, theta.dtype)), code


def input_gradient_twin(
    slope: Tensor,
    theta: Tensor,
    weight: int,
    channels: int,
    *,
    gate: Gate | None = None,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> Tensor:
    """`input_gradient` in plain PyTorch."""
    clients, images, height, width, maps = slope.shape
    owned = theta if index is None else theta[index]
    columns = TAPS * channels
    weights = owned[:, weight : weight + maps * columns].unflatten(1, (maps, columns))
    flat = _rounded(slope.reshape(clients, -1, maps).to(theta.dtype), precision) @ _rounded(weights, precision)
    taps = flat.view(clients, images, height, width, TAPS, channels)
    out = torch.zeros(clients, images, height + 2, width + 2, channels, dtype=theta.dtype, device=slope.device)
    for tap in range(TAPS):
        out[:, :, tap // 3 : tap // 3 + height, tap % 3 : tap % 3 + width] += taps[:, :, :, :, tap]
    out = out[:, :, 1:-1, 1:-1].to(stored(precision, theta.dtype))
    return through_twin(out, gate) if gate is not None else out.contiguous()


def through_twin(slope: Tensor, gate: Gate, *, precision: Precision = "fp32") -> Tensor:
    """`through` in plain PyTorch."""
    if gate.code is None:
        return slope if gate.output is None else torch.where(gate.output <= 0, 0, slope)
    height, width = slope.shape[2:4]
    out = _gated(slope, gate, slope.shape[4])
    for place in range(4):
        rows, columns = slice(place // 2, 2 * height, 2), slice(place % 2, 2 * width, 2)
        out[:, :, rows, columns] = torch.where(gate.code == place, slope, 0)
    return out


def weight_gradient_twin(
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
    """`weight_gradient` in plain PyTorch."""
    maps = slope.shape[4]
    flat = slope.reshape(len(slope), -1, maps).to(out.dtype)
    found = (_rounded(flat, precision).mT @ _rounded(_neighbourhoods(x, out.dtype), precision)).flatten(1)
    parts = [(weight, found)] if bias is None else [(weight, found), (bias, flat.sum(dim=1))]
    for offset, value in parts:
        if l2 and theta is not None:
            here = theta[:, offset : offset + value.shape[1]]
            value = value + l2 * (here if index is None else here[index])
        out[:, offset : offset + value.shape[1]] = value


def max_pool_twin(x: Tensor) -> tuple[Tensor, Tensor]:
    """`max_pool` in plain PyTorch."""
    height, width = x.shape[2] // 2, x.shape[3] // 2
    value = x[:, :, : 2 * height : 2, : 2 * width : 2]
    code = torch.zeros(value.shape, dtype=torch.int8, device=x.device)
    for place in range(1, 4):
        other = x[:, :, place // 2 : 2 * height : 2, place % 2 : 2 * width : 2]
        wins = (other > value) | other.isnan()
        value, code = torch.where(wins, other, value), torch.where(wins, place, code)
    return value, code


def _neighbourhoods(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The 3×3 surroundings of every pixel. Shapes: (G, B, H, W, C) -> (G, B·H·W, 9·C)."""
    clients, _, height, width, _ = x.shape
    padded = pad(x.to(dtype), (0, 0, 1, 1, 1, 1))
    taps = [padded[:, :, t // 3 : t // 3 + height, t % 3 : t % 3 + width] for t in range(TAPS)]
    return torch.stack(taps, dim=4).reshape(clients, -1, TAPS * x.shape[4])


def _rounded(value: Tensor, precision: Precision) -> Tensor:
    return value.bfloat16().to(value.dtype) if precision == "bf16" else value


def _gated(slope: Tensor, gate: Gate, maps: int) -> Tensor:
    """Room for slopes before a gate; zeros where its pooling leaves out a last row or column."""
    clients, images, height, width, _ = slope.shape
    if gate.code is None:
        return torch.empty(clients, images, height, width, maps, dtype=slope.dtype, device=slope.device)
    odd = gate.height % 2 or gate.width % 2
    make = torch.zeros if odd else torch.empty
    return make(clients, images, gate.height, gate.width, maps, dtype=slope.dtype, device=slope.device)


# Launches.


@dataclass(frozen=True)
class Shape:
    """How a product is cut: block sizes, warps, stages of the pipeline, parts of its sum, which factor is left.

    ``round``: bits for the factors that are rounded on their way (1: weights, 2: pixels), or, of sums over pixels, that
    pass through registers (1: slopes, 2: pixels). ``flat``: taps and channels count as one axis.
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


_DOT = {"fp32": "ieee", "tf32": "tf32", "bf16": "tf32"}


@cache
def _chip(device: torch.device) -> tuple[int, bool]:
    """The number of a device's processors, and whether one has the memory for large blocks."""
    if device.type != "cuda":
        return 132, True
    roomy = torch.cuda.get_device_capability(device)[0] in {9, 10}  # 227 KB of it; the others have at most 163
    return torch.cuda.get_device_properties(device).multi_processor_count, roomy


def _product_shape(
    device: torch.device,
    clients: int,
    rows: int,
    maps: int,
    channels: int,
    precision: Precision,
    strided: bool,
    *,
    back: bool,
) -> Shape:
    """The cut of a sum over 9 × ``channels`` for ``rows`` × ``maps`` results a client.

    Measured with VGG11 (3, 5, 10 and 110 clients, 16 images each; 11 clients, 138 images); what is not like its layers
    gets what is nearest.
    """
    n = min(64, _power(maps))
    processors, roomy = _chip(device)
    tf32 = precision == "tf32"
    if channels % 16 or strided:
        return Shape(128, n, 32, 4, 1, swap=n == 64, round=3 if tf32 else 0, flat=True)
    k = 32 if channels % 32 == 0 else 16
    if precision == "fp32":
        return Shape(64, n, 16, 4, 2)
    steps = TAPS * channels // k
    wide = precision == "bf16" and channels % 64 == 0
    if n < 64:
        shape = Shape(64, n, k, 4, 4)
    elif rows <= 128:
        shape = Shape(64, 64, 64 if channels % 64 == 0 else k, 4, 3, swap=back or not tf32)
    elif wide and roomy and rows % 256 == 0 and maps % 128 == 0:
        shape = Shape(256, 128, 64, 8, 3, swap=True)
    elif tf32 and roomy and maps % 64 == 0 and clients * _cdiv(rows, 128) * maps >= _PLENTY * processors * 128:
        # Large blocks read the least; there are enough of them to keep all processors busy to the end.
        shape = _large(rows, maps, k, back)
    elif maps % 128 == 0 and tf32:
        # Blocks half as large are as fast where there are enough of them without parting the sum.
        halves = clients * _cdiv(rows, 64) * (maps // 128)
        many = not back and (halves >= 2 * processors or steps < _SHORT)
        shape = Shape(64 if many else 128, 128, k, 4, 3, swap=back)
    else:
        shape = Shape(64 if back and maps == 64 else 128, 64, k, 4, 3 if tf32 else 4, swap=back or not tf32)
    blocks = clients * _cdiv(rows, shape.m) * _cdiv(maps, shape.n)
    # As many programs as fit the device at once: one of the large ones a processor, three of the small.
    room = {256: 1, 128: 2, 64: 3 if tf32 and rows > 128 else 2}[shape.m] * processors
    # On the way back slopes by weights are computed beside: fewer parts fill the device.
    most = 1 if steps < _SHORT else min(steps * k // (8 * shape.k), 8, max(3, 24 // clients) if back else 8)
    splits = _splits(blocks, room, most)
    return replace(shape, splits=splits, round=1 if tf32 and shape.swap else 0)


def _large(rows: int, maps: int, k: int, back: bool) -> Shape:
    """The cut where there is plenty to do."""
    if maps % 128:
        return Shape(256 if back else 128, 64, k, 4, 3, swap=back)
    if back:
        return Shape(256, 128, k, 8, 3, swap=True) if rows % 256 == 0 and maps > 128 else Shape(128, 128, k, swap=True)
    return Shape(128, 256, k, 8, 3) if maps % 256 == 0 else Shape(128, 128, k)


_PLENTY = 4
"""So many blocks of 128 × 128 a processor are plenty."""
_SHORT = 24
"""Sums of fewer steps are not parted."""
_PARTING = 0.04
"""What one more part of a sum costs, as a share of the whole."""


def _splits(blocks: int, room: int, most: int) -> int:
    """Into how many parts to cut a sum, so that rounds of ``room`` programs are full; parts cost something, too."""
    if blocks >= room:
        return 1

    def worth(parts: int) -> float:
        programs = blocks * parts
        return programs / (_cdiv(programs, room) * room) * (1 - _PARTING * (parts - 1))

    return max(range(1, max(1, most) + 1), key=worth)


def _weight_shape(
    device: torch.device, clients: int, rows: int, maps: int, channels: int, precision: Precision, strided: bool
) -> Shape:
    """The cut of a sum over ``rows`` for ``maps`` × 9·``channels`` results a client; measured like the other."""
    n = min(64, _power(maps))
    flat = bool(channels % 16) or strided
    k = 32 if flat else next(k for k in (64, 32, 16) if channels % k == 0)
    hold = 1 if precision == "tf32" else 0
    if precision == "fp32":
        shape = Shape(16, n, k, 4, 3)
    elif flat:
        shape = Shape(64, n, k, 4, 1, round=hold)
    elif precision == "tf32":
        # The tensor instructions of two warps take float32 factors that lie across the sum; those of four do not.
        shape = Shape(32, 128 if maps % 128 == 0 else n, k, 2, 3)
    elif channels % 128 == 0:
        shape = Shape(32, 128, 128, 4, 4) if maps % 128 == 0 and rows > 64 else Shape(64, n, 128, 4, 2)
    else:
        shape = Shape(64, 128 if maps % 128 == 0 else n, k, 4, 3)
    blocks = clients * _cdiv(maps, shape.n) * _cdiv(TAPS * channels, shape.k)
    room = (3 if shape.warps == 2 else 2) * _chip(device)[0]
    splits = max(1, min(room // blocks, rows // (8 * shape.m)))
    return replace(shape, splits=splits, flat=flat)


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
        _conv.product[(_cdiv(rows, shape.m) * _cdiv(maps, shape.n), shape.splits, clients)](
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
        _conv.finish[(_cdiv(rows, block[0]) * _cdiv(maps, block[1]), clients)](
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


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _power(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())
