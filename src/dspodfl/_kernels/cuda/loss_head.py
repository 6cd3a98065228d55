"""The last layer of a network and its loss, of many clients in one pass: forward and backward.

    s = x Wᵀ + b,   σ = (1/B) ∂ℓ(s, y)/∂s,   ∂/∂W = σᵀx + λW,   ∂/∂b = Σσ + λb,   ∂/∂x = σW

A program owns a client. The reference implementation is the PyTorch code in
`dspodfl.problem.models.stacked.network.Stacked.gradient`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspodfl._kernels.cuda.conv import Precision
from dspodfl._kernels.triton_support import early, gdc_launch_dependents, gdc_wait, jit, power_of_two, tl, usable

_LARGEST = {"features": 1024, "outputs": 64, "batch": 64}


def available(x: Tensor, theta: Tensor, outputs: int) -> bool:
    """Whether the kernel takes it. Shapes: x (G, B, F), theta (n, width)."""
    sizes = {"features": x.shape[2], "outputs": outputs, "batch": x.shape[1]}
    return usable(x.device) and theta.dtype == torch.float32 and all(sizes[k] <= _LARGEST[k] for k in sizes)


@jit
def _head(
    x,
    y,
    theta,
    index,
    out,
    grad_x,
    theta_client,
    out_client,
    weight,
    bias,
    penalty,
    batch,
    outputs,
    features,
    INDEXED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    LOSS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    client = tl.program_id(0).to(tl.int64)
    owner = tl.load(index + client) if INDEXED else client
    theta += owner * theta_client
    out += client * out_client
    b = tl.arange(0, BLOCK_B)
    c = tl.arange(0, BLOCK_C)
    f = tl.arange(0, BLOCK_F)
    x_at = (client * batch + b)[:, None] * features + f[None, :]
    w_at = weight + c[:, None] * features + f[None, :]
    b_inside = (b < batch)[:, None]
    c_inside = (c < outputs)[:, None]

    scores = tl.zeros((BLOCK_B, BLOCK_C), dtype=tl.float32)
    for start in range(0, features, BLOCK_F):
        here = (start + f < features)[None, :]
        inputs = tl.load(x + start + x_at, mask=b_inside & here, other=0.0).to(tl.float32)
        weights = tl.load(theta + start + w_at, mask=c_inside & here, other=0.0)
        scores = tl.dot(inputs, tl.trans(weights), scores, input_precision=PRECISION)
    if HAS_BIAS:
        biases = tl.load(theta + bias + c, mask=c < outputs, other=0.0)
        scores += biases[None, :]

    target = tl.load(y + client * batch + b, mask=b < batch, other=0)
    exists = b_inside & (c < outputs)[None, :]
    if LOSS == "squared_error":
        grad = (scores - target[:, None].to(tl.float32)) / batch
    else:
        label = c[None, :] == target[:, None]
        if LOSS == "cross_entropy":
            scores = tl.where((c < outputs)[None, :], scores, float("-inf"))
            power = tl.exp(scores - tl.max(scores, axis=1)[:, None])
            grad = (power / tl.sum(power, axis=1)[:, None] - label.to(tl.float32)) / batch
        else:
            own = tl.sum(tl.where(label, scores, 0.0), axis=1)
            pushed = ((1 - own[:, None] + scores > 0) & (c[None, :] != target[:, None]) & exists).to(tl.float32)
            grad = (pushed - label.to(tl.float32) * tl.sum(pushed, axis=1)[:, None]) / (outputs * batch)
    grad = tl.where(exists, grad, 0.0)
    if HAS_BIAS:
        tl.store(out + bias + c, tl.sum(grad, axis=0) + penalty * biases, mask=c < outputs)
    for start in range(0, features, BLOCK_F):
        here = (start + f < features)[None, :]
        inputs = tl.load(x + start + x_at, mask=b_inside & here, other=0.0).to(tl.float32)
        weights = tl.load(theta + start + w_at, mask=c_inside & here, other=0.0)
        by_weights = tl.dot(tl.trans(grad), inputs, input_precision=PRECISION) + penalty * weights
        tl.store(out + start + w_at, by_weights, mask=c_inside & here)
        tl.store(grad_x + start + x_at, tl.dot(grad, weights, input_precision=PRECISION), mask=b_inside & here)


def gradient(
    x: Tensor,
    y: Tensor,
    theta: Tensor,
    weight: int,
    bias: int | None,
    outputs: int,
    out: Tensor,
    *,
    loss: str,
    l2: float = 0.0,
    precision: Precision = "fp32",
    index: Tensor | None = None,
) -> Tensor:
    """Write the gradients with respect to weights and biases into ``out``, at the offsets that they have in ``theta``.

    Returns the gradients with respect to the inputs.
    Shapes: x (G, B, F), y (G, B), theta (n, width), out (G, width), index (G,) -> (G, B, F).
    """
    clients, batch, features = x.shape
    x = x.contiguous()
    grad_x = torch.empty(clients, batch, features, device=x.device)
    # All features in one block, where they fit; exact products of that size take too long to compile.
    large = precision != "fp32" and max(batch, outputs) <= 16
    cut = {"BLOCK_F": min(512, power_of_two(features)), "num_warps": 8} if large else {"BLOCK_F": 64, "num_warps": 4}
    with torch.cuda.device(x.device):
        _head[(clients,)](
            x, y.contiguous(), theta, index, out, grad_x, theta.stride(0), out.stride(0), weight, bias or 0, l2,
            batch, outputs, features, INDEXED=index is not None, HAS_BIAS=bias is not None, LOSS=loss,
            PRECISION="ieee" if precision == "fp32" else "tf32",
            BLOCK_B=power_of_two(batch), BLOCK_C=power_of_two(outputs), **cut, **early(x.device),
        )  # fmt: skip
    return grad_x
