"""Time-varying topologies: which links of the superset graph exist at iteration k.

A time-varying topology never fires the links that are absent; everything else is unchanged. Mixing weights and
degrees follow the superset 𝒢, except under mobility, whose superset grows with the horizon: there they follow the
current graph (``time_varying_weights``).

To add dynamics, add a class or a function here under ``@DYNAMICS.register()``: its first docstring line is what users
read, its parameters are the keys of ``graph.dynamics``, each annotated with its range and a `Doc`, and it makes a
`Topology`. Configuration, template, docs and ``dspodfl list`` follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from annotated_types import Ge, Le, Len, Lt

from dspodfl import rng
from dspodfl.errors import LEAST, WORD, Count, Doc, EventProbability, InputError, Registry, shown
from dspodfl.network.chain import TwoState
from dspodfl.network.graph import Graph, union
from dspodfl.network.weights import WEIGHTS, ArcWeights, arc_weights, degrees, weights
from dspodfl.rng import Stream


class Topology(Protocol):
    """Which links exist at which iteration."""

    @property
    def graph(self) -> Graph:
        """The superset graph 𝒢."""
        ...

    @property
    def time_varying_weights(self) -> bool:
        """Whether weights and degrees follow the current graph instead of the superset."""
        ...

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """Return which links exist at each iteration.

        Args:
            k: Iterations, shape (iterations,), int64.

        Returns:
            Shape (iterations, links), bool; None where every link always exists.
        """
        ...


DYNAMICS: Registry[Any] = Registry("graph.dynamics.kind", context=("graph", "seed", "radius", "horizon", "on_progress"))
"""The dynamics: makers of a `Topology`. Context: ``graph``, the graph of the table; ``seed``; ``radius`` of a geometric
graph; ``horizon``, the iterations for which links are needed; ``on_progress``, called with the share that is done. A
parameter of type ``list[Graph]`` is a list of graph tables in the configuration. Facts: ``check``, a function of the
parameters that raises `InputError` where they do not fit together; ``positions``, whether the clients need some."""


@DYNAMICS.register("static")
@dataclass(frozen=True, eq=False)
class Static:
    """The same links always."""

    time_varying_weights: ClassVar[bool] = False

    graph: Graph

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """Every link, always."""
        return None


class Switching:
    """Several graphs, one after the other: each for ``period`` iterations in a cycle, or each from its ``times`` on.

    Args:
        graphs: The graphs, on the same clients.
        period: Iterations for which each graph is used.
        times: The iteration from which each graph is used, the first 0; instead of ``period``.

    Raises:
        InputError: Not exactly one of ``period`` and ``times`` is given, or it is out of range.

    >>> ring, star = Graph.from_edges(3, [(0, 1), (1, 2), (0, 2)]), Graph.from_edges(3, [(0, 1), (0, 2)])
    >>> Switching([ring, star], period=5).present(np.array([0, 4, 5, 10]))[:, 2].tolist()
    [True, True, False, True]
    """

    time_varying_weights = False

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
        """Return the links of the graph that is used at each iteration."""
        k = np.asarray(k)
        if self.period is not None:
            return self._member[(k // self.period) % len(self._member)]
        return self._member[np.searchsorted(np.asarray(self.times), k, side="right") - 1]


def _one_of_period_and_times(graphs: object, period: int | None, times: Sequence[int] | None) -> None:
    if (period is None) == (times is None):
        other = f"times (= {shown(times, 80)})"
        raise InputError("graph.dynamics.period", period, f"given, or else {other}, and not both")


@DYNAMICS.register(check=_one_of_period_and_times)
def switching(
    graph: Graph,
    graphs: Annotated[
        list[Graph],
        Len(1),
        Doc(
            "the graphs that follow that of the table, each a table with its kind and its own keys",
            example=[{"kind": "ring"}],
        ),
    ],
    period: Annotated[
        Count | None,
        Doc("iterations that each graph is used for, in a cycle; give either period or times", example=100),
    ] = None,
    times: Annotated[
        list[Annotated[int, Ge(0), Lt(WORD)]] | None,
        Doc("the iteration from which each graph is used: one entry per graph, the first 0; instead of period"),
    ] = None,
) -> Switching:
    """The graph of the table, then those of the list, in a cycle or each from its own iteration on."""
    return Switching([graph, *graphs], period=period, times=times)


@DYNAMICS.register("bernoulli")
@dataclass(frozen=True, eq=False)
class BernoulliLinks:
    """Each link exists with probability ``up``, drawn again at each iteration."""

    time_varying_weights: ClassVar[bool] = False

    graph: Graph
    seed: int
    up: Annotated[EventProbability, Doc("the probability that a link exists", example=0.9)]

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """Return one Bernoulli draw with probability ``up`` for each iteration and link."""
        return np.asarray(rng.bernoulli(_words(self.graph, self.seed, k), self.up))


@DYNAMICS.register("markov")
@dataclass(frozen=True, eq=False)
class Markov:
    """Each link is a Markov chain that appears and fails, stationary from the start.

    An absent link appears with probability ``up``, a present one fails with probability ``down``.
    """

    time_varying_weights: ClassVar[bool] = False

    graph: Graph
    seed: int
    up: Annotated[EventProbability, Doc("the probability that an absent link appears", example=0.1)]
    down: Annotated[EventProbability, Doc("the probability that a present link fails", example=0.05)]

    def __post_init__(self) -> None:
        if self.up == self.down == 0:
            raise InputError("graph.dynamics.up", self.up, "above 0 where down = 0: no link would ever change")

    @cached_property
    def _chain(self) -> TwoState:
        first = rng.words(self.seed, Stream.TOPOLOGY, self.graph.edges[:, 0], self.graph.edges[:, 1], slots=2)[..., 1]
        return TwoState(self.up, self.down, partial(_words, self.graph, self.seed), np.asarray(first))

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """Return the state of each link's chain at iterations k, consecutive or not."""
        return self._chain.at(k)


