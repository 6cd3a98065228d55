"""Schedules in which one client wakes at an iteration: the jump chain of Poisson clocks.

Client i wakes with probability λ_i/Σλ, where λ_i is its clock rate: 1 of all (``uniform``), or d_i (``rates``). Words
are those of the stream CLOCK, the same for all methods: slot 0 says who wakes, slot 1 which neighbour it picks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from dspodfl import rng
from dspodfl.network import Events, Graph, Part, Rates, WeightedTopology
from dspodfl.rng import Stream

Clocks = Literal["uniform", "rates"]
CLOCKS = ("uniform", "rates")
Steps = Literal["both", "waker", "drawn"]
STEPS = ("both", "waker", "drawn")
_COUNTED = 4096
"""Iterations whose wakes are counted at a time."""


def shares(k: np.ndarray, rates: Rates, clocks: Clocks) -> np.ndarray:
    """Return with which probability each client wakes.

    Args:
        k: The iterations, (iterations,).
        rates: The rates of the run.
        clocks: How clock rates follow from them.

    Returns:
        Probabilities, (iterations or 1, clients); the sum over clients is 1.
    """
    rate = rates.sgd(k) if clocks == "rates" else np.ones((1, rates.graph.n))
    return np.asarray(rate / rate.sum(axis=1, keepdims=True))


def wakes(k: np.ndarray, seed: int, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw which client wakes.

    Args:
        k: The iterations, (iterations,).
        seed: Of the run.
        share: With which probability each client wakes, (iterations or 1, clients).

    Returns:
        The clients, and the words by which they pick a neighbour, (iterations,) each.
    """
    word = rng.words(seed, Stream.CLOCK, rng.MASK, rng.MASK, np.asarray(k), slots=2)
    bound = rng.threshold(np.minimum(np.cumsum(share, axis=1), 1.0))
    bound[:, -1] = rng.WORD
    if len(bound) == 1:
        return np.searchsorted(bound[0], word[:, 0], side="right"), word[:, 1]
    return (bound <= word[:, :1]).sum(axis=1), word[:, 1]


def _links_by_client(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the links of each client in the order of its neighbours: link[first[i]:first[i + 1]]."""
    i, j = graph.edges.T
    ends, others = np.concatenate([i, j]), np.concatenate([j, i])
    order = np.lexsort((others, ends))
    first = np.concatenate([[0], np.cumsum(graph.degree)])
    return np.tile(np.arange(graph.links), 2)[order], first


@dataclass(frozen=True, eq=False)
class PairwiseGossip:
    """One client wakes and picks one of its neighbours uniformly; the link between them fires alone, with weight ½.

    A client without neighbours wakes as others do, and no link fires then.

    Args:
        clocks: How often clients wake.
        steps: Who takes a step: both ends of the link, the client that woke, or each end with probability d_i.
    """

    clocks: Clocks = "uniform"
    steps: Steps = "both"

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part at iterations k."""
        graph = rates.graph
        waker, word = wakes(k, part.seed, shares(k, rates, self.clocks))
        link, first = _links_by_client(graph)
        degree = graph.degree[waker]
        place = first[waker] + rng.index_below(word, degree)
        picked = np.full(len(waker), -1)
        picked[degree > 0] = link[place[degree > 0]]
        other = np.where(degree > 0, graph.edges[picked].sum(axis=1) - waker, waker) if graph.links else waker
        v = part.client == waker[:, None]
        if self.steps != "waker":
            v = v | (part.client == other[:, None])
        if self.steps == "drawn":
            drawn = rng.words(part.seed, Stream.SGD, part.client, k=np.asarray(k)[:, None])[..., 0]
            v = v & rng.bernoulli(drawn, rates.sgd(k)[:, part.client])
        return Events(v, part.link == picked[:, None])

    def weights(self, k: np.ndarray, graph: Graph) -> np.ndarray:
        """Return ½ for every link, (1, links)."""
        return np.full((1, graph.links), 0.5)


def ad_psgd(*, clocks: Clocks = "rates") -> PairwiseGossip:
    """Return the schedule of AD-PSGD: one client wakes, averages with a neighbour, and steps alone.

    Args:
        clocks: How often clients wake.
    """
    return PairwiseGossip(clocks, "waker")


@dataclass(frozen=True, eq=False)
class Swift:
    """One client wakes and steps; at every c-th of its wakes the links to all of its neighbours fire.

    The client that woke gives its neighbour j the weight r_ij min(p_i, p_j)/p_i, where p_i is the probability that i
    wakes: p_i w_ij = p_j w_ji, so that the expected matrix is symmetric.

    Args:
        clocks: How often clients wake.
        every: c, the wakes of a client between two averages, the second included.
    """

    clocks: Clocks = "rates"
    every: int = 1
    _counts: WeakKeyDictionary[Rates, dict[int, list[np.ndarray]]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part at iterations k."""
        waker, _ = wakes(k, part.seed, shares(k, rates, self.clocks))
        exchanges = (part.ends == waker[:, None, None]).any(axis=2)
        if self.every > 1:
            exchanges &= (self._own_wakes(np.asarray(k), part.seed, rates) % self.every == 0)[:, None]
        return Events(part.client == waker[:, None], exchanges)

    def weights(self, k: np.ndarray, graph: Graph, base: WeightedTopology, rates: Rates, seed: int) -> np.ndarray:
        """Return the weights of the client that wakes for its neighbours; for other links those of the graph."""
        share = shares(k, rates, self.clocks)
        waker, _ = wakes(k, seed, share)
        ends = np.where(graph.edges == waker[:, None, None], share[:, graph.edges], np.inf).min(axis=2)
        ratio = np.where(np.isinf(ends), 1.0, share[:, graph.edges].min(axis=2) / ends)
        return np.asarray(base.at(k)[1] * ratio)

    def _own_wakes(self, k: np.ndarray, seed: int, rates: Rates) -> np.ndarray:
        """Return the how-manieth wake of its client each one is, counted from 1. Shapes: (iterations,) both."""
        known = self._counts.setdefault(rates, {}).setdefault(seed, [np.zeros(rates.graph.n, dtype=np.int64)])
        while len(known) <= int(k.max()) // _COUNTED:
            known.append(known[-1] + np.bincount(self._block(len(known) - 1, seed, rates), minlength=rates.graph.n))
        found = np.empty(len(k), dtype=np.int64)
        for block in np.unique(k // _COUNTED).tolist():
            here = k // _COUNTED == block
            waker = self._block(block, seed, rates)
            found[here] = (known[block][waker] + 1 + _earlier(waker))[k[here] - block * _COUNTED]
        return found

    def _block(self, block: int, seed: int, rates: Rates) -> np.ndarray:
        at = np.arange(block * _COUNTED, (block + 1) * _COUNTED)
        return wakes(at, seed, shares(at, rates, self.clocks))[0]


def _earlier(values: np.ndarray) -> np.ndarray:
    """Return how many earlier entries of an array are the same.

    >>> _earlier(np.array([3, 1, 3, 3])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    first = np.searchsorted(values[order], values[order])
    out = np.empty(len(values), dtype=np.int64)
    out[order] = np.arange(len(values)) - first
    return out
