"""MATCHA: matchings of a graph that fire as a whole, with probabilities that make the expected graph well connected."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from dspodfl import rng
from dspodfl.algorithms.draws import Draws
from dspodfl.errors import InputError
from dspodfl.network import Events, Graph, Part, Rates

MAX_CLIENTS = 1000
"""Clients of a graph whose matchings get probabilities: they take eigenvectors of dense matrices."""
_GAP = 1e-5
"""The share of λ₂ that the probabilities may miss."""
_ROUNDS, _CUTS = 200, 300
"""Rounds of cutting planes, and cuts that are kept, at most."""
_INTO = 0.6
"""How far from the best point so far to the optimum of the cuts the next point is."""
_VECTORS = 4
"""Eigenvectors that give cuts in a round, and every two of them at some angles."""
_ANGLES = np.pi * np.arange(1, 4) / 4
_DIGITS = 6
"""Decimals of the probabilities, so that another version of a solver gives the same events."""


def matchings(graph: Graph) -> np.ndarray:
    """Split the links of a graph into matchings: no two links of one have a client in common.

    Links are taken in their order, each into the first matching that it fits into. Where that makes too many, they are
    split by the method of Misra and Gries (1992), which needs at most one matching more than the largest degree.

    Args:
        graph: The graph.

    Returns:
        The number of the matching of each link, (links,), from 0.

    >>> matchings(Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)])).tolist()
    [0, 1, 0]
    """
    at: list[set[int]] = [set() for _ in range(graph.n)]
    found = np.zeros(graph.links, dtype=np.int64)
    for e, (i, j) in enumerate(graph.edges.tolist()):
        found[e] = c = next(c for c in count() if c not in at[i] and c not in at[j])
        at[i].add(c)
        at[j].add(c)
    other = misra_gries(graph) if found.max(initial=-1) >= graph.degree.max(initial=0) else found
    return found if found.max(initial=-1) <= other.max(initial=-1) else other


def misra_gries(graph: Graph) -> np.ndarray:
    """Split the links of a graph into at most one matching more than the largest degree (Misra and Gries 1992).

    Args:
        graph: The graph.

    Returns:
        The number of the matching of each link, (links,), from 0.
    """
    colours = int(graph.degree.max(initial=0)) + 1
    at: list[dict[int, int]] = [{} for _ in range(graph.n)]  # client -> colour -> neighbour
    of: dict[tuple[int, int], int] = {}
    for u, v in graph.edges.tolist():
        _colour_link(u, v, at, of, colours)
    found = np.array([of[i, j] for i, j in graph.edges.tolist()], dtype=np.int64)
    return np.unique(found, return_inverse=True)[1] if len(found) else found


def _free(at: dict[int, int], colours: int) -> int:
    return next(c for c in range(colours) if c not in at)


def _colour_link(u: int, v: int, at: list[dict[int, int]], of: dict[tuple[int, int], int], colours: int) -> None:
    """Colour one link, which may change the colours of others."""

    def colour(i: int, j: int, c: int | None) -> None:
        key = (min(i, j), max(i, j))
        if key in of:
            old = of.pop(key)
            del at[i][old], at[j][old]
        if c is not None:
            of[key] = c
            at[i][c], at[j][c] = j, i

    fan = [v]
    while True:  # the next neighbour of u is one whose link has a colour that is free at the last
        last = at[fan[-1]]
        more = next((w for c, w in sorted(at[u].items()) if c not in last and w not in fan), None)
        if more is None:
            break
        fan.append(more)
    c, d = _free(at[u], colours), _free(at[fan[-1]], colours)
    if c != d:
        _invert(u, c, d, at, colour)
        # The part of the fan that still is one, up to a neighbour where d is free.
        end = next(n for n, w in enumerate(fan) if d not in at[w] and _is_fan(u, fan[: n + 1], at, of))
        fan = fan[: end + 1]
    shifted = [of[min(u, w), max(u, w)] for w in fan[1:]]
    for w in fan[1:]:
        colour(u, w, None)
    for w, new in zip(fan, [*shifted, d], strict=True):
        colour(u, w, new)


def _is_fan(u: int, fan: list[int], at: list[dict[int, int]], of: dict[tuple[int, int], int]) -> bool:
    links = [of[min(u, w), max(u, w)] for w in fan[1:]]
    return all(c not in at[w] for w, c in zip(fan[:-1], links, strict=True))


def _invert(u: int, c: int, d: int, at: list[dict[int, int]], colour: object) -> None:
    """Exchange two colours along the path from u that has them in turns, beginning with d (c is free at u)."""
    assert callable(colour)
    path, here, now = [], u, d
    while now in at[here]:
        there = at[here][now]
        path.append((here, there, c if now == d else d))
        here, now = there, c if now == d else d
    for i, j, _ in path:
        colour(i, j, None)
    for i, j, new in path:
        colour(i, j, new)


class Plan(NamedTuple):
    """What MATCHA does on a graph."""

    of: np.ndarray  # (links,) the matching of each link
    probability: np.ndarray  # (matchings,)
    weight: float
    """a, the weight of every link that fires."""
    radius: float
    """λ_max of E[P²] − J: by how much the squared distance from consensus falls in an iteration, on average."""


def plan(graph: Graph, budget: float) -> Plan:
    """Plan the matchings of a graph, their probabilities and the weight of their links.

    Args:
        graph: The graph.
        budget: C, the share of all matchings that fire at an iteration, on average.

    Returns:
        The plan.

    Raises:
        InputError: The graph has more than `MAX_CLIENTS` clients.
    """
    if graph.n > MAX_CLIENTS:
        allowed = f"used on a graph of at most {MAX_CLIENTS} clients (this one has {graph.n})"
        raise InputError("algorithms", "matcha", allowed)
    if not graph.links:
        return Plan(np.zeros(0, dtype=np.int64), np.zeros(0), 0.0, 1.0)
    of = matchings(graph)
    probability = probabilities(graph, of, budget)
    weight, radius = best_weight(graph, of, probability)
    return Plan(of, probability, weight, radius)


def laplacian(graph: Graph, weight: np.ndarray) -> np.ndarray:
    """Return the Laplacian Σ_e weight_e L_e of a graph.

    Args:
        graph: The graph.
        weight: Of its links, (links,).

    Returns:
        The matrix, (n, n).
    """
    i, j = graph.edges.T
    out = np.zeros((graph.n, graph.n))
    out[i, j] = out[j, i] = -weight
    out[np.diag_indices(graph.n)] = -out.sum(axis=1)
    return out


def probabilities(graph: Graph, of: np.ndarray, budget: float) -> np.ndarray:
    """Choose the probabilities of matchings: they maximize λ₂(Σ p_j L_j) under Σ p_j ≤ C·M and 0 ≤ p ≤ 1.

    λ₂ is concave, and at most vᵀ(Σ p_j L_j)v for every unit vector v that is orthogonal to 1: each gives a cut. A round
    adds cuts of several eigenvectors, since the smallest eigenvalues are equal where λ₂ is largest.

    Args:
        graph: The graph.
        of: The matching of each link, (links,).
        budget: C.

    Returns:
        The probabilities, (matchings,).
    """
    from scipy.optimize import linprog  # slow to import

    many = int(of.max()) + 1
    most = budget * many
    if most >= many:
        return np.ones(many)
    p = found = np.full(many, budget)
    best, bound = -1.0, np.inf
    cuts = np.zeros((0, many))
    for _ in range(_ROUNDS):
        value, vectors = _second(graph, p[of])
        if value > best:
            best, found = value, p
        cuts = np.concatenate([cuts, [_cut(graph, of, many, v) for v in vectors]])
        upper = np.concatenate([np.pad(-cuts, ((0, 0), (0, 1)), constant_values=1.0), [[*np.ones(many), 0.0]]])
        right = np.array([0.0] * len(cuts) + [most])
        solved = linprog([*np.zeros(many), -1.0], upper, right, bounds=[(0, 1)] * many + [(0, None)], method="highs")
        bound = min(bound, -solved.fun)
        if bound - best <= _GAP * best:
            break
        cuts = cuts[np.argsort(cuts @ solved.x[:-1], kind="stable")[:_CUTS]]  # the tightest ones
        p = np.clip(_INTO * solved.x[:-1] + (1.0 - _INTO) * found, 0.0, 1.0)
    return np.floor(found * 10**_DIGITS + 1e-3) / 10**_DIGITS


def _second(graph: Graph, weight: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """Return λ₂ of a weighted graph, and unit vectors orthogonal to 1 that give good cuts."""
    lifted = laplacian(graph, weight) + np.full((graph.n, graph.n), (2.0 * weight.sum() + 1.0) / graph.n)
    value, vectors = np.linalg.eigh(lifted)  # the eigenvalue of 1 is above all others
    few = vectors[:, : min(_VECTORS, graph.n - 1)].T
    mixed = [np.cos(t) * a + np.sin(t) * b for n, a in enumerate(few) for b in few[n + 1 :] for t in _ANGLES]
    return float(value[0]), [*few, *mixed]


def _cut(graph: Graph, of: np.ndarray, many: int, v: np.ndarray) -> np.ndarray:
    """Return vᵀL_jv of every matching, (matchings,)."""
    i, j = graph.edges.T
    return np.bincount(of, weights=(v[i] - v[j]) ** 2, minlength=many)


def best_weight(graph: Graph, of: np.ndarray, probability: np.ndarray) -> tuple[float, float]:
    """Choose the weight a that minimizes λ_max(I − 2aL̄ + a²(L̄² + 2L̃) − J), which is convex in a.

    Args:
        graph: The graph.
        of: The matching of each link, (links,).
        probability: Of the matchings, (matchings,).

    Returns:
        a, and the λ_max there.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    mean = laplacian(graph, probability[of])
    varied = laplacian(graph, (probability * (1.0 - probability))[of])
    value, vectors = np.linalg.eigh(mean)
    alone = vectors[:, value <= 1e-9 * value[-1]]  # 1; a vector for each part, where the graph is not connected
    square, rest = mean @ mean + 2.0 * varied, np.eye(graph.n) - alone @ alone.T

    def radius(a: float) -> float:
        return float(np.linalg.eigvalsh(rest - 2.0 * a * mean + a**2 * square)[-1])

    solved = minimize_scalar(radius, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-10})
    a = round(float(solved.x), 9)
    return a, radius(a)


