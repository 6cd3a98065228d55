"""Graphs that change: which links of the superset graph exist at iteration k.

A changing topology never fires the links that are absent; everything else stays as it is. Mixing weights and
degrees follow the superset 𝒢, except under mobility, whose superset grows with the horizon: there they follow the
current graph (``moving``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.spatial import cKDTree

from dspodfl import rng
from dspodfl.errors import InputError
from dspodfl.network.graph import Graph, union
from dspodfl.network.weights import WEIGHTS, degrees, weights
from dspodfl.rng import Stream


class Topology(Protocol):
    """Which links exist when."""

    @property
    def graph(self) -> Graph:
        """The superset graph 𝒢."""
        ...

    @property
    def moving(self) -> bool:
        """Whether weights and degrees follow the current graph instead of the superset."""
        ...

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """(iterations,) -> (iterations, links) bool, or None where every link always exists."""
        ...


@dataclass(frozen=True, eq=False)
class Static:
    """The same links always."""

    graph: Graph
    moving: bool = False

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """Every link, always."""
        return None


class Switching:
    """Graphs that take turns: each for ``period`` iterations in a cycle, or each from its ``times`` on.

    >>> ring, star = Graph.from_edges(3, [(0, 1), (1, 2), (0, 2)]), Graph.from_edges(3, [(0, 1), (0, 2)])
    >>> Switching([ring, star], period=5).present(np.array([0, 4, 5, 10]))[:, 2].tolist()
    [True, True, False, True]
    """

    moving = False

    def __init__(self, graphs: Sequence[Graph], period: int | None = None, times: Sequence[int] | None = None) -> None:
        if (period is None) == (times is None):
            raise InputError("graph.dynamics", {"period": period, "times": times}, "given one of period, times")
        if period is not None and period < 1:
            raise InputError("graph.dynamics.period", period, "an integer of at least 1")
        if times is not None and (len(times) != len(graphs) or times[0] != 0 or (np.diff(times) <= 0).any()):
            raise InputError(
                "graph.dynamics.times", list(times), f"{len(graphs)} increasing iterations, the first one 0"
            )
        self.graph = union(graphs)
        self.period, self.times = period, times
        n = self.graph.n
        key = self.graph.edges @ [n, 1]  # increasing: links are in lexicographic order
        self._member = np.zeros((len(graphs), self.graph.links), dtype=bool)
        for g, graph in enumerate(graphs):
            self._member[g, np.searchsorted(key, graph.edges @ [n, 1])] = True

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """The links of the graph whose turn it is."""
        k = np.asarray(k)
        if self.period is not None:
            return self._member[(k // self.period) % len(self._member)]
        return self._member[np.searchsorted(np.asarray(self.times), k, side="right") - 1]


@dataclass(frozen=True, eq=False)
class Flicker:
    """Each link exists with probability ``up``, independently at every iteration."""

    graph: Graph
    seed: int
    up: float
    moving: bool = False

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """Addressed Bernoulli(up) draws."""
        return np.asarray(rng.bernoulli(_words(self.graph, self.seed, k), self.up))


@dataclass(frozen=True, eq=False)
class Markov:
    """Each link is a two-state chain: an absent one appears with probability ``up``, a present one fails with ``down``.

    The state at k is a pure function of k. A word w below both thresholds forces "present", above both "absent";
    going back to the last such word (or to the stationary draw before k = 0) and forward again gives the state.
    """

    graph: Graph
    seed: int
    up: float
    down: float
    moving: bool = False

    def __post_init__(self) -> None:
        if self.up == self.down == 0:
            raise InputError("graph.dynamics.up", self.up, "above 0 where down = 0: no link would ever change")

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """The chain's state at each of consecutive or arbitrary iterations k."""
        k = np.asarray(k)
        first, last = int(k.min()), int(k.max())
        states = self._forward(self._state_before(first), np.arange(first, last + 1))
        return states[k - first]

    def _maps(self, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        word = _words(self.graph, self.seed, k)
        return rng.bernoulli(word, self.up), rng.bernoulli(word, 1.0 - self.down)  # next state from absent, present

    def _forward(self, state: np.ndarray, k: np.ndarray) -> np.ndarray:
        from_absent, from_present = self._maps(k)
        out = np.empty_like(from_absent)
        for t in range(len(k)):
            out[t] = state = np.where(state, from_present[t], from_absent[t])
        return out

    def _state_before(self, k: int) -> np.ndarray:
        start, chunk = k, 64
        while start > 0:
            start = max(0, start - chunk)
            from_absent, from_present = self._maps(np.arange(start, k))
            if (from_absent == from_present).any(axis=0).all():
                break
            chunk *= 2
        stationary = self.up / (self.up + self.down)
        word = rng.words(self.seed, Stream.TOPOLOGY, self.graph.edges[:, 0], self.graph.edges[:, 1], slots=2)
        state = np.asarray(rng.bernoulli(word[..., 1], stationary))
        return self._forward(state, np.arange(start, k))[-1] if k > start else state


def _words(graph: Graph, seed: int, k: np.ndarray) -> np.ndarray:
    i, j = graph.edges.T
    return np.asarray(rng.words(seed, Stream.TOPOLOGY, i, j, np.asarray(k)[:, None])[..., 0])


class Waypoint:
    """Random-waypoint mobility in the unit square: clients within ``radius`` of each other have a link.

    A client walks straight to a uniform waypoint at a speed uniform in [min, max] of the square's side per
    iteration, rests ``pause`` iterations, and goes on. Leg l is drawn at address (seed, MOBILITY, client, k = l).
    """

    moving = True

    def __init__(
        self,
        start: Graph,
        seed: int,
        radius: float,
        horizon: int,
        speed: tuple[float, float] = (0.001, 0.01),
        pause: float = 0.0,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        if start.positions is None:
            raise InputError("graph.dynamics.kind", "waypoint", "used with a geometric graph (clients need positions)")
        self.radius, self.horizon = radius, horizon
        tell = on_progress or (lambda share: None)
        self._legs = []
        for i in range(start.n):
            tell(0.5 * i / start.n)
            self._legs.append(_legs(start.positions[i], i, seed, horizon, speed, pause))
        self.graph = Graph.from_edges(start.n, self._union(start.n, tell), start.positions, start.labels)

    def _union(self, n: int, tell: Callable[[float], None]) -> np.ndarray:
        """All pairs that are ever within the radius. Shape: (pairs, 2)."""
        found, step = np.zeros(0, dtype=np.int64), max(1, _POSITIONS // n)
        for first in range(0, self.horizon, step):
            tell(0.5 + 0.5 * first / self.horizon)
            where = self.positions(np.arange(first, min(first + step, self.horizon)))
            for at in where:
                near = cKDTree(at).query_pairs(self.radius, output_type="ndarray") @ [n, 1]
                fresh = near[~np.isin(near, found)] if len(near) else near
                found = np.concatenate([found, fresh]) if len(fresh) else found
            if len(found) == n * (n - 1) // 2:
                break  # everyone has met everyone
        return np.stack(np.divmod(found, n), axis=1)

    def positions(self, k: np.ndarray) -> np.ndarray:
        """Where the clients are. Shapes: (iterations,) -> (iterations, clients, 2)."""
        k = np.asarray(k, dtype=np.float64)
        coordinates = [[np.interp(k, times, points[:, axis]) for axis in (0, 1)] for times, points in self._legs]
        return np.array(coordinates).transpose(2, 0, 1)

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """The pairs within radius."""
        where = self.positions(k)
        i, j = self.graph.edges.T
        return np.asarray(np.linalg.norm(where[:, i] - where[:, j], axis=-1) <= self.radius)


_LEGS = 64
"""Legs of a walk that are drawn in one batch."""
_POSITIONS = 2**18
"""Positions of clients that are held in one batch."""


def _legs(
    at: np.ndarray, client: int, seed: int, horizon: int, speed: tuple[float, float], pause: float
) -> tuple[np.ndarray, np.ndarray]:
    """Times and places at which a client turns, until past the horizon."""
    times, points, leg = [0.0], [at], 0
    drawn = np.empty((0, 3))
    while times[-1] < horizon:
        if leg % _LEGS == 0:
            drawn = rng.uniform(seed, Stream.MOBILITY, client, k=np.arange(leg, leg + _LEGS), count=3)
        x, y, u = drawn[leg % _LEGS]
        target = np.array([x, y])
        pace = speed[0] + u * (speed[1] - speed[0])
        arrival = times[-1] + float(np.linalg.norm(target - points[-1])) / pace
        times += [arrival, arrival + pause] if pause else [arrival]
        points += [target, target] if pause else [target]
        leg += 1
    return np.array(times), np.array(points)


@dataclass(frozen=True, eq=False)
class Wiring:
    """What the engine and the delays need of a topology: present links, their weights, the degrees behind them."""

    topology: Topology
    kind: str

    def __post_init__(self) -> None:
        if self.topology.moving and WEIGHTS[self.kind].facts.get("equal_degrees"):
            raise InputError("graph.weights", self.kind, "another rule under waypoint mobility, where degrees change")
        self.at(np.zeros(1, dtype=np.int64))

    @property
    def steady(self) -> bool:
        """Whether every link always exists."""
        return self.topology.present(np.zeros(1, dtype=np.int64)) is None

    def at(self, k: np.ndarray) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
        """Present links, r_ij and |N_i| at each k.

        Shapes: (iterations,) -> (iterations, links) or None, (iterations or 1, links), (iterations or 1, n).
        """
        graph = self.topology.graph
        present = self.topology.present(k)
        if self.topology.moving and present is not None:
            degree = degrees(graph.n, graph.edges, present)
        else:
            degree = graph.degree[None]
        return present, weights(self.kind, graph.n, graph.edges, degree), degree
