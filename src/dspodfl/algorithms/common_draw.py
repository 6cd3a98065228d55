"""Schedules whose links all exchange together: one draw for the whole run at each iteration (stream COMMON_DRAW).

together     every client steps; all links, or none
server       the same on the complete graph, with weights 1/n: P is I, or the average of all
skipping     as server, and a client stops computing at its first draw of "no" since the last exchange (GradSkip)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspodfl import rng
from dspodfl.network import Events, Graph, Part, Rates
from dspodfl.rng import Stream

PROBABILITY = 0.1
"""The probability that links exchange, unless it is given."""
_LOOK_BACK = 256
"""Iterations that are drawn again in one batch, to find the last exchange before a block."""


def fires(k: np.ndarray, seed: int, probability: float) -> np.ndarray:
    """Return whether all links exchange.

    Args:
        k: The iterations, (iterations,).
        seed: The seed of the run.
        probability: That they do.

    Returns:
        Shape (iterations,), bool.
    """
    return np.asarray(rng.bernoulli(rng.words(seed, Stream.COMMON_DRAW, k=np.asarray(k))[..., 0], probability))


@dataclass(frozen=True)
class Common:
    """Every client steps at every iteration; all links exchange together, with one probability."""

    probability: float = PROBABILITY

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part at iterations k."""
        drawn = fires(k, part.seed, self.probability)
        return Events(np.ones((len(drawn), len(part.client)), dtype=bool), np.repeat(drawn[:, None], len(part.link), 1))


@dataclass(frozen=True)
class Server(Common):
    """The same where an exchange gives everybody the average of all: the complete graph with weights 1/n."""

    def graph(self, base: Graph) -> Graph:
        """Return the complete graph of the clients of a graph.

        Args:
            base: The graph of the study.

        Returns:
            Its clients, with a link between every two.
        """
        pairs = np.stack(np.triu_indices(base.n, 1), axis=1)
        return Graph.from_edges(base.n, pairs, base.positions, base.labels)

    def weights(self, k: np.ndarray, graph: Graph) -> np.ndarray:
        """Return the mixing weights 1/n.

        Args:
            k: The iterations, (iterations,).
            graph: The complete graph.

        Returns:
            Shape (1, links).
        """
        return np.full((1, graph.links), 1.0 / graph.n)


@dataclass(frozen=True)
class Skipping(Server):
    """GradSkip: v_i(k) = 1 until the first draw of "skip" of client i since the last exchange, that one included.

    Client i draws "go on" with probability q_i, at the address of its steps (stream SGD).
    """

    q: float | Sequence[float] = 1.0

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part at iterations k, which are consecutive."""
        k = np.asarray(k)
        exchange, skip = fires(k, part.seed, self.probability), ~self._go_on(k, part)
        before = np.zeros((len(k) + 1, len(part.client)), dtype=np.int64)
        np.cumsum(skip, axis=0, out=before[1:])  # skips before each iteration of the block
        start = np.maximum.accumulate(np.where(exchange, np.arange(1, len(k) + 1), 0))
        start = np.concatenate([[0], start])[:-1]  # the first iteration of the round that each one is in
        v = before[:-1] == before[start]
        v[start == 0] &= self._computing(int(k[0]), part)
        return Events(v, np.repeat(exchange[:, None], len(part.link), 1))

    def _go_on(self, k: np.ndarray, part: Part) -> np.ndarray:
        """Shape: (iterations, clients of the part), bool."""
        q = np.asarray(self.q, dtype=np.float64)
        word = rng.words(part.seed, Stream.SGD, part.client, k=k[:, None])[..., 0]
        return np.asarray(rng.bernoulli(word, q[part.client] if q.ndim else q))

    def _computing(self, k: int, part: Part) -> np.ndarray:
        """Which clients have not skipped since the last exchange before k. Shape: (clients of the part,), bool."""
        computing = np.ones(len(part.client), dtype=bool)
        while k > 0 and computing.any():
            some = np.arange(max(0, k - _LOOK_BACK), k)
            exchange = np.flatnonzero(fires(some, part.seed, self.probability))
            first = int(exchange[-1]) + 1 if len(exchange) else 0
            computing &= self._go_on(some, part)[first:].all(axis=0)
            if len(exchange):
                break
            k = int(some[0])
        return computing


def together(probability: float = PROBABILITY) -> Common:
    """Return the schedule of decentralized Scaffnew: every client steps, and all links exchange together, or none.

    Args:
        probability: That they exchange.

    Returns:
        The schedule.
    """
    return Common(probability)


def server(probability: float = PROBABILITY) -> Server:
    """Return the schedule of Scaffnew: every client steps; with one probability, all models are averaged.

    Args:
        probability: That they are averaged.

    Returns:
        The schedule.
    """
    return Server(probability)


def skipping(probability: float = PROBABILITY, q: float | Sequence[float] = 1.0) -> Skipping:
    """Return the schedule of GradSkip: as that of Scaffnew, and clients stop computing until the next average.

    Args:
        probability: That all models are averaged.
        q: With which probability a client goes on computing: one number for all, or one for each client.

    Returns:
        The schedule.
    """
    return Skipping(probability, q if isinstance(q, int | float) else tuple(q))