@dataclass(frozen=True, eq=False)
class Matcha:
    """Every client steps; each matching of the graph fires as a whole, independently of the others.

    Args:
        draws: The random words of the method.
        budget: C, the share of all matchings that fire at an iteration, on average.
    """

    draws: Draws
    budget: float = 0.5
    _plans: WeakKeyDictionary[Graph, Plan] = field(default_factory=WeakKeyDictionary, repr=False)

    def plan(self, graph: Graph) -> Plan:
        """Return the plan of a graph; it is made once.

        Args:
            graph: The graph.

        Returns:
            Its matchings, their probabilities, and the weight.
        """
        if graph not in self._plans:
            self._plans[graph] = plan(graph, self.budget)
        return self._plans[graph]

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part at iterations k."""
        found = self.plan(rates.graph)
        fires = np.zeros((len(k), 0), dtype=bool)
        if len(found.probability):
            fires = rng.bernoulli(self.draws.common(k, part, slots=len(found.probability)), found.probability)
        return Events(np.ones((len(k), len(part.client)), dtype=bool), fires[:, found.of[part.link]])

    def weights(self, k: np.ndarray, graph: Graph) -> np.ndarray:
        """Return a for every link, (1, links)."""
        return np.full((1, graph.links), self.plan(graph).weight)
