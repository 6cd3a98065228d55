"""A small learning problem in exact integers, and its plain loop: what the simulator compares nodes with.

Models are vectors of length 2 modulo a prime. The update has the shape of a rule: in every phase a node mixes in the
messages of the links that fire, in the order of the edges and with a weight of the link, then subtracts a "gradient"
of client and iteration. The order of the links matters, and a message depends on its receiver: a message that is
missing, stale, repeated or given to another node changes every model that follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Vector = tuple[int, int]
"""A model, or a message."""
PRIME = 2**31 - 1
"""Arithmetic is modulo this."""


@dataclass(frozen=True)
class Problem:
    """Who is linked, and when links fire.

    Attributes:
        nodes: The number of nodes.
        edges: The links (i, j) with i < j, in order.
        fired: For every iteration, the numbers of the edges that fire.
        phases: Exchanges in an iteration.
    """

    nodes: int
    edges: tuple[tuple[int, int], ...]
    fired: tuple[tuple[int, ...], ...]
    phases: int

    @property
    def iterations(self) -> int:
        """K."""
        return len(self.fired)

    def neighbours(self, i: int) -> tuple[int, ...]:
        """Return the neighbours of a node.

        Args:
            i: The node.

        Returns:
            The neighbours in the order of the edges.
        """
        return tuple(a + b - i for a, b in self.edges if i in (a, b))

    def firing(self, i: int) -> list[tuple[int, ...]]:
        """Return, for every iteration, the neighbours whose links fire.

        Args:
            i: The node.

        Returns:
            One tuple for every iteration, in the order of the edges.
        """
        rows = []
        for edges in self.fired:
            ends = (self.edges[edge] for edge in edges)
            rows.append(tuple(a + b - i for a, b in ends if i in (a, b)))
        return rows

    def plain_loop(self) -> list[list[Vector]]:
        """Run all nodes in one loop.

        Returns:
            For every node, its models at the start of iterations 0 to K.
        """
        firing = [self.firing(i) for i in range(self.nodes)]
        models = [[initial(i)] for i in range(self.nodes)]
        for k in range(self.iterations):
            now = [row[k] for row in models]
            for phase in range(self.phases):
                sent = [messages(now[i], firing[i][k]) for i in range(self.nodes)]
                now = [
                    mixed(now[i], i, phase, {j: sent[j][i] for j in firing[i][k]}) if firing[i][k] else now[i]
                    for i in range(self.nodes)
                ]
            for i in range(self.nodes):
                models[i].append(stepped(now[i], i, k))
        return models


def initial(i: int) -> Vector:
    """Return the initial model of a node.

    Args:
        i: The node.

    Returns:
        The model at the start of iteration 0.
    """
    return (1000 * i + 1, 77 * i + 5)


def messages(model: Vector, receivers: tuple[int, ...]) -> dict[int, Vector]:
    """Make the messages of a phase.

    Args:
        model: The sender's model.
        receivers: The neighbours whose links fire.

    Returns:
        Receiver → message.
    """
    x, y = model
    return {j: (x + 3 * j, y - j) for j in receivers}


def mixed(model: Vector, i: int, phase: int, received: Mapping[int, Vector]) -> Vector:
    """Mix the neighbours' messages in, in their order.

    Args:
        model: The model of the node.
        i: The node.
        phase: The phase.
        received: Neighbour → message.

    Returns:
        The model after the phase.
    """
    x, y = model
    for j, (u, v) in received.items():
        weight = 2 + i + j + 5 * phase
        x, y = (x + weight * (u - x)) % PRIME, (y + weight * (v - y) + x) % PRIME
    return (x, y)


def stepped(model: Vector, i: int, k: int) -> Vector:
    """Take the "gradient" step that ends an iteration.

    Args:
        model: The model after the last phase.
        i: The node.
        k: The iteration.

    Returns:
        The model at the start of the next iteration.
    """
    x, y = model
    return ((x * 3 - 31 * i - k) % PRIME, (y * 7 - k * k - i) % PRIME)
