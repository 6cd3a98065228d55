"""P(k)Θ for every run of a stack: batched dense products where runs are small, sparse sums where one is large.

`Mixer` is for stacks whose clients are all in one process, `HaloMixer` for those that are split over several.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.cuda import mixing
from dspodfl.algorithms import Rule, declared_mixes
from dspodfl.engine.exchange import Exchange, Split
from dspodfl.engine.shard import Shard
from dspodfl.engine.stack import Neighbours, Stack
from dspodfl.engine.transport.base import Wait
from dspodfl.errors import InputError

DENSE = 64
"""Runs of up to this many clients mix by dense products."""
_MAX_LINKS_PER_CHUNK = 1024


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
        self._loaded = False

    def load(self, active: Tensor) -> None:
        """Take the active weights r_ij v̂_ij of a block. Shape: (iterations, links)."""
        self._active, self._loaded = active, False

    def _prepare(self, active: Tensor) -> None:
        """Make what multiplies in this block, when a rule first mixes."""
        self._loaded = True
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

    def limit(self, last: int) -> None:
        """Do nothing: no row is received in advance."""

    def begin(self, t: int, theta: Tensor) -> Callable[..., Tensor]:
        """Return what multiplies an array by P of the t-th iteration; ``theta`` are the models before it."""
        return partial(self.apply, t)

    def end(self) -> None:
        """Do nothing at the end of an iteration."""

    def with_halo(self, t: int, x: Tensor) -> Tensor:
        """Return an array with the rows of other processes that are needed at the t-th iteration: there are none."""
        return x

    def weighted(self, t: int, active: Tensor, theta: Tensor, minus: Tensor | None = None) -> Tensor:
        """As `apply`, with other active weights than those of the block, (links,)."""
        one = copy(self)
        one.load(active[None])
        return one.apply(0, theta, minus)

    def apply(self, t: int, theta: Tensor, minus: Tensor | None = None) -> Tensor:
        """Multiply a stacked array by P of the t-th iteration; subtract another, which is overwritten.

        Shapes: (clients, p) each.
        """
        assert self._active is not None
        if not self._loaded:
            self._prepare(self._active)
        if self._links is not None:
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


class HaloMixer:
    """Applies P(k) to the rows of a shard; rows of other processes are received for it.

    Args:
        split: The clients held here, and the transport to the others.
        theta: The models, (clients, width).
        rule: The rule that mixes; it may declare how often.
        mixes_first: Whether it mixes the models as they are before the iteration: their rows are sent then.
        alone: Whether nothing else is sent in an iteration: rows of the next one may then be received in advance.
    """

    def __init__(
        self, split: Split, theta: Tensor, rule: Rule, *, mixes_first: bool = False, alone: bool = True
    ) -> None:
        self._shard, self._width, self._early_start = split.shard, theta.shape[1], mixes_first
        self._rule, self._declared, self._mixed = type(rule).__name__, declared_mixes(rule), 0
        self._exchange = split.exchange(theta, once=self._declared == 1 and alone)
        self._others: dict[int, Exchange] = {}
        self._both = theta.new_zeros((len(theta) + len(split.shard.halo), self._width))
        fast = mixing.available(theta.device, theta.dtype)
        self._links = mixing.Links.of(_with_halo(split.shard), theta.device) if fast else None
        self._early: Wait | None = None

    def load(self, active: Tensor) -> None:
        """Take the active weights r_ij v̂_ij of a block. Shape: (iterations, links of the shard)."""
        self._active, self._others = active, {}
        self._exchange.load(active)

    def limit(self, last: int) -> None:
        """Promise that iterations up to ``last`` − 1 of the block follow."""
        self._exchange.limit(last)

    def begin(self, t: int, theta: Tensor) -> Callable[..., Tensor]:
        """Return what multiplies an array by P of the t-th iteration; ``theta`` are the models before it."""
        self._early = self._exchange.start(t, theta) if self._early_start else None
        self._mixed = 0
        return partial(self.apply, t)

    def end(self) -> None:
        """Refuse a rule that has not mixed as often as it declares: ranks would wait for each other.

        Raises:
            InputError: The rule has mixed fewer times.
        """
        self._check_count(self._mixed)

    def apply(self, t: int, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """Multiply an array by P of the t-th iteration; subtract another, which is overwritten.

        Shapes: (clients, p) each.
        """
        return self.weighted(t, self._active[t], x, minus)

    def weighted(self, t: int, active: Tensor, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """As `apply`, with other active weights than those of the block, (links of the shard,)."""
        if self._mixed == self._declared:
            self._check_count(self._mixed + 1)
        self._mixed += 1
        own, both = len(x), self.with_halo(t, x)
        if self._links is not None:
            mixed = mixing.mixed(both, self._links, active)[:own]
        else:
            mixed = sparse(self._shard.ends, active, both)[:own]
        return mixed if minus is None else torch.sub(mixed, minus, out=minus)

    def with_halo(self, t: int, x: Tensor) -> Tensor:
        """Return an array with the rows of other processes whose links fire at the t-th iteration after its own.

        Shapes: (clients, p) -> (clients + halo, p).
        """
        exchange = self._exchange_of(x.shape[1])
        wait, self._early = self._early or exchange.start(t, x), None
        own, same = len(x), x.shape[1] == self._width
        both = self._both if same else x.new_zeros((len(self._both), x.shape[1]))
        both[:own] = x
        exchange.receive(t, wait, both[own:])
        return both

    def _check_count(self, mixed: int) -> None:
        if self._declared is not None and mixed != self._declared:
            allowed = f"{mixed}, as often as the rule mixes (or leave it out)"
            raise InputError(f"{self._rule}.mixes", self._declared, allowed)

    def _exchange_of(self, width: int) -> Exchange:
        """Return the exchange of rows of a width: rules may mix other arrays than models."""
        if width == self._width:
            return self._exchange
        if width not in self._others:
            self._others[width] = self._exchange.of_width(width)
        return self._others[width]


def _with_halo(shard: Shard) -> Neighbours:
    """The links seen from each row, of which the halo's have none."""
    links = shard.neighbours
    return Neighbours(np.pad(links.ptr, (0, len(shard.halo)), "edge"), links.col, links.link)


