"""Convolutions of many clients in plain PyTorch: the reference implementations of `conv`, which explains the arguments.

They run where Triton does not, in any dtype, and say what the kernels are to compute: neighbourhoods of pixels are
written out, so that a convolution is one product of matrices a client.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from dspodfl._kernels.cuda.conv_terms import POSITIONS, Gate, Precision, gated, stored


def forward_reference(
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
    """`forward` in plain PyTorch."""
    clients, images, height, width, channels = x.shape
    owned = theta if index is None else theta[index]
    columns = POSITIONS * channels
    weights = owned[:, weight : weight + out_channels * columns].unflatten(1, (out_channels, columns))
    out = _rounded(_neighbourhoods(x, theta.dtype), precision) @ _rounded(weights, precision).mT
    if bias is not None:
        out += owned[:, None, bias : bias + out_channels]
    out = out.view(clients, images, height, width, out_channels)
    code = None
    if relu:
        out = torch.relu(out)
    if pool:
        out, code = max_pool_reference(out)
        if relu:
            code[out <= 0] = 4
    return out.to(stored(precision, theta.dtype)), code


def input_gradient_reference(
    grad: Tensor,
    theta: Tensor,
    weight: int,
    channels: int,
    *,
    gate: Gate | None = None,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> Tensor:
    """`input_gradient` in plain PyTorch."""
    clients, images, height, width, out_channels = grad.shape
    owned = theta if index is None else theta[index]
    columns = POSITIONS * channels
    weights = owned[:, weight : weight + out_channels * columns].unflatten(1, (out_channels, columns))
    flat = _rounded(grad.reshape(clients, -1, out_channels).to(theta.dtype), precision) @ _rounded(weights, precision)
    positions = flat.view(clients, images, height, width, POSITIONS, channels)
    out = torch.zeros(clients, images, height + 2, width + 2, channels, dtype=theta.dtype, device=grad.device)
    for position in range(POSITIONS):
        h, w = position // 3, position % 3
        out[:, :, h : h + height, w : w + width] += positions[:, :, :, :, position]
    out = out[:, :, 1:-1, 1:-1].to(stored(precision, theta.dtype))
    return through_reference(out, gate) if gate is not None else out.contiguous()


def through_reference(grad: Tensor, gate: Gate, *, precision: Precision = "fp32") -> Tensor:
    """`through` in plain PyTorch."""
    if gate.code is None:
        return grad if gate.output is None else torch.where(gate.output <= 0, 0, grad)
    height, width = grad.shape[2:4]
    out = gated(grad, gate, grad.shape[4])
    for place in range(4):
        rows, columns = slice(place // 2, 2 * height, 2), slice(place % 2, 2 * width, 2)
        out[:, :, rows, columns] = torch.where(gate.code == place, grad, 0)
    return out


def weight_gradient_reference(
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
    """`weight_gradient` in plain PyTorch."""
    out_channels = grad.shape[4]
    flat = grad.reshape(len(grad), -1, out_channels).to(out.dtype)
    found = (_rounded(flat, precision).mT @ _rounded(_neighbourhoods(x, out.dtype), precision)).flatten(1)
    parts = [(weight, found)] if bias is None else [(weight, found), (bias, flat.sum(dim=1))]
    for offset, value in parts:
        if l2 and theta is not None:
            here = theta[:, offset : offset + value.shape[1]]
            value = value + l2 * (here if index is None else here[index])
        out[:, offset : offset + value.shape[1]] = value


def max_pool_reference(x: Tensor) -> tuple[Tensor, Tensor]:
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
    positions = [padded[:, :, t // 3 : t // 3 + height, t % 3 : t % 3 + width] for t in range(POSITIONS)]
    return torch.stack(positions, dim=4).reshape(clients, -1, POSITIONS * x.shape[4])


def _rounded(value: Tensor, precision: Precision) -> Tensor:
    return value.bfloat16().to(value.dtype) if precision == "bf16" else value
