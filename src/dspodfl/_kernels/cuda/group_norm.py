"""Group normalization of many clients in one call, each with its own scales and shifts: forward and backward pass.

Activations are (clients, images, height, width, channels). ReLU and 2×2 max pooling behind the normalization are parts
of it, as they are of a convolution (see `conv`, whose conventions hold here). *Statistics* are saved for the backward
pass as well: mean and 1 / deviation of each channel's group, (clients, images, 2, channels).

Every function has a reference implementation in plain PyTorch, ``<name>_reference``, of the same signature: it runs
where Triton does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspodfl._kernels import triton_support as _triton
from dspodfl._kernels.cuda import conv
from dspodfl._kernels.cuda.conv import Precision
from dspodfl._kernels.cuda.conv_reference import max_pool_reference

if _triton.found:
    from dspodfl._kernels.cuda import _group_norm as _norm

_WIDEST = 64
"""Channels that a program takes at most; a larger group is left to the reference implementation."""
_PIXELS = 64


@dataclass(frozen=True)
class Groups:
    """How channels are normalized: in ``count`` groups; scale and shift are at offsets of a row of parameters."""

    count: int
    eps: float
    weight: int | None = None
    bias: int | None = None


def available(x: Tensor, theta: Tensor, groups: Groups) -> bool:
    """Whether the kernels take it: groups of a power of two of channels, scale and shift both or neither."""
    size = x.shape[4] // groups.count
    fits = size & (size - 1) == 0 and size <= _WIDEST and (groups.weight is None) == (groups.bias is None)
    return fits and conv.available(x.device, theta.dtype)


def forward(
    x: Tensor,
    theta: Tensor,
    groups: Groups,
    *,
    relu: bool = False,
    pool: bool = False,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Outputs, with pooling their codes, and the statistics.

    Shapes: x (G, B, H, W, C), contiguous, theta (n, width), index (G,) -> (G, B, H', W', C), the same, (G, B, 2, C).
    """
    if not available(x, theta, groups):
        return forward_reference(x, theta, groups, relu=relu, pool=pool, precision=precision, index=index)
    clients, images, height, width, channels = x.shape
    h, w = (height // 2, width // 2) if pool else (height, width)
    out = torch.empty(clients, images, h, w, channels, dtype=x.dtype, device=x.device)
    code = torch.empty(out.shape, dtype=torch.int8, device=x.device) if pool else None
    stats = torch.empty(clients, images, 2, channels, device=x.device)
    grid, blocks = _cut(x, groups)
    with conv.on(x):
        _norm.forward[grid](
            x, out, out if code is None else code, stats, theta, index, theta.stride(0),
            groups.weight or 0, groups.bias or 0, images, height, width, channels, groups.eps,
            INDEXED=index is not None, AFFINE=groups.weight is not None, RELU=relu, POOL=pool,
            TF32=conv.stores_tf32(precision), **blocks,
        )  # fmt: skip
    return out, code, stats


def backward(
    grad: Tensor,
    x: Tensor,
    stats: Tensor,
    theta: Tensor,
    groups: Groups,
    *,
    inputs: bool = True,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Return gradients with respect to the inputs, if ``inputs``, and sums over the pixels of each image.

    ``grad`` is the gradient with respect to the outputs before ReLU and pooling. The sums are those of ``grad``, and of
    ``grad`` times normalized inputs: over all images they are the gradients with respect to shifts and to scales.
    Shapes: grad, x (G, B, H, W, C) -> the same, (G, B, 2, C).
    """
    if not available(x, theta, groups):
        return backward_reference(grad, x, stats, theta, groups, inputs=inputs, precision=precision, index=index)
    images, height, width, channels = x.shape[1:]
    out, sums = torch.empty_like(x) if inputs else None, torch.empty_like(stats)
    grid, blocks = _cut(x, groups)
    with conv.on(x):
        _norm.backward[grid](
            grad.contiguous(), x, stats, theta, index, x if out is None else out, sums,
            theta.stride(0), groups.weight or 0, images, height * width, channels,
            INDEXED=index is not None, AFFINE=groups.weight is not None, INPUTS=inputs,
            TF32=conv.stores_tf32(precision), **blocks,
        )  # fmt: skip
    return out, sums


def _cut(x: Tensor, groups: Groups) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid, and the blocks that a program computes."""
    clients, images, height, width, channels = x.shape
    size = channels // groups.count
    block = max(size, min(32, _triton.power_of_two(channels)))
    pixels = min(_PIXELS, _triton.power_of_two(height * width, 4))
    blocks = {"GROUP": size, "BLOCK_P": pixels, "BLOCK_C": block, "num_warps": 4 if pixels * block >= 1024 else 1}
    return (clients * images, -(-channels // block)), blocks


# The reference implementations.


def forward_reference(
    x: Tensor,
    theta: Tensor,
    groups: Groups,
    *,
    relu: bool = False,
    pool: bool = False,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """`forward` in plain PyTorch."""
    parts = _grouped(x.to(theta.dtype), groups)
    variance, mean = torch.var_mean(parts, dim=(2, 4), correction=0)
    each = [value.repeat_interleave(parts.shape[4], dim=2) for value in (mean, torch.rsqrt(variance + groups.eps))]
    stats = torch.stack(each, dim=2)
    out = _unit(x.to(theta.dtype), stats)
    if groups.weight is not None:
        out = out * _own(theta, groups.weight, x.shape[4], index)
    if groups.bias is not None:
        out = out + _own(theta, groups.bias, x.shape[4], index)
    code = None
    if relu:
        out = torch.relu(out)
    if pool:
        out, code = max_pool_reference(out)
        if relu:
            code[out <= 0] = 4
    return out.to(x.dtype), code, stats


def backward_reference(
    grad: Tensor,
    x: Tensor,
    stats: Tensor,
    theta: Tensor,
    groups: Groups,
    *,
    inputs: bool = True,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> tuple[Tensor | None, Tensor]:
    """`backward` in plain PyTorch."""
    grad, unit = grad.to(theta.dtype), _unit(x.to(theta.dtype), stats)
    sums = torch.stack([grad.sum(dim=(2, 3)), (grad * unit).sum(dim=(2, 3))], dim=2)
    if not inputs:
        return None, sums
    if groups.weight is not None:
        grad = grad * _own(theta, groups.weight, x.shape[4], index)
    parts, units = _grouped(grad, groups), _grouped(unit, groups)
    along = (parts * units).mean(dim=(2, 4), keepdim=True)
    parts = parts - parts.mean(dim=(2, 4), keepdim=True) - units * along
    return (parts.view(x.shape) * _each(stats[:, :, 1])).to(x.dtype), sums


def _grouped(x: Tensor, groups: Groups) -> Tensor:
    """Shapes: (G, B, H, W, C) -> (G, B, pixels, groups, C / groups)."""
    return x.reshape(*x.shape[:2], -1, groups.count, x.shape[-1] // groups.count)


def _each(value: Tensor) -> Tensor:
    """Of every image, for its pixels. Shapes: (G, B, C) -> (G, B, 1, 1, C)."""
    return value[:, :, None, None]


def _unit(x: Tensor, stats: Tensor) -> Tensor:
    return (x - _each(stats[:, :, 0])) * _each(stats[:, :, 1])


def _own(theta: Tensor, offset: int, channels: int, index: Tensor | None) -> Tensor:
    """Each client's numbers at an offset. Shapes: (G, 1, 1, 1, C)."""
    value = theta[:, offset : offset + channels]
    return (value if index is None else value[index])[:, None, None, None]
