"""What convolutions, their twins and their cuts all speak of: precisions, taps and gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["fp32", "tf32", "bf16"]
TAPS = 9


def stored(precision: Precision, dtype: torch.dtype) -> torch.dtype:
    """The dtype of activations."""
    return torch.bfloat16 if precision == "bf16" else dtype


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


def gated(slope: Tensor, gate: Gate, maps: int) -> Tensor:
    """Room for slopes before a gate; zeros where its pooling leaves out a last row or column."""
    clients, images, height, width, _ = slope.shape
    if gate.code is None:
        return torch.empty(clients, images, height, width, maps, dtype=slope.dtype, device=slope.device)
    odd = gate.height % 2 or gate.width % 2
    make = torch.zeros if odd else torch.empty
    return make(clients, images, gate.height, gate.width, maps, dtype=slope.dtype, device=slope.device)
