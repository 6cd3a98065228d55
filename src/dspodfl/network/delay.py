"""Delay: what the events cost, from events and rates alone; no model is needed.

Raw, per iteration:   processing    (1/m) Σ_i v_i / d_i
                      transmission  (1/m) Σ_i (1/|N_i|) Σ_j c v̂_ij / b_ij,   c: the models that a use carries each way
                      on a directed graph (1/m) Σ_i (1/|N_in(i)|) Σ_j c v̂_ji / b_ji, over what i receives
Normalized:           each divided by its value with every client, or every link of the graph that the weights
                      follow, firing.

Raw delays are summed over iterations per client and per link and then reduced in entity order (`in_order`), so that
they are the same numbers however runs are stacked or split, and on whatever device. Normalized delays are a ratio per
iteration, then summed: a DGD iteration is exactly 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspodfl.network.events import Events

CHUNK = 64
"""Entities are summed one after the other in rows of this length, then the rows' sums likewise."""

DELAYS = ("processing", "transmission", "processing_normalized", "transmission_normalized")


@dataclass(frozen=True)
class Delays:
    """Cumulative delays after each iteration of a block, shape (iterations,) each, float64."""

    processing: np.ndarray
    transmission: np.ndarray
    processing_normalized: np.ndarray
    transmission_normalized: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Raw processing plus transmission."""
        return np.asarray(self.processing + self.transmission)

    @property
    def total_normalized(self) -> np.ndarray:
        """Normalized processing plus transmission."""
        return np.asarray(self.processing_normalized + self.transmission_normalized)


class DelayMeter:
    """Adds up the delays of one run, block by block.

    Example: two clients, one link, everything fires at rates ½: each iteration takes 2 + 2.

    >>> meter = DelayMeter(np.array([[0, 1]]), 2)
    >>> fire = Events(np.ones((3, 2), bool), np.ones((3, 1), bool))
    >>> half = np.full((1, 2), 0.5), np.full((1, 1), 0.5)
    >>> meter.add(fire, *half, degree=np.array([[1, 1]])).total.tolist()
    [4.0, 8.0, 12.0]
    """

    def __init__(self, edges: np.ndarray, n: int, models: float = 1.0) -> None:
        self.edges, self.n, self.models = edges, n, models
        self._client = np.zeros(n)
        self._link = np.zeros(len(edges))
        self._normalized = np.zeros(2)

    def add(
        self,
        events: Events,
        d: np.ndarray,
        b: np.ndarray,
        degree: np.ndarray,
        present: np.ndarray | None = None,
    ) -> Delays:
        """Add a block of iterations, and return the cumulative delays after each of them.

        Args:
            events: The events of the block: v (iterations, n), v_hat (iterations, links).
            d: The rates of the clients, shape (iterations or 1, n).
            b: The rates of the links, shape (iterations or 1, links).
            degree: The degrees of the clients, shape (iterations or 1, n).
            present: Which links exist, shape (iterations, links), where weights follow a time-varying graph; else None.

        Returns:
            The delays, shape (iterations,) each.
        """
        cost, link_cost = costs(self.edges, self.n, d, b, degree, self.models)
        everything = link_cost if present is None else np.where(present, link_cost, 0.0)
        spent, link_spent = events.v * cost, events.v_hat * link_cost
        processing, self._client = _running(self._client, spent)
        transmission, self._link = _running(self._link, link_spent)
        normalized = []
        for which, (done, whole) in enumerate(((spent, cost), (link_spent, everything))):
            top, bottom = np.broadcast_arrays(in_order(done), in_order(whole))
            ratio = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
            sums = np.cumsum(np.concatenate([self._normalized[which : which + 1], ratio]))[1:]
            self._normalized[which] = sums[-1]
            normalized.append(sums)
        return Delays(processing, transmission, *normalized)


def costs(
    edges: np.ndarray, n: int, d: np.ndarray, b: np.ndarray, degree: np.ndarray, models: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return what one step of each client and one use of each link add to the delays of a run.

    Args:
        edges: The links, shape (links, 2).
        n: The number of clients.
        d: The rates of the clients, shape (iterations or 1, n).
        b: The rates of the links, shape (iterations or 1, links).
        degree: The degrees of the clients, shape (iterations or 1, n).
        models: How many models one use of a link carries each way.

    Returns:
        The cost of a step, 1 / (n d_i), in the shape of d, and of a link, models · (1/|N_i| + 1/|N_j|) / (n b_ij), in
        that of b.

    >>> step, use = costs(np.array([[0, 1]]), 2, np.full((1, 2), 0.5), np.full((1, 1), 0.25), np.ones((1, 2)))
    >>> step.tolist(), use.tolist()
    ([[1.0, 1.0]], [[4.0]])
    """
    neighbours = np.maximum(degree, 1)
    share = 1.0 / neighbours[:, edges[:, 0]] + 1.0 / neighbours[:, edges[:, 1]]
    return 1.0 / d / n, share / b / n * models


def arc_costs(edges: np.ndarray, n: int, b: np.ndarray, back: np.ndarray, in_degree: np.ndarray) -> np.ndarray:
    """Return what one use of each direction of each link of a directed graph adds to the delays of a run.

    What is sent counts at the client that receives it: where both directions of a link have one rate, they cost
    together what the use of an undirected link does.

    Args:
        edges: The links, shape (links, 2).
        n: The number of clients.
        b: The rates of i → j, shape (iterations or 1, links); 0 where there is none.
        back: The rates of j → i, likewise.
        in_degree: From how many clients each receives, shape (iterations or 1, n).

    Returns:
        1 / (n |N_in(j)| b) of all links' i → j, then the same of j → i, shape (iterations or 1, 2 · links); 0 where
        there is none.

    >>> arc_costs(np.array([[0, 1]]), 2, np.full((1, 1), 0.25), np.full((1, 1), 0.5), np.ones((1, 2))).tolist()
    [[2.0, 1.0]]
    """
    neighbours = np.maximum(in_degree, 1)
    parts = []
    for rate, receiver in ((b, edges[:, 1]), (back, edges[:, 0])):
        whole = 1.0 / neighbours[:, receiver] / np.where(rate > 0, rate, np.inf) / n
        parts.append(whole)
    length = max(len(part) for part in parts)
    return np.concatenate([np.broadcast_to(part, (length, part.shape[1])) for part in parts], axis=1)


def in_order(values: np.ndarray) -> np.ndarray:
    """Sum over entities in their order, in rows of `CHUNK`. Shapes: (iterations, entities) -> (iterations,).

    >>> in_order(np.ones((2, 130))).tolist()
    [130.0, 130.0]
    """
    if values.shape[1] == 0:
        return np.zeros(len(values))
    while values.shape[1] > CHUNK:
        short = -values.shape[1] % CHUNK
        rows = np.pad(values, ((0, 0), (0, short))).reshape(len(values), -1, CHUNK)
        values = np.cumsum(rows, axis=2)[..., -1]
    return np.cumsum(values, axis=1)[:, -1]


def _running(carry: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums over iterations per entity, then over entities; and what to carry to the next block."""
    sums = np.cumsum(np.concatenate([carry[None], values]), axis=0)[1:]
    return in_order(sums), sums[-1]
