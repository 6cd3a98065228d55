"""Which process holds which clients, and which runs: few links cut, and every rank with about as much to do."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from dspodfl.network import Graph

_SLACK = 0.005
"""By how much of the whole a cut may be off its proportion to go through fewer links."""
_SQUARE = 1.5
"""Sides that differ by less than this are both tried."""
_TRIES, _MANY = 10, 200_000
"""METIS takes the best of this many tries; of one, above this number of clients, where a try takes a second."""
_GRAIN = 1000
"""METIS weighs in integers: a client of average weight has this many."""


def place(graph: Graph, samples: np.ndarray, work: np.ndarray, ranks: int) -> np.ndarray:
    """The rank of each client: balanced by samples held and by work expected, each counting half.

    Clients are divided by METIS, and those with positions by position as well: whichever cuts fewer links is taken.
    (By position is best on lattices, METIS on geometric graphs, where it cuts half as many.)
    Every rank gets a client. Shapes: samples, work (clients,) -> (clients,), int64.
    """
    weight = samples / samples.mean() + work / work.mean()
    if ranks == 1:
        return np.zeros(graph.n, dtype=np.int64)
    ways = [_filled(_metis(graph, weight, ranks), ranks)]
    if graph.positions is not None:
        ways.append(bisect(graph.positions, weight, ranks, graph.edges))
    return min(ways, key=lambda owner: cut(graph, owner))


def bisect(positions: np.ndarray, weight: np.ndarray, parts: int, edges: np.ndarray | None = None) -> np.ndarray:
    """Recursive coordinate bisection: cut across a longer side, weight in proportion to the parts on each side.

    Within `_SLACK` of that proportion, and of two sides that are about as long, the cut through fewest links is taken.
    Shapes: positions (n, 2), weight (n,), edges (links, 2) -> (n,), int64; no part is empty where n ≥ parts.

    >>> bisect(np.array([[0.0, 0], [0.1, 0], [0.9, 0], [1.0, 0]]), np.ones(4), 2).tolist()
    [0, 0, 1, 1]
    """
    edges = np.zeros((0, 2), dtype=np.int64) if edges is None else edges
    owner = np.zeros(len(positions), dtype=np.int64)
    todo = [(np.arange(len(positions)), 0, parts)]
    while todo:
        members, first, count = todo.pop()
        if count == 1:
            owner[members] = first
            continue
        where, left = positions[members], count // 2
        length = np.ptp(where, axis=0)
        tries = []
        for side in np.flatnonzero(length >= length.max() / _SQUARE).tolist():
            order = members[np.lexsort((members, where[:, 1 - side], where[:, side]))]
            tries.append((*_best_cut(order, weight, left, count, edges), side, order))
        _, _, at, _, order = min(tries, key=lambda one: one[:2])
        todo += [(order[:at], first, left), (order[at:], first + left, count - left)]
    return owner


def _best_cut(
    order: np.ndarray, weight: np.ndarray, left: int, count: int, edges: np.ndarray
) -> tuple[int, float, int]:
    """Links cut, how far from the proportion, and after how many clients of an order to cut it."""
    place = np.full(len(weight), -1)
    place[order] = np.arange(len(order))
    ends = np.sort(place[edges], axis=1)
    low, high = ends[ends[:, 0] >= 0].T
    steps = np.bincount(low + 1, minlength=len(order) + 2) - np.bincount(high + 1, minlength=len(order) + 2)
    through = np.cumsum(steps)[: len(order) + 1]
    before = np.concatenate([[0.0], np.cumsum(weight[order])])
    off = np.abs(before / before[-1] - left / count)
    off[:left] = off[len(order) - (count - left) + 1 :] = np.inf  # a client at least for each part
    fair = np.flatnonzero(off <= max(_SLACK, float(off.min())))
    at = int(fair[np.lexsort((off[fair], through[fair]))[0]])
    return int(through[at]), float(off[at]), at


def _metis(graph: Graph, weight: np.ndarray, parts: int) -> np.ndarray:
    import pymetis  # not needed by one process

    i, j = graph.edges.T
    row, col = np.concatenate([i, j]), np.concatenate([j, i])
    ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=graph.n))])
    whole = np.maximum(1, np.rint(weight / weight.mean() * _GRAIN)).astype(np.int64)
    adjacency = pymetis.CSRAdjacency(ptr, col[np.lexsort((col, row))])
    tries = _TRIES if graph.n <= _MANY else 1
    options = pymetis.Options(seed=0, ufactor=round(1000 * _SLACK), ncuts=tries, niter=30)
    _, owner = pymetis.part_graph(parts, adjacency=adjacency, vweights=whole.tolist(), recursive=True, options=options)
    return np.asarray(owner, dtype=np.int64)


def _filled(owner: np.ndarray, parts: int) -> np.ndarray:
    """The same, each part that is empty given a client of the largest; it happens where there are few clients."""
    owner = owner.copy()
    for part in range(parts):
        if not (owner == part).any():
            largest = int(np.argmax(np.bincount(owner, minlength=parts)))
            owner[np.flatnonzero(owner == largest)[-1]] = part
    return owner


def assign(work: Sequence[float], ranks: int) -> list[int]:
    """The rank of each run: the longest first, each to the rank that has least to do so far.

    >>> assign([5, 3, 3, 1], 2)
    [0, 1, 1, 0]
    """
    heap = [(0.0, rank) for rank in range(ranks)]
    out = [0] * len(work)
    for r in sorted(range(len(work)), key=lambda r: (-work[r], r)):
        load, rank = heapq.heappop(heap)
        out[r] = rank
        heapq.heappush(heap, (load + work[r], rank))
    return out


def cut(graph: Graph, owner: np.ndarray) -> int:
    """How many links have their ends on two ranks."""
    i, j = graph.edges.T
    return int((owner[i] != owner[j]).sum())
