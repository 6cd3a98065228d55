"""Capability rates: how often client i can compute, d_i(k), and link (i, j) can carry a model, b_ij(k).

A law (`dspodfl.network.laws`) is drawn by inverse CDF of a uniform at the address of the client or link, so a rate
never depends on what else is in a study. Schedules decide what fires from these rates; delays always use them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dspodfl import rng
from dspodfl.network.activation import Activation, Process
from dspodfl.network.diurnal import Diurnal
from dspodfl.network.events import Events
from dspodfl.network.graph import Graph
from dspodfl.network.laws import Distribution, FixedValues
from dspodfl.network.part import Part
from dspodfl.rng import Stream

FLOOR = 1e-6
_VALUES = 2**20
"""Rates drawn in one batch."""


@dataclass(eq=False)
class Rates:
    """The rates d_i(k) of the clients and b_ij(k) of the links of one run.

    Attributes:
        graph: The graph whose clients and links have the rates.
        seed: The seed of the draws.
        sgd_law: The distribution of d_i, or its values.
        link_law: The distribution of b_ij, or its values.
        refresh: N > 0: both are drawn again in each epoch ⌊k/N⌋; 0: once.
        floor: Drawn rates are clipped to [floor, 1].
        growth: The learning rate α of d_i(k) = 1 − (1 − d_i) α(k)/α(0), by which clients compute more often as α falls.
        two_sided: Whether both ends of a link draw.
        diurnal: How d_i rises and falls with the time of day; None: it does not.
        availability: When clients can step, whatever a schedule fires; None: always.
        channel: When links can carry models; None: always.
        churn: When clients are there at all; None: always.

    >>> rates = Rates(Graph.from_edges(2, [(0, 1)]), 0, FixedValues([0.5, 1.0]), FixedValues(0.25))
    >>> rates.sgd(np.arange(3)).tolist(), rates.link(np.arange(3)).tolist()
    ([[0.5, 1.0]], [[0.25]])
    """

    graph: Graph
    seed: int
    sgd_law: Distribution | FixedValues
    link_law: Distribution | FixedValues
    refresh: int = 0
    floor: float = FLOOR
    growth: Callable[[np.ndarray], np.ndarray] | None = None
    two_sided: bool = False
    diurnal: Diurnal | None = None
    availability: Process | None = None
    channel: Process | None = None
    churn: Process | None = None
    _epoch0: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def sgd(self, k: np.ndarray) -> np.ndarray:
        """Return d_i at each iteration.

        Args:
            k: Iterations, shape (iterations,).

        Returns:
            The rates, shape (iterations, clients), or (1, clients) where they never change; float64. That of a server,
            which has no rate, is 1.
        """
        d = self._of_clients(k)
        return np.concatenate([d, np.ones((len(d), 1))], axis=1) if self.graph.server else d

    def _of_clients(self, k: np.ndarray) -> np.ndarray:
        """The same without a server."""
        d = self._at(k, "sgd")
        if self.diurnal is not None:
            d = np.clip(d * self.diurnal.factor(k, self.graph.clients, self.seed), self.floor, 1.0)
        if self.growth is None:
            return d
        share = self.growth(np.asarray(k)) / self.growth(np.zeros(1, dtype=np.int64))
        return 1.0 - (1.0 - d) * share[:, None]

    def link(self, k: np.ndarray) -> np.ndarray:
        """Return b_ij at each iteration.

        Args:
            k: Iterations, shape (iterations,).

        Returns:
            The rates, shape (iterations, links), or (1, links) where they never change; float64.
        """
        return self._at(k, "link")

    def back(self, k: np.ndarray) -> np.ndarray:
        """Return b of the direction j → i of each link (i, j), i < j, of a directed graph; `link` is i → j there.

        Args:
            k: Iterations, shape (iterations,).

        Returns:
            The rates as `link` returns them; 0 of a direction that is not there, in both.
        """
        return self._at(k, "back")

    @property
    def changing(self) -> bool:
        """Whether d_i depends on k."""
        return (
            self.growth is not None
            or self.diurnal is not None
            or (self.refresh > 0 and not isinstance(self.sgd_law, FixedValues))
        )

    @property
    def fixed(self) -> bool:
        """Whether neither d_i nor b_ij depends on k."""
        return self.growth is None and self.diurnal is None and self.refresh == 0

    @cached_property
    def activation(self) -> Activation | None:
        """What masks the events of any schedule: availability, channel and churn; None where there is none of them."""
        if self.availability is None and self.channel is None and self.churn is None:
            return None
        return Activation(self.graph, self.seed, self.availability, self.channel, self.churn)

    def masked(self, events: Events, k: np.ndarray, part: Part) -> Events:
        """Return the events of a schedule that availability, channel and churn let through.

        Args:
            events: What a schedule fires, of a part.
            k: The iterations, (iterations,).
            part: The clients and links of the events.

        Returns:
            The events that happen.
        """
        return events if self.activation is None else self.activation.masked(events, k, part)

    def marginal(self, p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities of events at one iteration, given those with which a schedule fires.

        Under availability, channel or churn, events of different iterations are not independent.

        Args:
            p: Probabilities of the clients, (iterations or 1, clients).
            q: Probabilities of the links, (iterations or 1, links), or of both directions of all, one after the other.

        Returns:
            Both, times the probability that the client or link is on.
        """
        if self.activation is None:
            return p, q
        clients, links = self.activation.share
        return p * clients, q * (np.tile(links, 2) if q.shape[1] != len(links) else links)

    def clipped(self, iterations: int = 1) -> tuple[int, int]:
        """Count the d_i and b_ij drawn for these iterations that were outside [floor, 1] and were clipped."""
        epochs = -(-iterations // self.refresh) if self.refresh else 1
        back = self._clipped("back", epochs) if self.graph.directed else 0
        return self._clipped("sgd", epochs), self._clipped("link", epochs) + back

    def _clipped(self, what: str, epochs: int) -> int:
        if isinstance(self.sgd_law if what == "sgd" else self.link_law, FixedValues):
            return 0
        step = max(1, _VALUES // max(1, self.graph.clients if what == "sgd" else self.graph.links))
        count = 0
        for first in range(0, epochs, step):
            raw = self._draw(np.arange(first, min(first + step, epochs)), what)
            outside = raw != np.clip(raw, self.floor, 1.0)
            count += int((outside if what == "sgd" or self.graph.arcs is None else outside & self._there(what)).sum())
        return count

    def _there(self, what: str) -> np.ndarray:
        """Which links of a directed graph have a direction, (links,)."""
        assert self.graph.arcs is not None
        return self.graph.arcs[:, 0 if what == "link" else 1]

    def _draw(self, epochs: np.ndarray, what: str) -> np.ndarray:
        law = self.sgd_law if what == "sgd" else self.link_law
        if isinstance(law, FixedValues):
            return np.repeat(self._fixed_values(law, what)[None], len(epochs), axis=0)
        out = np.empty((len(epochs), self.graph.clients if what == "sgd" else self.graph.links))
        step = max(1, _VALUES // max(1, len(epochs)))
        for first in range(0, out.shape[1], step):  # by parts: the words of a value take ten times its own memory
            if what == "sgd":
                address: dict[str, Any] = {"i": np.arange(first, min(first + step, self.graph.clients))}
            else:
                some = self.graph.edges[first : first + step]
                address = {"i": some[:, 0], "j": some[:, 1]} if what == "link" else {"i": some[:, 1], "j": some[:, 0]}
            stream = Stream.RATE_SGD if what == "sgd" else Stream.RATE_LINK
            out[:, first : first + step] = law(rng.uniform(self.seed, stream, **address, k=epochs[:, None], count=2))
        return out

    def _values(self, epochs: np.ndarray, what: str) -> np.ndarray:
        raw = self._draw(epochs, what)
        fixed = isinstance(self.sgd_law if what == "sgd" else self.link_law, FixedValues)
        found = raw if fixed else np.clip(raw, self.floor, 1.0)
        return found if what == "sgd" or self.graph.arcs is None else np.where(self._there(what), found, 0.0)

    def _fixed_values(self, law: FixedValues, what: str) -> np.ndarray:
        """Values that are given: one for each client or link; on a directed graph one for each arc, in order."""
        if what == "sgd":
            return law.expand(self.graph.clients, "clients")
        if self.graph.arcs is None:
            return law.expand(self.graph.links, "links")
        table = np.zeros(self.graph.arcs.shape)
        table[self.graph.arcs] = law.expand(len(self.graph.arc_list), "arcs")
        return table[:, 0 if what == "link" else 1]

    def _at(self, k: np.ndarray, what: str) -> np.ndarray:
        if self.refresh == 0:
            if what not in self._epoch0:
                self._epoch0[what] = self._values(np.zeros(1, dtype=np.int64), what)
            return self._epoch0[what]
        epochs, index = np.unique(np.asarray(k) // self.refresh, return_inverse=True)
        return self._values(epochs, what)[index]
