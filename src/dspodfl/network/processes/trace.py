"""Clients that are available when a recorded trace says so."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dspodfl.errors import Doc, InputError, Positive
from dspodfl.network.activation import AVAILABILITY, Entities, States
from dspodfl.network.graph import Graph

_COUNTED = 10**5
"""Iterations in a trace, at most, whose share is counted; else it is the share of time."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Intervals in which each client is available, repeated for ever.

    Attributes:
        bounds: Of each client: start, end, start, end, … in seconds, increasing.
        length: Seconds after which all begin again.
        seconds: Seconds of an iteration. What holds when an iteration begins holds for all of it.
    """

    bounds: list[np.ndarray]
    length: float
    seconds: float

    def states(self, at: Entities) -> States:
        """Return when each client is on."""
        bounds = [self.bounds[i] for i in at.i.tolist()]

        def on(k: np.ndarray) -> np.ndarray:
            time = np.asarray(k) * self.seconds % self.length
            inside = [np.searchsorted(bound, time, side="right") % 2 == 1 for bound in bounds]
            return np.stack(inside, axis=1)

        whole = round(min(self.length / self.seconds, _COUNTED))
        if whole and math.isclose(whole * self.seconds, self.length, rel_tol=1e-12):
            return States(on, on(np.arange(whole)).mean(axis=0))
        share = [float((bound[1::2] - bound[::2]).sum()) / self.length for bound in bounds]
        return States(on, np.array(share))


@AVAILABILITY.register()
def trace(
    graph: Graph,
    field: str,
    file: Annotated[str, Doc("a CSV file with the columns client,start,end, in seconds", example="trace.csv")],
    seconds: Annotated[Positive, Doc("seconds of an iteration", example=60.0)],
    length: Annotated[
        Positive | None, Doc("seconds after which the trace begins again; the last end in it if absent")
    ] = None,
) -> Trace:
    """Each client is on within the intervals of a file, which repeat beyond its end."""
    from dspodfl.network.traces_io import read_trace

    bounds = read_trace(file, graph, f"{field}.file")
    last = max(float(bound[-1]) for bound in bounds)
    if length is not None and length < last:
        raise InputError(f"{field}.length", length, f"at least {last:g}, the last end in {file}")
    return Trace(bounds, length or last, seconds)
