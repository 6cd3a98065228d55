"""One pass over the models: Θ ← PΘ − αVG, on a GPU.

Each program owns a stretch of one client's row (`_rows`, any graph) or of all rows of one small run (`_runs`), reads
the rows of its neighbours whose links fire, in ascending order, and writes its own: no atomic additions, so the same
inputs give the same bits. The twin is `dspodfl.engine.mix.Mixer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dspodfl.kernels._triton import jit, power_of_two, tl, usable

_ROWS = {"BLOCK": 1024, "UNROLL": False, "num_warps": 4}  # numbers of a row that a program takes, and how; measured
_RUNS = {"BLOCK": 512, "num_warps": 8}  # numbers of each row of a run that a program takes
SMALL = 16
"""Runs of up to so many clients may be mixed whole by one program."""


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether these kernels work there."""
    return usable(device) and dtype in (torch.float32, torch.float64)


class _Neighbours(Protocol):
    @property
    def ptr(self) -> np.ndarray: ...
    @property
    def col(self) -> np.ndarray: ...
    @property
    def link(self) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Links:
    """The links seen from each client, on a device: col[ptr[n]:ptr[n+1]] are its neighbours. All int32 but ptr."""

    ptr: Tensor
    col: Tensor
    link: Tensor

    @staticmethod
    def of(neighbours: _Neighbours, device: torch.device) -> Links:
        """From arrays on the host."""

        def there(array: np.ndarray, dtype: type) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype)).to(device)

        return Links(there(neighbours.ptr, np.int64), there(neighbours.col, np.int32), there(neighbours.link, np.int32))


@jit
def neighbour(theta, col, link, active, e, last, size, place, inside):
    """The active weight of link e of a client and, where it is not 0, what is needed of the model at its other end.

    A mask instead of a branch, so that the loads of several neighbours are under way at once.
    """
    there = last > e
    w = tl.load(active + tl.load(link + e, mask=there, other=0), mask=there, other=0.0)
    other = tl.load(col + e, mask=there, other=0).to(tl.int64)
    return w, tl.load(theta + other * size + place, mask=inside & (w != 0.0), other=0.0)


@jit
def _rows(
    theta,
    out,
    gradient,
    ptr,
    col,
    link,
    active,
    step,
    slot,
    at,
    links,
    clients,
    width,
    STEP: tl.constexpr,
    UNROLL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    t = tl.load(at).to(tl.int64)
    own = tl.load(theta + row.to(tl.int64) * width + place, mask=inside, other=0.0)
    mixed = tl.zeros_like(own)
    given = tl.zeros((1,), dtype=own.dtype)
    last = tl.load(ptr + row + 1)
    active += t * links
    if UNROLL:
        for e in range(tl.load(ptr + row), last, 2):
            w0, o0 = neighbour(theta, col, link, active, e, last, width, place, inside)
            w1, o1 = neighbour(theta, col, link, active, e + 1, last, width, place, inside)
            mixed += w0 * o0
            mixed += w1 * o1
            given += w0
            given += w1
    else:
        for e in range(tl.load(ptr + row), last):
            w, o = neighbour(theta, col, link, active, e, last, width, place, inside)
            mixed += w * o
            given += w
    mixed += (1.0 - given) * own
    if STEP == "given":
        mixed += tl.load(
            out + row.to(tl.int64) * width + place,
            mask=inside & (tl.load(step + t * clients + row) != 0.0),
            other=0.0,
        )
    if STEP == "taken":
        a = tl.load(step + t * clients + row)
        if a != 0.0:
            g = tl.load(gradient + tl.load(slot + t * clients + row).to(tl.int64) * width + place, mask=inside, other=0)
            mixed -= a * g
    tl.store(out + row.to(tl.int64) * width + place, mixed, mask=inside)


@jit
def _runs(
    theta,
    out,
    gradient,
    p,
    step,
    slot,
    at,
    runs,
    width,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    run = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    t = tl.load(at).to(tl.int64)
    n = tl.arange(0, PADDED)
    first = run.to(tl.int64) * N
    mixed = tl.zeros((PADDED, BLOCK), dtype=tl.float32)
    for j in range(N):
        other = tl.load(theta + (first + j) * width + place, mask=inside, other=0.0)
        weight = tl.load(p + (t * runs + run) * N * N + j * N + n, mask=n < N, other=0.0)
        mixed += weight[:, None] * other[None, :]
    here = (n < N)[:, None] & inside[None, :]
    if STEP == "given":
        a = tl.load(step + t * runs * N + first + n, mask=n < N, other=0.0)
        moved = out + (first + n)[:, None] * width + place[None, :]
        mixed += tl.load(moved, mask=here & (a != 0.0)[:, None], other=0.0)
    if STEP == "taken":
        a = tl.load(step + t * runs * N + first + n, mask=n < N, other=0.0)
        s = tl.load(slot + t * runs * N + first + n, mask=n < N, other=0).to(tl.int64)
        g = tl.load(gradient + s[:, None] * width + place[None, :], mask=here & (a != 0.0)[:, None], other=0.0)
        mixed -= a[:, None] * g
    tl.store(out + (first + n)[:, None] * width + place[None, :], mixed, mask=here)


def step_rows(
    theta: Tensor,
    out: Tensor,
    links: Links,
    active: Tensor,
    at: Tensor,
    step: Tensor | None = None,
    gradient: Tensor | None = None,
    slot: Tensor | None = None,
) -> None:
    """Out = P(t)Θ − diag(step(t)) G, t being the number that ``at`` holds on the device.

    Row ``slot[t, n]`` of the gradient is client n's, and is read only where step[t, n] is not 0. Without a gradient,
    ``out`` holds −diag(step(t)) G already in those rows; without a step, out = P(t)Θ.
    Shapes: theta, out (clients, width), active (T, links), step and slot (T, clients), gradient (any, width).
    """
    clients, width = theta.shape
    mode = "none" if step is None else "given" if gradient is None else "taken"
    _rows[(clients, -(-width // _ROWS["BLOCK"]))](
        theta, out, theta if gradient is None else gradient, links.ptr, links.col, links.link, active,
        theta if step is None else step, theta if slot is None else slot, at,
        active.shape[-1], clients, width, STEP=mode, **_ROWS,
    )  # fmt: skip


def step_runs(
    theta: Tensor,
    out: Tensor,
    p: Tensor,
    at: Tensor,
    step: Tensor,
    gradient: Tensor | None = None,
    slot: Tensor | None = None,
) -> None:
    """The same for runs of one small size n, whose matrices are dense. Shapes: p (T, runs, n, n), symmetric."""
    runs, n = p.shape[1:3]
    width = theta.shape[1]
    mode = "given" if gradient is None else "taken"
    _runs[(runs, -(-width // _RUNS["BLOCK"]))](
        theta, out, theta if gradient is None else gradient, p, step, theta if slot is None else slot, at, runs, width,
        N=n, PADDED=power_of_two(n), STEP=mode, **_RUNS,
    )  # fmt: skip


def mixed(theta: Tensor, links: Links, active: Tensor) -> Tensor:
    """PΘ with the active weights of one iteration, (links,)."""
    theta = theta.contiguous()
    out = torch.empty_like(theta)
    at = torch.zeros(1, dtype=torch.int64, device=theta.device)
    step_rows(theta, out, links, active[None], at)
    return out
