"""Terms that convolutions, their reference implementations and their tiling share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["fp32", "tf32", "bf16"]
POSITIONS = 9
"""Positions of a 3×3 kernel, in scan order."""


def stored(precision: Precision, dtype: torch.dtype) -> torch.dtype:
    """The dtype of activations."""
    return torch.bfloat16 if precision == "bf16" else dtype


@dataclass(frozen=True)
class Gate:
    """What is between a convolution's pre-activations and its outputs, as the backward pass needs it.

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


def gated(grad: Tensor, gate: Gate, out_channels: int) -> Tensor:
    """Room for gradients with respect to a gate's inputs; zeros where its pooling leaves out a last row or column."""
    clients, images, height, width, _ = grad.shape
    if gate.code is None:
        return torch.empty(clients, images, height, width, out_channels, dtype=grad.dtype, device=grad.device)
    odd = gate.height % 2 or gate.width % 2
    make = torch.zeros if odd else torch.empty
    return make(clients, images, gate.height, gate.width, out_channels, dtype=grad.dtype, device=grad.device)