def _place(edges: np.ndarray, n: int, device: torch.device) -> Tensor:
    """Return the places of the two entries of each link in a flat n × n matrix. Shape: (2, links)."""
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
    """P of runs of one size n, as one tensor."""

    def __init__(self, stack: Stack, device: torch.device) -> None:
        self.runs, self.n = len(stack.runs), stack.runs[0].clients
        places = [_place(run.rates.graph.edges, self.n, device) + r * self.n**2 for r, run in enumerate(stack.runs)]
        self._place = torch.cat(places, dim=1)

    def __call__(self, active: Tensor) -> Tensor:
        """Shapes: active (T, links) -> (T, runs, n, n)."""
        return _matrices(self.runs, self.n, self._place, active)


def sparse(edges: np.ndarray, weight: Tensor, theta: Tensor) -> Tensor:
    """Return θ_i + Σ_j w_ij (θ_j − θ_i) over the links with w > 0, summed in link order, in chunks of links.

    Args:
        edges: Both ends of every link, (links, 2).
        weight: Active weights, (links,).
        theta: Models, (rows, p).
    """
    used = torch.nonzero(weight).squeeze(1)
    ends = torch.from_numpy(edges).to(theta.device)[used]
    out = theta.clone()
    for n in range(0, len(used), _MAX_LINKS_PER_CHUNK):
        i, j = ends[n : n + _MAX_LINKS_PER_CHUNK].T
        change = weight[used[n : n + _MAX_LINKS_PER_CHUNK], None] * (theta[j] - theta[i])
        out.index_add_(0, i, change).index_add_(0, j, change, alpha=-1)
    return out
