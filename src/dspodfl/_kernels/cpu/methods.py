"""Iterations of methods beyond the paper's, and gradients alone, of linear models, in code compiled by Numba.

    gradient     carried = diag(step) G(Θ)
    mix          carried = PΘ, or PΘ − carried
    diging       Y ← Y + H⁺ − H,   Θ ← PΘ − αVY,   Y ← PY                    carried = Y, held = H
    atc          Y ← Y + H⁺ − H,   Θ ← P(Θ − αVY),   Y ← PY
    aug_dgm      Y ← P(Y + H⁺ − H),   Θ ← P(Θ − αVY)
    corrected    Θ̂ = Θ − αV(G − h),   Θ ← Θ̂ − s L Θ̂,   h ← h − (s/α) L_f Θ̂   carried = h

H holds the last gradient of each client; L_f has the weights f_ij w_ij. The numbers of a client depend on its own run
alone: not on the threads, not on the other runs, not on how the iterations are cut into calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dspodfl._kernels.cpu import linear
from dspodfl._kernels.cpu.linear import Array

_ALONE = 1_500_000
"""Multiplications of gradients alone above which threads share them: below, to wake a thread is slower."""


@dataclass(frozen=True, eq=False)
class Events:
    """What fires in some iterations, and where: arrays as `dspodfl._kernels.cpu.linear.advance` takes them."""

    rows: Array  # (iterations, columns, batch)
    fires: Array  # (iterations, clients) bool
    step: Array  # (iterations, clients), αv
    lr: Array  # (iterations, clients), α
    active: Array  # (iterations, links)

    def part(self, first: int, last: int) -> Events:
        """Iterations first … last − 1."""
        at = slice(first, last)
        return Events(self.rows[at], self.fires[at], self.step[at], self.lr[at], self.active[at])


@dataclass(frozen=True, eq=False)
class _Division:
    """How work is divided among threads, which count in ``counters``."""

    threads: int
    counters: Array
    args: tuple[Any, ...]
    """The runs that threads take as a whole (none where they are few), the clients, those of each thread, how many
    a thread takes at a time, and the counters."""


@dataclass(frozen=True, eq=False)
class _Compiled:
    """What Numba compiles."""

    work: Any
    kinds: dict[str, tuple[int, int]]  # method -> its number, and the phases of an iteration
    losses: dict[str, int]


@cache
def _compiled() -> _Compiled:
    from dspodfl._kernels.cpu import _linear, _methods

    kinds = {name: (n, phases) for n, (name, phases) in enumerate(zip(_methods.METHODS, _methods.PHASES, strict=True))}
    return _Compiled(_methods.work, kinds, {name: n for n, name in enumerate(_linear.LOSSES)})


class Methods:
    """The samples, the model and the graph of a stack of clients, prepared for many calls.

    Args:
        x: Samples as stored (samples, inputs), uint8 or float32.
        scale: An input is x · scale + shift, in float32 ...
        shift: ... each of the two operations rounded.
        y: Labels, int64, or targets, float32.
        batch_of: Which column of the rows of minibatches each client uses.
        ptr: The neighbours of client n are col[ptr[n] : ptr[n + 1]].
        col: See `ptr`.
        link: The number of the link to each of them.
        first: The clients of run r are first[r] to first[r + 1] − 1.
        width: Numbers of a model, classes · features.
        dtype: Of the models, float32 or float64.
        loss: The loss; "squared_error" means one output.
        bias: Whether the last feature is the constant 1, which `x` does not hold.
        l2: Adds l2 · θ to the gradients.
        batch: Samples of a minibatch.
    """

    def __init__(
        self,
        x: Array,
        scale: float,
        shift: float,
        y: Array,
        batch_of: Array,
        ptr: Array,
        col: Array,
        link: Array,
        first: Array,
        width: int,
        dtype: Any,
        loss: str,
        bias: bool,
        l2: float,
        batch: int,
    ) -> None:
        self._dtype, self._bias, self._loss = np.dtype(dtype), bias, loss
        self._penalty = self._dtype.type(l2)
        self._x, self._scale, self._shift = np.ascontiguousarray(x), np.float32(scale), np.float32(shift)
        # both of fixed types, one of them empty: the code is compiled once for either
        self._labels = np.ascontiguousarray(y if loss != "squared_error" else y[:0], np.int64)
        self._targets = np.ascontiguousarray(y if loss == "squared_error" else y[:0], np.float32)
        whole = (np.ascontiguousarray(a, np.int64) for a in (batch_of, ptr, col, link, first))
        self._batch_of, self._ptr, self._col, self._link, self._first = whole
        self._width, self._batch, self._clients = width, batch, len(batch_of)
        self._none = np.empty(0, np.int64)
        self._some = np.zeros((1, 1), self._dtype)
        self._scratches: list[tuple[Array, ...]] = []
        self._still = np.zeros((2, self._clients), np.int64)
        self._ones = np.ones((1, self._clients), self._dtype)
        self._all = np.ones((1, self._clients), dtype=bool)
        self._rows = np.zeros((1, self._clients, batch), np.int32)
        self._everyone: dict[int, _Division] = {}

    def gradient(self, theta: Array, scale: Array | None, rows: Array, out: Array, threads: int) -> None:
        """Compute out = diag(scale) G(θ); of clients whose scale is 0 no sample is read.

        Args:
            theta: The models (clients, width).
            scale: Of each client, (clients,); None: 1.
            rows: The samples of each minibatch, (1, columns, batch).
            out: The gradients (clients, width).
            threads: How many threads share the work, at most.
        """
        step = self._ones if scale is None else np.ascontiguousarray(scale)[None]
        fires = self._all if scale is None else step != 0
        if np.count_nonzero(fires) * self._batch * self._width < _ALONE:
            threads = 1
        events = Events(rows, fires, step, step, self._some)
        self._work("gradient", theta, out, self._some, events, self._some, 1.0, self._still, None, threads)

    def mix(self, x: Array, active: Array, out: Array, minus: bool, threads: int) -> None:
        """Compute out = Px, or Px − out.

        Args:
            x: Rows (clients, width).
            active: The weight of each link, (1, links).
            out: Rows (clients, width).
            minus: Whether what ``out`` was is taken off.
            threads: How many threads share the work, at most.
        """
        if self._clients * self._width * 8 < _ALONE:
            threads = 1
        events = Events(self._rows, self._all, self._ones, self._ones, active)
        self._work("mix", x, out, self._some, events, self._some, float(minus), self._still, None, threads)

    def advance(
        self,
        method: str,
        theta: Array,
        carried: Array,
        held: Array | None,
        events: Events,
        *,
        factor: Array | None = None,
        s: float = 1.0,
        alive: Array,
        threads: int,
    ) -> int:
        """Make iterations of a method, in place.

        Args:
            method: Its name, one of those above.
            theta: Two buffers of models (2 · clients, width). The models are in the first before and after.
            carried: Two buffers of what the method carries; of ``corrected`` one.
            held: The last gradients (clients, width), of methods that track them.
            events: What fires in these iterations.
            factor: f of each link, (iterations or 1, links).
            s: The share of the mixing that is made.
            alive: Which runs advance, (runs,), bool.
            threads: How many threads share the work, at most.

        Returns:
            How often threads that waited for each other let something else run: many mean that the cores are busy.
        """
        for array in (theta, carried, events.rows, events.step, events.lr, events.active, events.fires):
            if not array.flags.c_contiguous:
                raise ValueError("advance needs C-contiguous arrays")
        if not alive.any() or not len(events.rows):
            return 0
        from dspodfl._kernels.cpu import _methods

        turn = np.empty((len(events.rows) + 1, self._clients), np.int64)
        _methods.turns(events.active, self._ptr, self._link, turn)
        factor = self._some if factor is None else np.ascontiguousarray(factor, self._dtype)
        held = self._some if held is None else held
        return self._work(method, theta, carried, held, events, factor, s, turn, alive, threads)

    def _work(
        self,
        method: str,
        theta: Array,
        carried: Array,
        held: Array,
        events: Events,
        factor: Array,
        s: float,
        turn: Array,
        alive: Array | None,
        threads: int,
    ) -> int:
        compiled = _compiled()
        division = self._division(alive, threads)
        division.counters.fill(0)
        data = (self._x, self._scale, self._shift, self._labels, self._targets, events.rows, self._batch_of)
        when = (events.fires, events.step, events.lr, turn, self._ptr, self._col, self._link, events.active, factor)
        numbers = (self._dtype.type(s), compiled.losses[self._loss], self._penalty)
        args = (*compiled.kinds[method], theta, carried, held, *data, *when, *numbers)
        if division.threads == 1:
            return int(compiled.work(*args, *self._scratch(0), self._first, *division.args, 0))
        share = lambda me: int(compiled.work(*args, *self._scratch(me), self._first, *division.args, me))  # noqa: E731
        return linear.shared(share, division.threads)

    def _division(self, alive: Array | None, threads: int) -> _Division:
        """How the work is divided among threads; where all runs advance, it is made once."""
        if alive is None:
            if threads not in self._everyone:
                every = np.ones(len(self._first) - 1, dtype=bool)
                self._everyone[threads] = self._division(every, threads)
            return self._everyone[threads]
        sizes = np.diff(self._first)
        clients, runs = np.flatnonzero(np.repeat(alive, sizes)), np.flatnonzero(alive)
        far = linear.is_far(sizes[runs], self._width * self._dtype.itemsize)
        whole = len(runs) >= threads and not far
        runs = runs[np.argsort(-sizes[runs], kind="stable")] if whole else runs[:0]
        group = max(1, len(clients) // (8 * threads)) if far else 1
        threads = max(1, min(threads, len(clients)))
        bounds = np.arange(threads + 1) * len(clients) // threads
        counters = linear.zeros((threads + 1, 2 * linear.LINE // 8), np.int64)
        return _Division(threads, counters, (runs, clients, bounds, group, counters))

    def _scratch(self, me: int) -> tuple[Array, ...]:
        """Room for the work of a thread, which is used again and again."""
        while len(self._scratches) <= me:
            self._scratches.append(self._room())
        return self._scratches[me]

    def _room(self) -> tuple[Array, ...]:
        from dspodfl._kernels.cpu import _linear

        features, dtype = self._x.shape[1] + self._bias, self._dtype
        batch = -(-self._batch // _linear.SAMPLES) * _linear.SAMPLES
        links = int(np.diff(self._ptr).max(initial=0)) + 2
        xs = linear.inputs(batch, features, dtype, self._bias)
        scores = linear.zeros((self._width // features, batch), dtype)
        row = linear.zeros((1, self._width), dtype)[0]
        return xs, scores, np.empty(links, np.int64), np.empty(links, dtype), self._none, row