def _words(graph: Graph, seed: int, k: np.ndarray) -> np.ndarray:
    i, j = graph.edges.T
    return np.asarray(rng.words(seed, Stream.TOPOLOGY, i, j, np.asarray(k)[:, None])[..., 0])


Speed = Annotated[float, Ge(LEAST), Le(2)]
"""Sides of the unit square per iteration; above 2, several waypoints would be visited within one iteration."""
_SPEED = [0.001, 0.01]


def _least_to_most(speed: list[float], pause: float) -> None:
    if speed[0] > speed[1]:
        raise InputError("graph.dynamics.speed", speed, "[least, most] with least ≤ most")


@DYNAMICS.register("waypoint", check=_least_to_most, positions=True)
class Waypoint:
    """Clients of a geometric graph walk to random waypoints; links are the pairs within ``radius``.

    Random-waypoint mobility in the unit square. A client walks straight to a uniform waypoint at a speed uniform in
    [min, max] of the square's side per iteration, rests ``pause`` iterations, and walks to the next one. Leg l is drawn
    at address (seed, MOBILITY, client, k = l).

    Args:
        graph: The graph of iteration 0, with the positions of its clients, shape (clients, 2).
        seed: The seed of the draws.
        radius: The largest distance of two linked clients.
        horizon: Iterations for which the clients walk: pairs that meet later are not in the superset graph.
        speed: The least and the greatest speed.
        pause: Iterations that a client rests at each waypoint.
        on_progress: Called with the share of the walks that is done.

    Raises:
        InputError: The graph has no positions.
    """

    time_varying_weights = True

    def __init__(
        self,
        graph: Graph,
        seed: int,
        radius: float,
        horizon: int,
        speed: Annotated[
            list[Speed],
            Len(2, 2),
            Doc("the least and the greatest speed, in sides of the unit square per iteration"),
        ] = _SPEED,
        pause: Annotated[float, Ge(0), Le(1e9), Doc("iterations that a client rests at each waypoint")] = 0.0,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        start = graph
        if start.positions is None:
            raise InputError("graph.dynamics.kind", "waypoint", "used with a geometric graph (clients need positions)")
        self.radius, self.horizon = radius, horizon
        report = on_progress or (lambda share: None)
        self._legs = []
        for i in range(start.n):
            report(0.5 * i / start.n)
            self._legs.append(_legs(start.positions[i], i, seed, horizon, speed, pause))
        met = Graph.from_edges(start.n, self._union(start.n, report), start.positions, start.labels)
        self.graph = met.both_ways() if start.directed else met

    def _union(self, n: int, report: Callable[[float], None]) -> np.ndarray:
        """All pairs that are ever within the radius. Shape: (pairs, 2)."""
        from scipy.spatial import cKDTree  # slow to import, and rarely needed

        found, step = np.zeros(0, dtype=np.int64), max(1, _POSITIONS // n)
        for first in range(0, self.horizon, step):
            report(0.5 + 0.5 * first / self.horizon)
            where = self.positions(np.arange(first, min(first + step, self.horizon)))
            for at in where:
                near = cKDTree(at).query_pairs(self.radius, output_type="ndarray") @ [n, 1]
                fresh = near[~np.isin(near, found)] if len(near) else near
                found = np.concatenate([found, fresh]) if len(fresh) else found
            if len(found) == n * (n - 1) // 2:
                break  # all pairs have met
        return np.stack(np.divmod(found, n), axis=1)

    def positions(self, k: np.ndarray) -> np.ndarray:
        """Return where the clients are. Shapes: k (iterations,) -> (iterations, clients, 2)."""
        k = np.asarray(k, dtype=np.float64)
        coordinates = [[np.interp(k, times, points[:, axis]) for axis in (0, 1)] for times, points in self._legs]
        return np.array(coordinates).transpose(2, 0, 1)

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """Return which pairs are within the radius at each iteration."""
        where = self.positions(k)
        i, j = self.graph.edges.T
        return np.asarray(np.linalg.norm(where[:, i] - where[:, j], axis=-1) <= self.radius)


_LEGS = 64
"""Legs of a walk that are drawn in one batch."""
_POSITIONS = 2**18
"""Positions of clients that are held in one batch."""


def _legs(
    at: np.ndarray, client: int, seed: int, horizon: int, speed: Sequence[float], pause: float
) -> tuple[np.ndarray, np.ndarray]:
    """Times and places of a client's waypoints, until past the horizon. Shapes: (points,), (points, 2)."""
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
class WeightedTopology:
    """A topology with mixing weights: what the engine and the delays need of it.

    Attributes:
        unweighted: Which links exist at which iteration.
        rule: The rule of the weights: a name of `WEIGHTS`. On a directed graph they are those of `arcs_at`.

    Raises:
        InputError: The rule needs equal degrees, and they are not, or may change.

    >>> path = WeightedTopology(Static(Graph.from_edges(3, [(0, 1), (1, 2)])), "metropolis")
    >>> present, weight, degree = path.at(np.arange(4))
    >>> present is None, weight.round(3).tolist(), degree.tolist()
    (True, [[0.333, 0.333]], [[1, 2, 1]])
    """

    unweighted: Topology
    rule: str

    def __post_init__(self) -> None:
        if self.time_varying_weights and WEIGHTS[self.rule].facts.get("equal_degrees"):
            raise InputError("graph.weights", self.rule, "another rule under waypoint mobility, where degrees change")
        self.at(np.zeros(1, dtype=np.int64))

    @property
    def graph(self) -> Graph:
        """The superset graph 𝒢."""
        return self.unweighted.graph

    @property
    def time_varying_weights(self) -> bool:
        """Whether weights and degrees follow the current graph instead of the superset."""
        return self.unweighted.time_varying_weights

    @property
    def constant(self) -> bool:
        """Whether every link always exists."""
        return self.present(np.zeros(1, dtype=np.int64)) is None

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """Return which links exist at each iteration, as `Topology.present` does."""
        return self.unweighted.present(k)

    def at(self, k: np.ndarray) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
        """Return present links, weights r_ij and degrees |N_i| at each iteration.

        Args:
            k: Iterations, shape (iterations,), int64.

        Returns:
            Present links, (iterations, links) bool or None where all always exist; weights, (iterations or 1, links);
            degrees, (iterations or 1, clients).
        """
        graph = self.graph
        present = self.present(k)
        if self.time_varying_weights and present is not None:
            degree = degrees(graph.n, graph.edges, present)
        else:
            degree = graph.degree[None]
        return present, weights(self.rule, graph.n, graph.edges, degree), degree

    def arcs_at(self, k: np.ndarray) -> ArcWeights:
        """Return the weights of both directions of each link of a directed graph at each iteration.

        Args:
            k: Iterations, shape (iterations,), int64.

        Returns:
            The weights and the in-degrees. Degrees are those of the superset 𝒢, or of the current graph where weights
            follow it.
        """
        graph = self.graph
        assert graph.arcs is not None
        present = self.present(k) if self.time_varying_weights else None
        return arc_weights(graph.n, graph.edges, graph.arcs if present is None else graph.arcs & present[:, :, None])
