"""Schedules of methods with a server: a star whose last node has neither data nor steps, and is not one of the clients.

rounds      a round: some clients receive a model from the server, take E steps, and send what they have back
anarchy     clients step with probability d_i and talk to the server with probability b_i, whenever they can
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from dspodfl import rng
from dspodfl.algorithms.base import Probabilities
from dspodfl.algorithms.draws import Draws
from dspodfl.algorithms.schedules import draw
from dspodfl.network import Events, Graph, Part, Rates
from dspodfl.rng import Stream

STEPS = 5
"""Steps of a client in a round, unless they are given."""
_DRAWS = Draws("rounds")
"""Random words that decide who takes part in a round."""
RATES = "rates"
"""Clients take part with the rates of their links."""


def star(base: Graph) -> Graph:
    """Return the star of the clients of a graph, with a server as one more node.

    Args:
        base: The graph of the study.

    Returns:
        Links (i, n) of all clients i to the server n; ``base`` itself where it has a server.

    >>> star(Graph.from_edges(3, [(0, 1), (1, 2)])).edges.tolist()
    [[0, 3], [1, 3], [2, 3]]
    """
    if base.server:
        return base
    clients = np.arange(base.n)
    labels = None if base.labels is None else (*base.labels, "server")
    found = Graph.from_edges(base.n + 1, np.stack([clients, np.full_like(clients, base.n)], axis=1), None, labels)
    return replace(found, server=True)


@dataclass(frozen=True)
class Rounds:
    """Rounds of E + 1 iterations: clients receive at the first, take E steps from it on, and send at the last.

    Methods that proceed in rounds have the same clients in them.

    Attributes:
        steps: E.
        share: The share of the clients that take part in a round, drawn without replacement; "rates": each client takes
            part with the rate b_i of its link.
    """

    steps: int = STEPS
    share: float | Literal["rates"] = 1.0

    def graph(self, base: Graph) -> Graph:
        """Return the star of the clients of a graph.

        Args:
            base: The graph of the study.

        Returns:
            The star, its last node the server.
        """
        return star(base)

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part at iterations k."""
        rounds, place = np.divmod(np.asarray(k), self.steps + 1)
        different, which = np.unique(rounds, return_inverse=True)
        takes_part = self._taking_part(different, part, rates)[which]  # (iterations, clients and server)
        talks = ((place == 0) | (place == self.steps))[:, None]
        return Events(
            takes_part[:, part.client] & (place < self.steps)[:, None], takes_part[:, part.ends[:, 0]] & talks
        )

    def _taking_part(self, rounds: np.ndarray, part: Part, rates: Rates) -> np.ndarray:
        """Which clients take part in some rounds; the server, which is last, never does. Shape: (rounds, nodes)."""
        server = rates.graph.n - 1
        found = np.zeros((len(rounds), server + 1), dtype=bool)
        if self.share == RATES:
            k = rounds * (self.steps + 1)
            word = rng.words(part.seed, Stream.LINK, np.arange(server), np.full(server, server), k[:, None], slots=2)
            b = rates.link(k)
            fires = rng.bernoulli(word[..., 0], b)
            found[:, :server] = fires | rng.bernoulli(word[..., 1], b) if rates.two_sided else fires
            return found
        count = max(1, round(float(self.share) * server))
        if count == server:
            found[:, :server] = True
            return found
        word = _DRAWS.clients(rounds, Part.whole(rates.graph, part.seed))[:, :server, 0]
        some = np.argsort(word, axis=1, kind="stable")[:, :count]
        np.put_along_axis(found, some, True, axis=1)
        return found


@dataclass(frozen=True)
class Anarchy:
    """Clients step with probability d_i, and their links to the server fire with probability b_i, independently."""

    independent: ClassVar[bool] = True

    def graph(self, base: Graph) -> Graph:
        """Return the star of the clients of a graph.

        Args:
            base: The graph of the study.

        Returns:
            The star, its last node the server.
        """
        return star(base)

    def probabilities(self, k: np.ndarray, rates: Rates) -> Probabilities:
        """Return d_i, 0 of the server, and b_i.

        Args:
            k: The iterations, (iterations,).
            rates: The rates.

        Returns:
            Shapes (iterations or 1, clients and server) and (iterations or 1, links).
        """
        p = rates.sgd(k).copy()
        p[:, -1] = 0.0
        return p, rates.link(k)

    def constant(self, rates: Rates) -> bool:
        """Return whether the probabilities are the same at every iteration."""
        return rates.fixed

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part at iterations k."""
        p, q = self.probabilities(k, rates)
        return draw(k, part, p[:, part.client], q[:, part.link], two_sided=rates.two_sided)


def rounds(steps: int = STEPS, share: float | Literal["rates"] = 1.0) -> Rounds:
    """Return the schedule of FedAvg: rounds in which some clients receive, take steps and send.

    Args:
        steps: E, the steps of a client in a round.
        share: The share of the clients that take part in a round, or "rates".

    Returns:
        The schedule.
    """
    return Rounds(steps, share)


anarchy = Anarchy()
"""The schedule of anarchic federated learning."""
