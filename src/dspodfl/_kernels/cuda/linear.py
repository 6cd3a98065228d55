"""Steps of linear models on a GPU: −αVG of all clients in one kernel, written where the new models will be stored.

A program computes one client: s = Wx, −(α/B) ∂ℓ/∂s, and its products with the samples, which are stored as bytes (or
float32) and are gathered and normalized where they are used. Clients that take no step cost nothing. Mixing then adds
PΘ (`dspodfl._kernels.cuda.mixing`): no gradient is ever stored next to the models. The reference implementation is
`dspodfl.problem.models.linear.linear_gradient`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspodfl._kernels.triton_support import jit, power_of_two, tl, usable

LOSSES = {"hinge": 0, "cross_entropy": 1, "squared_error": 2}
_STEPS = {"F": 32, "num_warps": 4, "num_stages": 3}  # inputs that a program takes at a time, and how; measured
_MOST_OUTPUTS, _MOST_SAMPLES = 64, 128


def available(device: torch.device, dtype: torch.dtype, outputs: int, batch_size: int) -> bool:
    """Whether these kernels work for such a model there."""
    fits = outputs <= _MOST_OUTPUTS and batch_size <= _MOST_SAMPLES
    return usable(device) and dtype == torch.float32 and fits


@jit
def _inputs(x, rows, scale, shift, feature, D, sampled, BIAS: tl.constexpr):
    """A tile of normalized inputs (samples, features); the feature after the last is the constant 1 of the biases."""
    raw = tl.load(x + rows[:, None] * D + feature[None, :], mask=sampled[:, None] & (feature < D)[None, :], other=0)
    value = tl.where((feature < D)[None, :], raw.to(tl.float32) * scale + shift, 0.0)
    if BIAS:
        value = tl.where((feature == D)[None, :], 1.0, value)
    return tl.where(sampled[:, None], value, 0.0)


@jit
def _product(a, b, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@jit
def _steps(
    theta, out, x, y, rows, batch_of, step, at, scale, shift, l2, clients, drawn, D, stride,
    C: tl.constexpr, B: tl.constexpr, BIAS: tl.constexpr, L2: tl.constexpr, LOSS: tl.constexpr,
    CP: tl.constexpr, BP: tl.constexpr, F: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    t = tl.load(at).to(tl.int64)
    a = tl.load(step + t * clients + n)
    if a != 0.0:
        c = tl.arange(0, CP)
        b = tl.arange(0, BP)
        sample = (t * drawn + tl.load(batch_of + n)) * B + b
        row = tl.load(rows + sample, mask=b < B, other=0).to(tl.int64)
        start = n.to(tl.int64) * C * stride
        s = tl.zeros((CP, BP), dtype=tl.float32)
        for first in range(0, stride, F):
            f = first + tl.arange(0, F)
            inside = (c < C)[:, None] & (f < stride)[None, :]
            w = tl.load(theta + start + c[:, None] * stride + f[None, :], mask=inside, other=0.0)
            value = _inputs(x, row, scale, shift, f, D, b < B, BIAS)
            s += _product(w, tl.trans(value), PRECISION)
        label = tl.load(y + row, mask=b < B, other=0)
        real = (c < C)[:, None] & (b < B)[None, :]
        if LOSS == 2:
            grad = s - label[None, :]
        else:
            hit = c[:, None] == label[None, :]
            if LOSS == 0:
                mine = tl.sum(tl.where(hit, s, 0.0), axis=0)
                over = (1.0 - mine[None, :] + s > 0.0) & (c[:, None] != label[None, :]) & real
                share = tl.where(over, 1.0 / C, 0.0)
                grad = tl.where(hit, -tl.sum(share, axis=0)[None, :], share)
            else:
                s = tl.where(real, s, float("-inf"))
                e = tl.exp(s - tl.max(s, axis=0)[None, :])
                grad = e / tl.sum(e, axis=0)[None, :] - tl.where(hit, 1.0, 0.0)
        grad = tl.where(real, grad * (-a / B), 0.0)
        for first in range(0, stride, F):
            f = first + tl.arange(0, F)
            inside = (c < C)[:, None] & (f < stride)[None, :]
            place = start + c[:, None] * stride + f[None, :]
            value = _inputs(x, row, scale, shift, f, D, b < B, BIAS)
            move = _product(grad, value, PRECISION)
            if L2:
                move -= (a * l2) * tl.load(theta + place, mask=inside, other=0.0)
            tl.store(out + place, move, mask=inside)


@dataclass(frozen=True, eq=False)
class Steps:
    """What stays the same from iteration to iteration: data, the shape of the models, the loss."""

    x: Tensor  # (samples, D) uint8 or float32
    y: Tensor  # (samples,) labels or targets
    scale: float
    shift: float
    batch_of: Tensor  # (clients,) column of the drawn rows that each client uses
    outputs: int
    stride: int  # numbers from one output's weights to the next
    bias: bool
    loss: str
    l2: float
    precision: str  # tf32, fp32 or bf16

    def move(self, theta: Tensor, out: Tensor, rows: Tensor, step: Tensor, at: Tensor) -> None:
        """Rows of out ← −diag(step(t)) G(Θ), of clients whose step is not 0, t being the number that ``at`` holds.

        Shapes: theta, out (clients, outputs · stride), rows (T, drawn, B) int32, step (T, clients).
        """
        batch = rows.shape[2]
        _steps[(len(theta),)](
            theta, out, self.x, self.y, rows, self.batch_of, step, at,
            self.scale, self.shift, self.l2, len(theta), rows.shape[1], self.x.shape[1], self.stride,
            C=self.outputs, B=batch, BIAS=self.bias, L2=self.l2 != 0, LOSS=LOSSES[self.loss],
            CP=power_of_two(self.outputs), BP=power_of_two(batch),
            PRECISION="ieee" if self.precision == "fp32" else self.precision, **_STEPS,
        )  # fmt: skip
