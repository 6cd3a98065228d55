"""How sporadic a run is, in the theorems' terms: d_min(k), d_max(k) and the largest ρ̃(k) over its iterations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dspodfl.algorithms import PAPER, Independent, draws_independently
from dspodfl.engine import Run
from dspodfl.errors import InputError
from dspodfl.network import BernoulliLinks
from dspodfl.theory.formulas.constants import Floats
from dspodfl.theory.formulas.spectral import rho_tilde

_MAX_NUMBERS_PER_CHUNK = 2**22


@dataclass(frozen=True, eq=False)
class Sporadicity:
    """How sporadic a run is.

    Attributes:
        least: The least SGD probability of any client at each iteration, shape (iterations,); (1,) where none changes.
        largest: The largest, of the same shape.
        rho_tilde: ρ̃ = max_k ρ̃(k), the contraction of mixing in its worst iteration.
    """

    least: Floats
    largest: Floats
    rho_tilde: float

    @property
    def d_min(self) -> float:
        """The least SGD probability of any client at any iteration."""
        return float(self.least.min())

    @property
    def d_max(self) -> float:
        """The largest."""
        return float(self.largest.max())

    @property
    def contracts(self) -> bool:
        """Whether ρ̃ < 1, without which the theorems say nothing."""
        return self.rho_tilde < 1.0 - 1e-12


def sporadicity(run: Run, iterations: int) -> Sporadicity:
    """Compute how sporadic a run is, over its iterations.

    A link that the topology shows with probability ``up``, drawn again at every iteration, fires with b·up. Other
    topologies show one graph after the other, and the one that contracts least decides.

    Args:
        run: The run: its schedule, rates, topology and weights.
        iterations: The number of iterations.

    Returns:
        d_min(k), d_max(k) and ρ̃.

    Raises:
        InputError: The algorithm has no known firing probabilities, or its events are not independent over time.
    """
    for name in ("availability", "channel", "churn"):
        process = getattr(run.rates, name)
        if process is not None:
            allowed = "left out: the theorems need events that are independent over time"
            raise InputError(f"rates.{name}", process, allowed)
    if not draws_independently(run.schedule):
        several = f"{', '.join(PAPER[:-1])} or {PAPER[-1]}"
        allowed = f"an algorithm with known firing probabilities: {several}"
        raise InputError("algorithms", run.algorithm, allowed)
    least, largest, radius = [], [], 0.0
    done: set[bytes] = set()
    for p, q, r in _rows(run, run.schedule, iterations):
        least.append(p.min(axis=1))
        largest.append(p.max(axis=1))
        for probability, weight in zip(*np.broadcast_arrays(q, r), strict=True):
            key = probability.tobytes() + weight.tobytes()
            if radius < 1.0 and key not in done:
                done.add(key)
                radius = max(radius, rho_tilde(run.rates.graph, weight, probability))
    return Sporadicity(np.concatenate(least), np.concatenate(largest), radius)


def _rows(run: Run, schedule: Independent, iterations: int) -> Iterator[tuple[Floats, Floats, Floats]]:
    """SGD probabilities, link probabilities and weights of some iterations at a time; one row where none changes."""
    topology, rates = run.topology.unweighted, run.rates
    up = topology.up if isinstance(topology, BernoulliLinks) else None
    constant = schedule.constant(rates) and (run.topology.constant or up is not None)
    step = 1 if constant else max(1, _MAX_NUMBERS_PER_CHUNK // max(1, rates.graph.n + rates.graph.links))
    for first in range(0, 1 if constant else iterations, step):
        k = np.arange(first, min(first + step, iterations))
        p, q = schedule.probabilities(k, rates)
        q = 1.0 - (1.0 - q) ** 2 if rates.two_sided else q
        present, r, _ = run.topology.at(k)
        if up is not None:
            q = q * up
        elif present is not None:
            r = r * present  # under mobility, weights are those of the links that are there
        yield p, q, r
