"""Stragglers: clients that work on one job after the other, and step when one ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from dspodfl import rng
from dspodfl.errors import LARGEST, Doc, Positive
from dspodfl.network.activation import AVAILABILITY, Entities, States
from dspodfl.rng import Stream

Shift = Annotated[float, Ge(1), Le(LARGEST)]
_KEPT = 64
"""Iterations from which clients' jobs can be followed, at most."""
_JOBS = 2**20
"""Jobs that are drawn in one batch, at most."""


@AVAILABILITY.register("stragglers", churn=False)
@dataclass(frozen=True)
class Stragglers:
    """Jobs of shift + Exp(rate) iterations, one after the other: a client is on in the iteration in which one ends.

    The shifted exponential of Lee et al. (2018) as a renewal process, stationary from the start: a client is on in a
    share 1/(shift + 1/rate) of the iterations. For a deadline in every iteration, take the law ``deadline``.
    """

    shift: Annotated[
        Shift | list[Shift], Doc("iterations that every job takes at least: one number, or one per client", example=2.0)
    ]
    rate: Annotated[
        Positive | list[Positive],
        Doc("1/rate iterations come on top on average: one number, or one per client", example=0.5),
    ]

    def states(self, at: Entities) -> States:
        """Return when each client is on."""
        shift, rate = at.each(self.shift, "shift"), at.each(self.rate, "rate")
        return States(_Jobs(at, shift, rate).on, 1.0 / (shift + 1.0 / rate))


@dataclass(frozen=True)
class _Pending:
    """The first jobs that end at or after an iteration: their numbers and when they end. Shapes: (clients,)."""

    job: np.ndarray
    end: np.ndarray


@dataclass(eq=False)
class _Jobs:
    """Jobs of clients. Ends are sums of addressed times, added one by one: wherever they are followed from, the same.

    Job 0 is under way when the run begins; what is left of it has the distribution that makes the process stationary.
    """

    at: Entities
    shift: np.ndarray
    rate: np.ndarray
    known: dict[int, _Pending] = field(default_factory=dict)

    def on(self, k: np.ndarray) -> np.ndarray:
        """Return in which iterations a job of each client ends. Shape: (iterations, clients)."""
        k = np.asarray(k)
        first, last = int(k.min()), int(k.max()) + 1
        known = self.known
        start = max((at for at in known if at <= first), default=None)
        pending = self._followed(self._first() if start is None else known[start], first, None)
        out = np.zeros((last - first, len(self.at)), dtype=bool)
        found = {**known, first: pending, last: self._followed(pending, last, out)}
        self.known = dict(list(found.items())[-_KEPT:])
        return out[k - first]

    def _first(self) -> _Pending:
        u = rng.uniform(self.at.seed, Stream.JOB, self.at.i, count=2)
        mean = self.shift + 1.0 / self.rate
        within = u[:, 1] * mean < self.shift
        left = np.where(within, u[:, 0] * self.shift, self.shift - np.log1p(-u[:, 0]) / self.rate)
        return _Pending(np.zeros(len(self.at), dtype=np.int64), left)

    def _followed(self, pending: _Pending, last: int, out: np.ndarray | None) -> _Pending:
        """Follow the jobs to iteration ``last``; mark in ``out``, which ends there, where they end."""
        job, end = pending.job.copy(), pending.end.copy()
        first = last - (0 if out is None else len(out))
        while len(rows := np.flatnonzero(end < last)):
            need = ((last - end[rows]) / (self.shift[rows] + 1.0 / self.rate[rows])).max()
            many = int(np.clip(1.1 * need + 2, 2, max(2, _JOBS // len(rows))))
            number = job[rows] + np.arange(1, many + 1)[:, None]
            u = rng.uniform(self.at.seed, Stream.JOB, self.at.i[rows], k=number)[..., 0]
            length = self.shift[rows] - np.log1p(-u) / self.rate[rows]
            ends = np.cumsum(np.concatenate([end[rows][None], length]), axis=0)
            over = ends[:-1] < last
            if out is not None:
                n, column = np.nonzero(over)
                out[np.floor(ends[n, column]).astype(np.int64) - first, rows[column]] = True
            done = over.sum(axis=0)
            job[rows], end[rows] = job[rows] + done, np.take_along_axis(ends, done[None], axis=0)[0]
        return _Pending(job, end)
