"""P(k)Θ for every run of a stack: batched dense products where runs are small, a sparse product where one is large."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dspodfl.engine.stack import Stack
from dspodfl.mixing import matrix

DENSE = 64
"""Runs of up to this many clients mix by dense products."""


class Mixer:
    """Applies P(k) of every run to stacked arrays; runs never touch each other's rows."""

    def __init__(self, stack: Stack, device: torch.device, dtype: torch.dtype) -> None:
        self.stack, self.device, self.dtype = stack, device, dtype
        sizes = {run.clients for run in stack.runs}
        self.uniform = len(sizes) == 1 and max(sizes) <= DENSE
        self._dense: tuple[Tensor, ...] = ()
        self._blocks: list[Tensor] = []

    def load(self, active: list[np.ndarray]) -> None:
        """Take the active weights r_ij v̂_ij of a block: a run each, (iterations, links)."""
        if self.uniform:
            edges = [run.rates.graph.edges for run in self.stack.runs]
            n = self.stack.runs[0].clients
            dense = np.stack([matrix(n, e, a) for e, a in zip(edges, active, strict=True)], axis=1)
            self._dense = torch.from_numpy(dense).to(self.device, self.dtype).unbind()  # iterations × (runs, n, n)
            return
        self._blocks = []
        for run, a in zip(self.stack.runs, active, strict=True):
            if run.clients <= DENSE:
                whole = torch.from_numpy(matrix(run.clients, run.rates.graph.edges, a))
                self._blocks.append(whole.to(self.device, self.dtype))  # (iterations, n, n)
            else:
                self._blocks.append(torch.from_numpy(a).to(self.device, self.dtype))  # (iterations, links)

    def apply(self, t: int, theta: Tensor, minus: Tensor | None = None) -> Tensor:
        """P at the t-th iteration of the block times a stacked array, less another, which is written over.

        Shapes: (clients, p) each.
        """
        if self.uniform:
            p = self._dense[t]
            stacked = theta.view(p.shape[0], p.shape[1], -1)
            if minus is None:
                return torch.bmm(p, stacked).view(theta.shape)
            return minus.view(stacked.shape).baddbmm_(p, stacked, beta=-1).view(theta.shape)
        out = torch.empty_like(theta)
        for run, rows, block in zip(self.stack.runs, self.stack.rows, self._blocks, strict=True):
            if run.clients <= DENSE:
                torch.matmul(block[t], theta[rows], out=out[rows])
            else:
                out[rows] = _sparse(run.rates.graph.edges, block[t], theta[rows])
        return out if minus is None else torch.sub(out, minus, out=minus)


def _sparse(edges: np.ndarray, weight: Tensor, theta: Tensor) -> Tensor:
    """θ_i + Σ_j w_ij (θ_j − θ_i) over the links with w > 0, summed in link order."""
    used = torch.nonzero(weight).squeeze(1)
    i, j = torch.from_numpy(edges).to(theta.device)[used].T
    change = weight[used, None] * (theta[j] - theta[i])
    return theta.clone().index_add_(0, i, change).index_add_(0, j, change, alpha=-1)
