"""Which process holds which clients, and which runs: few links cut, and everybody with about as much to do."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from dspodfl.graph import Graph

_GRAIN = 1000
"""METIS weighs in integers: a client of average weight has so many."""


def place(graph: Graph, samples: np.ndarray, work: np.ndarray, ranks: int) -> np.ndarray:
    """The rank of each client: balanced by samples held and by work expected, each counting half.

    Clients with positions are divided by position, which cuts few links where links are short; others by METIS.
    Every rank gets a client. Shapes: samples, work (clients,) -> (clients,), int64.
    """
    weight = samples / samples.mean() + work / work.mean()
    if ranks == 1:
        return np.zeros(graph.n, dtype=np.int64)
    if graph.positions is not None:
        return bisect(graph.positions, weight, ranks)
    return _filled(_metis(graph, weight, ranks), ranks)


def bisect(positions: np.ndarray, weight: np.ndarray, parts: int) -> np.ndarray:
    """Recursive coordinate bisection: cut across the longer side, weight in proportion to the parts on each side.

    Shapes: positions (n, 2), weight (n,) -> (n,), int64; no part is empty where n ≥ parts.

    >>> bisect(np.array([[0.0, 0], [0.1, 0], [0.9, 0], [1.0, 0]]), np.ones(4), 2).tolist()
    [0, 0, 1, 1]
    """
    owner = np.zeros(len(positions), dtype=np.int64)
    todo = [(np.arange(len(positions)), 0, parts)]
    while todo:
        members, first, count = todo.pop()
        if count == 1:
            owner[members] = first
            continue
        where = positions[members]
        side = int(np.argmax(np.ptp(where, axis=0)))
        members = members[np.lexsort((members, where[:, 1 - side], where[:, side]))]
        left = count // 2
        sums = np.cumsum(weight[members])
        before = np.concatenate([[0.0], sums])
        cut = int(np.argmin(np.abs(before - sums[-1] * left / count)))
        cut = min(max(cut, left), len(members) - (count - left))
        todo += [(members[:cut], first, left), (members[cut:], first + left, count - left)]
    return owner


def _metis(graph: Graph, weight: np.ndarray, parts: int) -> np.ndarray:
    import pymetis  # not needed where clients have positions

    i, j = graph.edges.T
    row, col = np.concatenate([i, j]), np.concatenate([j, i])
    ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=graph.n))])
    whole = np.maximum(1, np.rint(weight / weight.mean() * _GRAIN)).astype(np.int64)
    adjacency = pymetis.CSRAdjacency(ptr, col[np.lexsort((col, row))])
    _, owner = pymetis.part_graph(parts, adjacency=adjacency, vweights=whole.tolist())
    return np.asarray(owner, dtype=np.int64)


def _filled(owner: np.ndarray, parts: int) -> np.ndarray:
    """The same, each part that is empty given a client of the largest; it happens where there are few clients."""
    owner = owner.copy()
    for part in range(parts):
        if not (owner == part).any():
            largest = int(np.argmax(np.bincount(owner, minlength=parts)))
            owner[np.flatnonzero(owner == largest)[-1]] = part
    return owner


def deal(work: Sequence[float], ranks: int) -> list[int]:
    """The rank of each run: the longest first, each to the rank that has least to do so far.

    >>> deal([5, 3, 3, 1], 2)
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
