"""Runs stacked into one: what fires, what it costs, and who mixes with whom, for a block of iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dspodfl.data.dataset import Federation
from dspodfl.delay import Delays, Meter
from dspodfl.graph import Part
from dspodfl.learning_rate import LearningRate
from dspodfl.rates import Rates
from dspodfl.schedule import Events, Schedule
from dspodfl.topology import Wiring


@dataclass(frozen=True, eq=False)
class Run:
    """One algorithm on one seed: everything that decides its events, and the data its clients hold."""

    algorithm: str
    seed: int
    wiring: Wiring
    rates: Rates
    schedule: Schedule
    data: Federation
    learning_rate: LearningRate

    @property
    def clients(self) -> int:
        """The number of clients, m."""
        return self.rates.graph.n


@dataclass(frozen=True, eq=False)
class Tally:
    """Cumulative counts and delays of one run after each iteration of a block, shape (iterations,) each."""

    delays: Delays
    sgd_steps: np.ndarray
    link_uses: np.ndarray
    before: float  # cumulative raw total delay before the block


@dataclass(frozen=True, eq=False)
class Block:
    """Iterations first … first + length − 1 of every run: events, active mixing weights r_ij v̂_ij, and tallies."""

    k: np.ndarray  # (iterations,)
    events: list[Events]  # a run each
    active: list[np.ndarray]  # a run each, (iterations, links) float64
    tallies: list[Tally]


class Stack:
    """The disjoint union of runs; clients of run r are rows ``rows[r]`` of every stacked array."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        ends = np.cumsum([run.clients for run in runs]).tolist()
        self.rows = [slice(end - run.clients, end) for run, end in zip(runs, ends, strict=True)]
        self.clients = ends[-1]
        self._parts = [Part.whole(run.rates.graph, run.seed) for run in runs]

    def blocks(self, iterations: int, length: int) -> Iterator[Block]:
        """Consecutive blocks of at most ``length`` iterations."""
        meters = [Meter(run.rates.graph.edges, run.clients) for run in self.runs]
        last: list[Tally | None] = [None] * len(self.runs)
        for start in range(0, iterations, length):
            block = self._block(np.arange(start, min(start + length, iterations)), meters, last)
            last = list(block.tallies)
            yield block

    def _block(self, k: np.ndarray, meters: list[Meter], last: list[Tally | None]) -> Block:
        block = Block(k, [], [], [])
        for r, run in enumerate(self.runs):
            present, weight, degree = run.wiring.at(k)
            events = run.schedule(k, self._parts[r], run.rates)
            if present is not None:
                events = Events(events.v, events.v_hat & present)
            moving = present if run.wiring.topology.moving else None
            delays = meters[r].add(events, run.rates.sgd(k), run.rates.link(k), degree, moving)
            steps = np.cumsum(events.v.sum(axis=1))
            uses = np.cumsum(events.v_hat.sum(axis=1))
            previous, before = last[r], 0.0
            if previous is not None:
                steps, uses = steps + previous.sgd_steps[-1], uses + previous.link_uses[-1]
                before = float(previous.delays.total[-1])
            block.events.append(events)
            block.active.append(events.v_hat * weight)
            block.tallies.append(Tally(delays, steps, uses, before))
        return block
