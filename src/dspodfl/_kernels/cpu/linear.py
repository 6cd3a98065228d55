"""Many iterations of many runs of linear models in one call, on the cores of the processor, in code compiled by Numba.

    θ_n ← (1 − Σ_j w_nj) θ_n + Σ_j w_nj θ_j − α v ∇F_n(θ_n)

Numba is optional: `available` says whether it is there, and nothing here imports it before the first `advance`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LINE = 64
_CACHED = 2_000_000
"""Bytes of the models of one run that are near the processor while it iterates; models of more are far away."""
_GROUP = 800_000
"""Bytes of the models that a thread takes at a time where they are far: they stay near it while it works on them."""


@cache
def available() -> bool:
    """Whether Numba is installed."""
    return importlib.util.find_spec("numba") is not None


def advance(
    theta: Array,
    back_buffer: Array,
    x: Array,
    scale: float,
    shift: float,
    y: Array,
    rows: Array,
    batch_of: Array,
    step: Array,
    ptr: Array,
    col: Array,
    link: Array,
    active: Array,
    first: Array,
    alive: Array,
    loss: str,
    bias: bool,
    l2: float,
    threads: int,
    end_in_theta: bool = True,
    order: Array | None = None,
) -> int:
    """Advance the models of all runs that are alive, in place, by as many iterations as `rows` has.

    The numbers of a client depend on its own run alone: not on the threads, not on the other runs, not on how the
    iterations are cut into calls.

    Args:
        theta: The models (clients, classes · features), float32 or float64; features include the constant 1.
        back_buffer: Room for as many models: even iterations write to it, odd ones to `theta`. Its content before
            and after has no meaning.
        x: Samples as stored (samples, inputs), uint8 or float32.
        scale: An input is x · scale + shift, in float32 ...
        shift: ... each of the two operations rounded.
        y: Labels, int64, or targets, float32.
        rows: The samples of each minibatch (iterations, columns, batch), int32 or int64.
        batch_of: Which column of `rows` each client uses.
        step: α v of each client at each iteration (iterations, clients); at 0 the client's samples are not read.
        ptr: The neighbours of client n are col[ptr[n] : ptr[n + 1]].
        col: See `ptr`.
        link: The number of the link to each of them.
        active: Weight of each link at each iteration (iterations, links); at 0 the neighbour is not read.
        first: The clients of run r are first[r] to first[r + 1] − 1.
        alive: Which runs advance.
        loss: The loss; "squared_error" means one output.
        bias: Whether the last feature is the constant 1, which `x` does not hold.
        l2: Adds l2 · θ to the gradients.
        threads: How many threads share the work.
        end_in_theta: Whether the models end in `theta` whatever the number of iterations; if not, they end in
            `back_buffer` after an odd number.
        order: The clients to advance, where not all of them, in the order to take them in.

    Returns:
        How often threads that waited for each back_buffer let something else run: many mean that the cores are busy.
    """
    for array in (theta, back_buffer, x, y, rows, step, active):
        if not array.flags.c_contiguous:
            raise ValueError("advance needs C-contiguous arrays")
    ptr, col, link, first, batch_of = (np.ascontiguousarray(a, np.int64) for a in (ptr, col, link, first, batch_of))
    runs = np.flatnonzero(alive)
    awake = np.repeat(alive, np.diff(first))
    clients = np.flatnonzero(awake) if order is None else order[awake[order]]
    if not clients.size or not rows.shape[0]:
        return 0
    from dspodfl._kernels.cpu import _linear

    sizes = np.diff(first)[runs]
    threads = min(threads, clients.size)
    far = is_far(sizes, theta.shape[1] * theta.itemsize)
    bounds = np.arange(threads + 1) * clients.size // threads
    group = 1
    if far:
        group = _group(theta, clients.size, threads)
        clients = clustered(ptr, col, clients, group) if order is None else clients
        bounds[1:] = clients.size
    whole = runs.size >= threads and not far and order is None
    whole_runs = runs[np.argsort(-sizes, kind="stable")] if whole else runs[:0]

    features = x.shape[1] + bias
    batch = -(-rows.shape[2] // _linear.SAMPLES) * _linear.SAMPLES
    # room for the neighbours of one client or, with itself, of each client of a run
    links = int(np.diff(ptr[first] + first).max()) if whole_runs.size else int(np.diff(ptr).max())
    counters = zeros((threads + 1, 2 * LINE // 8), np.int64)

    # both of fixed types, one of them empty: the code is compiled once for either
    labels = np.ascontiguousarray(y if loss != "squared_error" else y[:0], np.int64)
    targets = np.ascontiguousarray(y if loss == "squared_error" else y[:0], np.float32)

    def part(me: int) -> int:
        scratch = (
            inputs(batch, features, theta.dtype, bias),
            zeros((theta.shape[1] // features, batch), theta.dtype),
            np.empty(links, np.int64),
            np.empty(links, theta.dtype),
            np.empty(sizes.max() + 1, np.int64),
            np.empty(links + 2, np.int64),
        )
        numbers = (_linear.LOSSES.index(loss), theta.dtype.type(l2), far)
        data = (theta, back_buffer, x, np.float32(scale), np.float32(shift), labels, targets, rows, batch_of, step)
        division = (first, whole_runs, clients, bounds, group, counters, me, end_in_theta)
        args = (*data, ptr, col, link, active, *numbers, *scratch, *division)
        return int(_linear.work(*args) or 0)

    yields = shared(part, threads)
    return 0 if far else yields  # large runs end at different times on quiet cores too


def is_far(sizes: Array, wide: int) -> bool:
    """Whether the models of one run are more than stay near the processor while it iterates.

    Args:
        sizes: The clients of each run, (runs,).
        wide: Bytes of a model.
    """
    return bool(sizes.max() * wide > _CACHED)


def shared(part: Callable[[int], int], threads: int) -> int:
    """Call a function in several threads, with their numbers; return the sum of what it returns.

    Args:
        part: Does whatever is left to do; a thread that is not called in time is not called any more.
        threads: How many.
    """
    helpers = [_pool().submit(part, me) for me in range(1, threads)]
    found = part(0)
    for helper in helpers:
        if not helper.cancel():
            found += helper.result()
    return found


def inputs(batch: int, features: int, dtype: Any, bias: bool) -> Array:
    """Room for the inputs of a minibatch; the last feature is 1 where it is a bias. Shape: (batch, ≥ features)."""
    size = np.dtype(dtype).itemsize
    # an odd number of lines per row: rows then fall on different sets of the cache
    xs = zeros((batch, (-(-features * size // LINE) | 1) * LINE // size), dtype)
    if bias:
        xs[:, features - 1] = 1
    return xs


def clustered(ptr: Array, col: Array, clients: Array, group: int) -> Array:
    """The clients in the order in which models that are far are computed: groups of neighbours."""
    from dspodfl._kernels.cpu import _linear

    ptr, col, clients = (np.ascontiguousarray(a, np.int64) for a in (ptr, col, clients))
    return np.asarray(_linear.cluster(ptr, col, clients, group))


def order_for(theta: Array, ptr: Array, col: Array, threads: int) -> Array:
    """The `order` of all clients, for many calls of `advance` of one iteration each."""
    return clustered(ptr, col, np.arange(len(theta)), _group(theta, len(theta), threads))


def _group(theta: Array, clients: int, threads: int) -> int:
    return max(1, min(_GROUP // (theta.shape[1] * theta.itemsize), clients // (8 * threads)))


def join(
    theta: Array, back_buffer: Array, received: Array, ptr: Array, col: Array, link: Array, active: Array, place: Array
) -> None:
    """Add to new models what their neighbours on other ranks contribute:  other_n ← other_n + Σ_h w_nh (came_h − θ_n).

    Args:
        theta: The models before this iteration (clients, width).
        back_buffer: The models after it, as far as they are known here; in place.
        received: The neighbours' models that were received, one after the other (rows, width).
        ptr: The neighbours elsewhere of client n are col[ptr[n] : ptr[n + 1]].
        col: See `ptr`.
        link: The number of the link to each of them.
        active: Weight of each link (links,); at 0 the neighbour is not read.
        place: Which row of `received` each neighbour on another rank is, if it was received.
    """
    from dspodfl._kernels.cpu import _halo

    most = int(np.diff(ptr).max(initial=0)) + 1
    room = np.empty(most, np.int64), np.empty(most, theta.dtype)
    _halo.join(theta, back_buffer, received, ptr, col, link, active, place, *room)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "dspodfl")


def zeros(shape: tuple[int, int], dtype: Any) -> Array:
    """Return zeros that begin at a cache line."""
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size].view(dtype).reshape(shape)
