"""Compiled code for the linear models of a shard: their gradients and their mixing, for rules without a kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.cpu import linear, methods
from dspodfl.engine.exchange import Split
from dspodfl.problem import Problem
from dspodfl.problem.models import has_bias


def available(problem: Problem) -> bool:
    """Whether there is compiled code for a problem.

    Args:
        problem: Data and model.
    """
    exact = problem.compute == problem.dtype and problem.device.type == "cpu"
    return problem.model.is_linear and exact and linear.available()


def prepared(split: Split, problem: Problem) -> methods.Methods:
    """Return compiled code for the clients of a shard.

    Args:
        split: The clients held here.
        problem: Data and model of these clients.
    """
    links = split.shard.neighbours
    return methods.Methods(
        problem.x.numpy(),
        problem.scale,
        problem.shift,
        problem.y.numpy(),
        problem.batch_of.numpy(),
        links.ptr,
        links.col,
        links.link,
        np.array([0, *(rows.stop for rows in split.shard.rows)]),
        width=problem.width,
        dtype=str(problem.dtype).removeprefix("torch."),
        loss=problem.model.loss,
        bias=has_bias(problem.model),
        l2=problem.model.l2,
        batch=problem.batch_size,
    )


class LinearOperations:
    """Gradients of linear models, and P(k)x of rows as wide as a model, in compiled code: no step of PyTorch's.

    Args:
        split: The clients held here, and the transport to the others.
        problem: Data and model of these clients.
    """

    def __init__(self, split: Split, problem: Problem) -> None:
        self._methods, self._problem, self._width = prepared(split, problem), problem, problem.width
        self.mixes = split.shard.is_whole
        """Whether it mixes: all rows are here."""

    def load(self, k: np.ndarray, active: Tensor) -> None:
        """Take the iterations of a block, and the active weights, (iterations, links)."""
        self._rows, self._active = self._problem.draws(k).numpy(), active.contiguous().numpy()

    def gradient(self, t: int, x: Tensor, scale: Tensor | None) -> Tensor:
        """Compute diag(scale) G(x) of the t-th iteration; shapes (clients, width), (clients,)."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        factor = None if scale is None else scale.numpy()
        rows = self._rows[t : t + 1]
        self._methods.gradient(x.contiguous().numpy(), factor, rows, out.numpy(), torch.get_num_threads())
        return out

    def mix(self, t: int, x: Tensor, minus: Tensor | None) -> Tensor:
        """Compute Px − minus of the t-th iteration, where it is written over ``minus``; shapes (clients, width)."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format) if minus is None else minus.contiguous()
        active = self._active[t : t + 1]
        self._methods.mix(x.contiguous().numpy(), active, out.numpy(), minus is not None, torch.get_num_threads())
        return out
