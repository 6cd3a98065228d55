"""P(k)Θ for every run of a stack: batched dense products where runs are small, sparse sums where one is large."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.cuda import mixing
from dspodfl.engine.stack import Stack

DENSE = 64
"""Runs of up to this many clients mix by dense products."""
_LINKS_AT_ONCE = 1024


class Mixer:
    """Applies P(k) of every run to stacked arrays; runs never touch each other's rows."""

    def __init__(self, stack: Stack, device: torch.device, dtype: torch.dtype) -> None:
        self.stack, self.device, self.dtype = stack, device, dtype
        sizes = {run.clients for run in stack.runs}
        self.uniform = len(sizes) == 1 and max(sizes) <= DENSE
        self._links = mixing.Links.of(stack.neighbours, device) if mixing.available(device, dtype) else None
        self._matrices = Matrices(stack, device)
        self._dense: tuple[Tensor, ...] = ()
        self._blocks: list[Tensor] = []
        self._active: Tensor | None = None

    def load(self, active: Tensor) -> None:
        """Take the active weights r_ij v̂_ij of a block. Shape: (iterations, links)."""
        self._active = active
        if self._links is not None:
            return
        if self.uniform:
            self._dense = self._matrices(active).unbind()  # iterations × (runs, n, n)
            return
        self._blocks = []  # a run each, (iterations, n, n) or (iterations, links)
        for run, links in zip(self.stack.runs, self.stack.links, strict=True):
            weight = active[:, links]
            if run.clients <= DENSE:
                place = _place(run.rates.graph.edges, run.clients, self.device)
                weight = _matrices(1, run.clients, place, weight)[:, 0]
            self._blocks.append(weight)

    def apply(self, t: int, theta: Tensor, minus: Tensor | None = None) -> Tensor:
        """P at the t-th iteration of the block times a stacked array, less another, which is written over.

        Shapes: (clients, p) each.
        """
        if self._links is not None and self._active is not None:
            mixed = mixing.mixed(theta, self._links, self._active[t])
            return mixed if minus is None else torch.sub(mixed, minus, out=minus)
        if self.uniform:
            p = self._dense[t]
            stacked = theta.reshape(p.shape[0], p.shape[1], -1)
            if minus is None:
                return torch.bmm(p, stacked).view(theta.shape)
            return minus.view(stacked.shape).baddbmm_(p, stacked, beta=-1).view(theta.shape)
        out = torch.empty_like(theta)
        for r, (run, rows) in enumerate(zip(self.stack.runs, self.stack.rows, strict=True)):
            here = self._blocks[r][t]
            if run.clients <= DENSE:
                torch.matmul(here, theta[rows], out=out[rows])
            else:
                out[rows] = sparse(run.rates.graph.edges, here, theta[rows])
        return out if minus is None else torch.sub(out, minus, out=minus)


def _place(edges: np.ndarray, n: int, device: torch.device) -> Tensor:
    """Where the two entries of each link stand in a flat n × n matrix. Shape: (2, links)."""
    i, j = torch.from_numpy(edges).to(device).T
    return torch.stack([i * n + j, j * n + i])


def _matrices(runs: int, n: int, place: Tensor, weight: Tensor) -> Tensor:
    """P from active weights, as `dspodfl.network.weights.matrix`. Shapes: (2, links), (T, links) -> (T, runs, n, n)."""
    p = weight.new_zeros((len(weight), runs * n * n))
    p[:, place[0]] = weight
    p[:, place[1]] = weight
    p = p.view(-1, runs, n, n)
    p.diagonal(dim1=2, dim2=3).copy_(1.0 - p.sum(dim=3))
    return p


class Matrices:
    """P of runs of one size n, all at once."""

    def __init__(self, stack: Stack, device: torch.device) -> None:
        self.runs, self.n = len(stack.runs), stack.runs[0].clients
        places = [_place(run.rates.graph.edges, self.n, device) + r * self.n**2 for r, run in enumerate(stack.runs)]
        self._place = torch.cat(places, dim=1)

    def __call__(self, active: Tensor) -> Tensor:
        """Shapes: active (T, links) -> (T, runs, n, n)."""
        return _matrices(self.runs, self.n, self._place, active)


def sparse(edges: np.ndarray, weight: Tensor, theta: Tensor) -> Tensor:
    """θ_i + Σ_j w_ij (θ_j − θ_i) over the links with w > 0, summed in link order, some links at a time."""
    used = torch.nonzero(weight).squeeze(1)
    ends = torch.from_numpy(edges).to(theta.device)[used]
    out = theta.clone()
    for n in range(0, len(used), _LINKS_AT_ONCE):
        i, j = ends[n : n + _LINKS_AT_ONCE].T
        change = weight[used[n : n + _LINKS_AT_ONCE], None] * (theta[j] - theta[i])
        out.index_add_(0, i, change).index_add_(0, j, change, alpha=-1)
    return out
