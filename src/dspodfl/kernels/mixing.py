"""Mixing on a GPU in one pass over the models: P(t)Θ less the steps, which come as gradients or lie in place already.

Each program owns a stretch of one client's row (`_rows`, any graph) or of all rows of one small run (`_runs`), reads
the rows of its neighbours whose links fire, in ascending order, and writes its own: no atomic additions, so the same
inputs give the same bits. The twin is `dspodfl.engine.mix.Mixer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from dspodfl.kernels._triton import jit, power_of_two, tl, usable

_ROWS = {"BLOCK": 1024, "num_warps": 4}  # numbers of a row that a program takes, and how; measured
_RUNS = {"BLOCK": 256, "num_warps": 2}  # of each row of a run; few, so that programs fit beside others
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


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of the clients that take a step, side by side: that of client n at t is row slot[t, n].

    Shapes: values (some, width), slot (T, clients), of which only those that take a step are read.
    """

    values: Tensor
    slot: Tensor


@jit
def _rows(
    theta,
    out,
    ptr,
    col,
    link,
    active,
    step,
    gradient,
    slot,
    at,
    links,
    clients,
    width,
    first,
    last,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    place = first + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < last
    t = tl.load(at).to(tl.int64)
    own = tl.load(theta + row.to(tl.int64) * width + place, mask=inside, other=0.0)
    mixed = tl.zeros_like(own)
    given = tl.zeros((1,), dtype=own.dtype)
    end = tl.load(ptr + row + 1)
    active += t * links
    for e in range(tl.load(ptr + row), end):
        w = tl.load(active + tl.load(link + e))
        # A mask instead of a branch: loads go out without waiting for the answer.
        other = theta + tl.load(col + e).to(tl.int64) * width + place
        mixed += w * tl.load(other, mask=inside & (w != 0.0), other=0.0)
        given += w
    mixed += (1.0 - given) * own
    new = out + row.to(tl.int64) * width + place
    if STEP != "none":
        a = tl.load(step + t * clients + row)
        moves = inside & (a != 0.0)
        if STEP == "there":
            mixed += tl.load(new, mask=moves, other=0.0)
        else:
            g = gradient + tl.load(slot + t * clients + row) * width + place
            mixed -= a * tl.load(g, mask=moves, other=0.0)
    tl.store(new, mixed, mask=inside)


@jit
def _runs(
    theta,
    out,
    p,
    step,
    gradient,
    slot,
    at,
    runs,
    width,
    first,
    last,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    run = tl.program_id(0)
    t = tl.load(at).to(tl.int64)
    n = tl.arange(0, PADDED)
    client = run.to(tl.int64) * N
    place = first + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < last
    mixed = tl.zeros((PADDED, BLOCK), dtype=tl.float32)
    for j in tl.static_range(N):  # unrolled, so that all loads are under way at once
        other = tl.load(theta + (client + j) * width + place, mask=inside, other=0.0)
        weight = tl.load(p + (t * runs + run) * N * N + j * N + n, mask=n < N, other=0.0)
        mixed += weight[:, None] * other[None, :]
    here = (n < N)[:, None] & inside[None, :]
    new = out + (client + n)[:, None] * width + place[None, :]
    if STEP != "none":
        a = tl.load(step + t * runs * N + client + n, mask=n < N, other=0.0)
        moves = here & (a != 0.0)[:, None]
        if STEP == "there":
            mixed += tl.load(new, mask=moves, other=0.0)
        else:
            at_slot = tl.load(slot + t * runs * N + client + n, mask=n < N, other=0)
            g = gradient + at_slot[:, None] * width + place[None, :]
            mixed -= a[:, None] * tl.load(g, mask=moves, other=0.0)
    tl.store(new, mixed, mask=here)


def mix_rows(
    theta: Tensor,
    out: Tensor,
    links: Links,
    active: Tensor,
    at: Tensor,
    step: Tensor | None = None,
    gradients: Gradients | None = None,
    columns: tuple[int, int] | None = None,
) -> None:
    """P(t)Θ − diag(step(t)) G(t) into ``out``, t being the number that ``at`` holds on the device.

    Without ``gradients``, rows of ``out`` where step[t] is not 0 hold their part of −diag(step(t)) G already. Only the
    ``columns`` first … last − 1 are read and written, if they are given.
    Shapes: theta, out (clients, width), active (T, links), step (T, clients).
    """
    clients, width = theta.shape
    first, last = columns or (0, width)
    step, values, slot, kind = _taken(theta, step, gradients)
    _rows[(clients, -(-(last - first) // _ROWS["BLOCK"]))](
        theta, out, links.ptr, links.col, links.link, active, step, values, slot, at,
        active.shape[-1], clients, width, first, last, STEP=kind, **_ROWS,
    )  # fmt: skip


def mix_runs(
    theta: Tensor,
    out: Tensor,
    p: Tensor,
    at: Tensor,
    step: Tensor | None = None,
    gradients: Gradients | None = None,
    columns: tuple[int, int] | None = None,
) -> None:
    """The same for runs of one small size n, whose matrices are dense. Shapes: p (T, runs, n, n), symmetric."""
    runs, n = p.shape[1:3]
    width = theta.shape[1]
    first, last = columns or (0, width)
    step, values, slot, kind = _taken(theta, step, gradients)
    _runs[(runs, -(-(last - first) // _RUNS["BLOCK"]))](
        theta, out, p, step, values, slot, at, runs, width, first, last,
        N=n, PADDED=power_of_two(n), STEP=kind, **_RUNS,
    )  # fmt: skip


def _taken(
    theta: Tensor, step: Tensor | None, gradients: Gradients | None
) -> tuple[Tensor, Tensor, Tensor, Literal["none", "there", "gradient"]]:
    """What the kernels take for steps; where there is nothing to take, anything stands in for it."""
    if step is None:
        return theta, theta, theta, "none"
    if gradients is None:
        return step, theta, theta, "there"
    return step, gradients.values, gradients.slot, "gradient"


def mixed(theta: Tensor, links: Links, active: Tensor) -> Tensor:
    """PΘ with the active weights of one iteration, (links,)."""
    theta = theta.contiguous()
    out = torch.empty_like(theta)
    at = torch.zeros(1, dtype=torch.int64, device=theta.device)
    mix_rows(theta, out, links, active[None], at)
    return out
