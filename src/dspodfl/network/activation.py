"""Activation: which clients can step and which links can carry models at iteration k, whatever a schedule fires.

A process is on or off for each client or link at each iteration. Three of them may be given: ``availability`` masks the
steps of clients, ``channel`` the links, and ``churn`` both: an absent client neither steps nor exchanges, and comes
back with the model that it left with. They mask what any schedule fires, so that the methods of a study are paired.

Processes stand in `dspodfl.network.processes`, one file each. To add one, add a file with a class under
``@AVAILABILITY.register()`` (clients), ``@CHANNELS.register()`` (links) or both: its first docstring line is what users
read, its fields are its parameters, each annotated with its range and a `Doc`, and ``states`` says when it is on.
Configuration, template, docs and ``dspodfl list`` follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dspodfl import rng
from dspodfl.errors import InputError, Registry
from dspodfl.network.events import Events
from dspodfl.network.graph import Graph
from dspodfl.network.part import Part
from dspodfl.rng import Stream


@dataclass(frozen=True, eq=False)
class Entities:
    """The clients, or the links, that a process is of, by their addresses.

    Attributes:
        seed: The seed of the draws.
        stream: AVAILABLE, CHANNEL or CHURN.
        i: Clients, or the smaller ends of links, (entities,).
        j: 0, or the larger ends, (entities,).
        field: The key of the configuration, for errors.
    """

    seed: int
    stream: Stream
    i: np.ndarray
    j: np.ndarray
    field: str = "rates.availability"

    def __len__(self) -> int:
        return len(self.i)

    def words(self, k: np.ndarray, slots: int = 1) -> np.ndarray:
        """Return words of each of them.

        Args:
            k: The iterations, (iterations,).
            slots: The number of words of each address.

        Returns:
            Integers in [0, 2³²), (iterations, entities, slots).
        """
        return np.asarray(rng.words(self.seed, self.stream, self.i, self.j, np.asarray(k)[:, None], slots=slots))

    def each(self, values: float | Sequence[float], name: str) -> np.ndarray:
        """Return a value for each of them.

        Args:
            values: One for all, or one for each.
            name: The key that they stand under, for errors.

        Returns:
            Shape (entities,), float64.

        Raises:
            InputError: There are too few or too many.
        """
        given = np.asarray(values, dtype=np.float64)
        if given.ndim and len(given) != len(self):
            what = "links" if self.stream is Stream.CHANNEL else "clients"
            allowed = f"one value, or one for each of the {len(self)} {what}"
            raise InputError(f"{self.field}.{name}", f"{len(given)} values", allowed)
        return np.broadcast_to(given, (len(self),))


@dataclass(frozen=True, eq=False)
class States:
    """When each client or link is on.

    Attributes:
        on: Iterations (iterations,) -> (iterations, entities), bool: a pure function of them, in any order.
        share: The share of iterations in which each is on in the long run, (entities,): its probability at any one
            iteration, where only that is known.
    """

    on: Callable[[np.ndarray], np.ndarray]
    share: np.ndarray


class Process(Protocol):
    """What decides when clients or links are on."""

    def states(self, at: Entities) -> States:
        """Return when each of some clients or links is on.

        Args:
            at: Their addresses.

        Returns:
            Their states.
        """
        ...


AVAILABILITY: Registry[Any] = Registry("rates.availability.kind", context=("graph", "field"))
"""The processes of clients, for ``rates.availability`` and ``rates.churn``: makers of a `Process`. Context: ``graph``,
whose clients they are, and ``field``, the key of the configuration. Facts: ``churn``, False where a client that is off
is not absent."""
CHANNELS: Registry[Any] = Registry("rates.channel.kind", context=("graph", "field"))
"""The processes of links, for ``rates.channel``: makers of a `Process`; context as of `AVAILABILITY`."""


@dataclass(frozen=True, eq=False)
class Activation:
    """The processes of one run: what they let through, and how often.

    Attributes:
        graph: Whose clients and links they are.
        seed: The seed of the draws.
        availability: When clients can step; None: always.
        channel: When links can carry models; None: always.
        churn: When clients are there at all; None: always.
    """

    graph: Graph
    seed: int
    availability: Process | None = None
    channel: Process | None = None
    churn: Process | None = None

    @cached_property
    def _available(self) -> States | None:
        return self._of_clients(self.availability, Stream.AVAILABLE, "rates.availability")

    @cached_property
    def _there(self) -> States | None:
        return self._of_clients(self.churn, Stream.CHURN, "rates.churn")

    @cached_property
    def _open(self) -> States | None:
        if self.channel is None:
            return None
        i, j = self.graph.edges.T
        return self.channel.states(Entities(self.seed, Stream.CHANNEL, i, j, "rates.channel"))

    def _of_clients(self, process: Process | None, stream: Stream, field: str) -> States | None:
        if process is None:
            return None
        i = np.arange(self.graph.clients)
        found = process.states(Entities(self.seed, stream, i, np.zeros_like(i), field))
        return _with_server(found) if self.graph.server else found

    @cached_property
    def _last(self) -> list[tuple[tuple[int, int], tuple[np.ndarray, np.ndarray]]]:
        """The iterations that were asked for last, and what was on."""
        return []

    def on(self, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which clients can step and which links can carry models.

        Args:
            k: The iterations, (iterations,).

        Returns:
            Shapes (iterations or 1, clients) and (iterations or 1, links), bool; one row where there is no process.
        """
        k = np.asarray(k)
        consecutive = len(k) > 0 and bool((np.diff(k) == 1).all())
        if not consecutive:
            return self._on(k)
        key = int(k[0]), len(k)
        for known, found in self._last[:1]:  # the runs of a setting ask for the same iterations, one after the other
            if known == key:
                return found
        found = self._on(k)
        self._last[:] = [(key, found)]
        return found

    def _on(self, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        clients, links = np.ones((1, self.graph.n), dtype=bool), np.ones((1, self.graph.links), dtype=bool)
        if self._available is not None:
            clients = clients & self._available.on(k)
        if self._open is not None:
            links = links & self._open.on(k)
        if self._there is not None:
            there, (i, j) = self._there.on(k), self.graph.edges.T
            clients, links = clients & there, links & there[:, i] & there[:, j]
        return clients, links

    @cached_property
    def share(self) -> tuple[np.ndarray, np.ndarray]:
        """The probability that each client can step, (clients,), and that each link can carry models, (links,).

        Both ends of a link come and go independently of each other and of the link.
        """
        clients, links = np.ones(self.graph.n), np.ones(self.graph.links)
        if self._available is not None:
            clients = clients * self._available.share
        if self._open is not None:
            links = links * self._open.share
        if self._there is not None:
            there, (i, j) = self._there.share, self.graph.edges.T
            clients, links = clients * there, links * there[i] * there[j]
        return clients, links

    def masked(self, events: Events, k: np.ndarray, part: Part) -> Events:
        """Return the events that the processes let through.

        Args:
            events: What a schedule fires, of a part.
            k: The iterations, (iterations,).
            part: The clients and links of the events.

        Returns:
            The events where client and link are on.
        """
        clients, links = self.on(k)
        here = links[:, part.link]
        back = None if events.back is None else events.back & here
        return Events(events.v & clients[:, part.client], events.v_hat & here, back)


def _with_server(clients: States) -> States:
    """The states of some clients and of a server, which is always on."""

    def on(k: np.ndarray) -> np.ndarray:
        found = clients.on(k)
        return np.concatenate([found, np.ones((len(found), 1), dtype=bool)], axis=1)

    return States(on, np.append(clients.share, 1.0))
