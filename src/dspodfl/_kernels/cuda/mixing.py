"""Mixing on a GPU in one pass over the models: P(t)Θ, added to the steps that are stored where the new models will be.

Each program owns a stretch of one client's row (`_rows`, any graph) or of all rows of one small run (`_runs`), reads
the rows of its neighbours whose links fire, in ascending order, and writes its own: no atomic additions, so the same
inputs give the same bits. The reference implementation is
`dspodfl.engine.mixer.Mixer`.

``row_index``, if given, is the row of one matrix in which the model of a client is stored before each iteration, and
after the last: a model that mixes moves to another row, one that does not keeps its row and is not touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.triton_support import jit, power_of_two, tl, usable

_ROWS = {"BLOCK": 1024, "num_warps": 4}  # numbers of a row that a program takes, and how; measured
_RUNS = {"BLOCK": 256, "num_warps": 2}  # of each row of a run; small, so that programs fit next to others
_LESS = {"BLOCK": 1024, "num_warps": 2}
SMALL = 16
"""Runs of up to this many clients may be mixed whole by one program."""


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
def _rows(
    theta,
    out,
    ptr,
    col,
    link,
    active,
    step,
    row_index,
    at,
    links,
    clients,
    row_index_width,
    width,
    STEP: tl.constexpr,
    ROW_INDEX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) % clients  # one axis: the others of a grid are short
    place = (tl.program_id(0) // clients) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    t = tl.load(at).to(tl.int64)
    source = row.to(tl.int64)
    target = source
    if ROW_INDEX:
        row_index += t * row_index_width
        source = tl.load(row_index + row).to(tl.int64)
        target = tl.load(row_index + row_index_width + row).to(tl.int64)
        inside = inside & (source != target)
    own = tl.load(theta + source * width + place, mask=inside, other=0.0)
    mixed = tl.zeros_like(own)
    given = tl.zeros((1,), dtype=own.dtype)
    last = tl.load(ptr + row + 1)
    active += t * links
    for e in range(tl.load(ptr + row), last):
        w = tl.load(active + tl.load(link + e))
        # A mask instead of a branch: loads go out without waiting for the answer.
        other = tl.load(col + e).to(tl.int64)
        if ROW_INDEX:
            other = tl.load(row_index + other).to(tl.int64)
        mixed += w * tl.load(theta + other * width + place, mask=inside & (w != 0.0), other=0.0)
        given += w
    mixed += (1.0 - given) * own
    if STEP:
        mixed += tl.load(
            out + target * width + place,
            mask=inside & (tl.load(step + t * clients + row) != 0.0),
            other=0.0,
        )
    tl.store(out + target * width + place, mixed, mask=inside)


@jit
def _runs(
    theta,
    out,
    p,
    step,
    row_index,
    at,
    runs,
    width,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    STEP: tl.constexpr,
    ROW_INDEX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    run = tl.program_id(0) % runs
    t = tl.load(at).to(tl.int64)
    n = tl.arange(0, PADDED)
    first = run.to(tl.int64) * N
    place = (tl.program_id(0) // runs) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    if ROW_INDEX:
        row_index += t * runs * N + first
    mixed = tl.zeros((PADDED, BLOCK), dtype=tl.float32)
    for j in tl.static_range(N):  # unrolled, so that all loads are under way together
        source = first + j
        read = inside
        if ROW_INDEX:
            source = tl.load(row_index + j).to(tl.int64)
            read = inside & (source != tl.load(row_index + runs * N + j))
        other = tl.load(theta + source * width + place, mask=read, other=0.0, eviction_policy="evict_first")
        weight = tl.load(p + (t * runs + run) * N * N + j * N + n, mask=n < N, other=0.0)
        mixed += weight[:, None] * other[None, :]
    target = first + n
    theirs = n < N
    if ROW_INDEX:  # down here, where the sums leave registers for them
        target = tl.load(row_index + runs * N + n, mask=n < N, other=0).to(tl.int64)
        theirs = theirs & (tl.load(row_index + n, mask=n < N, other=0) != target)
    here = theirs[:, None] & inside[None, :]
    new = out + target[:, None] * width + place[None, :]
    if STEP:
        a = tl.load(step + t * runs * N + first + n, mask=n < N, other=0.0)
        mixed += tl.load(new, mask=here & (a != 0.0)[:, None], other=0.0)
    tl.store(new, mixed, mask=here, eviction_policy="evict_first")


@jit
def _less(
    out, gradient, who, step, row_index, at, active, clients, row_index_width, width, first, last, BLOCK: tl.constexpr
):
    a = tl.program_id(0) % active
    place = first + (tl.program_id(0) // active) * BLOCK + tl.arange(0, BLOCK)
    inside = place < last
    t = tl.load(at).to(tl.int64)
    client = tl.load(who + a)
    scale = tl.load(step + t * clients + client)
    row = tl.load(row_index + (t + 1) * row_index_width + client).to(tl.int64)
    if scale != 0.0:
        g = tl.load(gradient + a.to(tl.int64) * width + place, mask=inside, other=0.0, eviction_policy="evict_first")
        old = tl.load(out + row * width + place, mask=inside, other=0.0, eviction_policy="evict_first")
        tl.store(out + row * width + place, old - scale * g, mask=inside, eviction_policy="evict_first")


def less(
    theta: Tensor,
    gradient: Tensor,
    who: Tensor,
    step: Tensor,
    row_index: Tensor,
    at: Tensor,
    first: int = 0,
    last: int | None = None,
) -> None:
    """The new models of clients who[a] −= step[t, who[a]] · gradient[a], in columns first … last − 1.

    Models whose step is 0 are not touched.
    Shapes: theta (rows, width), gradient (some, width), who (some,) int64 and distinct, step (T, clients),
    row_index (T + 1, clients or more) int32.
    """
    width = theta.shape[1]
    last = width if last is None else last
    grid = (len(who) * -(-(last - first) // _LESS["BLOCK"]),)
    sizes = len(who), step.shape[1], row_index.shape[1], width
    _less[grid](theta, gradient, who, step, row_index, at, *sizes, first, last, **_LESS)


def mix_rows(
    theta: Tensor,
    out: Tensor,
    links: Links,
    active: Tensor,
    at: Tensor,
    step: Tensor | None = None,
    row_index: Tensor | None = None,
) -> None:
    """P(t)Θ into ``out``, t being the number that ``at`` holds on the device.

    With a step, rows where step[t] is not 0 hold −diag(step(t)) G already, and are added to. With a row index,
    ``theta`` and ``out`` are one matrix.
    Shapes: theta (rows, width), out (clients, width), active (T, links), step (T, clients), row_index (T + 1, rows)
    int32; rows beyond the clients are neighbours only.
    """
    clients, width = len(links.ptr) - 1, out.shape[1]
    _rows[(clients * -(-width // _ROWS["BLOCK"]),)](
        theta, out, links.ptr, links.col, links.link, active, theta if step is None else step,
        theta if row_index is None else row_index, at, active.shape[-1], clients,
        0 if row_index is None else row_index.shape[1], width,
        STEP=step is not None, ROW_INDEX=row_index is not None, **_ROWS,
    )  # fmt: skip


def mix_runs(
    theta: Tensor, out: Tensor, p: Tensor, at: Tensor, step: Tensor | None = None, row_index: Tensor | None = None
) -> None:
    """The same for runs of one small size n, whose matrices are dense. Shapes: p (T, runs, n, n), symmetric."""
    runs, n = p.shape[1:3]
    width = theta.shape[1]
    _runs[(runs * -(-width // _RUNS["BLOCK"]),)](
        theta, out, p, theta if step is None else step, theta if row_index is None else row_index, at, runs, width,
        N=n, PADDED=power_of_two(n), STEP=step is not None, ROW_INDEX=row_index is not None, **_RUNS,
    )  # fmt: skip


def mixed(theta: Tensor, links: Links, active: Tensor) -> Tensor:
    """PΘ with the active weights of one iteration, (links,)."""
    theta = theta.contiguous()
    out = torch.empty_like(theta)
    at = torch.zeros(1, dtype=torch.int64, device=theta.device)
    mix_rows(theta, out, links, active[None], at)
    return out
