"""Schedules that repeat a cycle of local steps and exchanges, and averages over all clients.

    local_sgd     H − 1 iterations of (1, 0), then one of (1, 1), in which all clients average
    ldsgd         I₁ iterations of (1, 0), then I₂ of (1, 1)
    post_local    (1, 1) until k₀, then the cycle of local_sgd
    gossip_pga    (1, 1) always; at every H-th iteration all clients average, at the others neighbours do

(p, q) are the probabilities, 0 or 1, with which every client steps and every link exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dspodfl.algorithms.base import Probabilities
from dspodfl.errors import InputError
from dspodfl.network import Events, Graph, Part, Rates, Topology, WeightedTopology

Average = Literal["all", "neighbours"]
"""Who averages at an exchange: all clients, with weights 1/n, or those that are linked, with the graph's weights."""
AVERAGES = ("all", "neighbours")


def complete(base: Graph) -> Graph:
    """Return the complete graph on the clients of another.

    Args:
        base: The other graph.

    Returns:
        The graph, with the positions and labels of ``base``.

    >>> complete(Graph.from_edges(3, [(0, 1)])).edges.tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    return Graph(base.n, np.stack(np.triu_indices(base.n, 1), axis=1).astype(np.int64), base.positions, base.labels)


@dataclass(frozen=True, eq=False)
class Cycle:
    """A cycle of phases, each of some iterations in which every client steps or none, and every link fires or none.

    Args:
        phases: (iterations, steps, exchanges) of each phase; those of 0 iterations are passed over.
        before: Iterations before the first cycle, in which every client steps and every link fires.

    >>> steps, exchanges = Cycle(((2, True, False), (1, False, True))).fires(np.arange(4))
    >>> steps[:, 0].tolist(), exchanges[:, 0].tolist()
    ([True, True, False, True], [False, False, True, False])
    """

    independent: ClassVar[bool] = True

    phases: tuple[tuple[int, bool, bool], ...]
    before: int = 0

    @property
    def length(self) -> int:
        """The iterations of a cycle."""
        return sum(iterations for iterations, _, _ in self.phases)

    def fires(self, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether clients step and whether links fire.

        Args:
            k: The iterations, (iterations,).

        Returns:
            Both for all clients and all links alike, (iterations, 1), bool.
        """
        k = np.asarray(k)[:, None]
        table = np.concatenate([np.tile([steps, exchanges], (count, 1)) for count, steps, exchanges in self.phases])
        place = (k - self.before) % self.length
        return (k < self.before) | table[place, 0], (k < self.before) | table[place, 1]

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part at iterations k."""
        steps, exchanges = self.fires(k)
        return Events(np.repeat(steps, len(part.client), 1), np.repeat(exchanges, len(part.link), 1))

    def probabilities(self, k: np.ndarray, rates: Rates) -> Probabilities:
        """Return probabilities, 0 or 1, of every client and link at each k."""
        steps, exchanges = (fires.astype(np.float64) for fires in self.fires(k))
        if self.constant(rates):
            steps, exchanges = steps[:1], exchanges[:1]
        return np.repeat(steps, rates.graph.n, 1), np.repeat(exchanges, rates.graph.links, 1)

    def constant(self, rates: Rates) -> bool:
        """Return whether the probabilities are the same at every iteration."""
        kinds = {(steps, exchanges) for count, steps, exchanges in self.phases if count}
        return len(kinds | ({(True, True)} if self.before else set())) == 1


@dataclass(frozen=True, eq=False)
class AveragingCycle(Cycle):
    """A cycle in which an exchange is an average over all clients: the graph is complete, every weight is 1/n."""

    def graph(self, base: Graph) -> Graph:
        """Return the complete graph."""
        return complete(base)

    def weights(self, k: np.ndarray, graph: Graph) -> np.ndarray:
        """Return 1/n for every link, (1, links)."""
        return np.full((1, graph.links), 1.0 / graph.n)


def cycle(phases: Sequence[tuple[int, bool, bool]], before: int = 0, average: Average = "neighbours") -> Cycle:
    """Return a schedule that repeats some phases.

    Args:
        phases: (iterations, steps, exchanges) of each phase.
        before: Iterations before the first cycle, in which every client steps and every link fires.
        average: Who averages at an exchange.

    Returns:
        The schedule.

    Raises:
        InputError: No phase has an iteration, a number is negative, or ``average`` is something else.

    >>> cycle([(4, True, False), (1, True, True)]).length
    5
    """
    counts = [iterations for iterations, _, _ in phases]
    if before < 0 or min(counts, default=0) < 0 or sum(counts) < 1:
        raise InputError("cycle", [*counts, before], "numbers of iterations, at least 1 together")
    if average not in AVERAGES:
        raise InputError("average", average, f"one of {', '.join(AVERAGES)}")
    kind = AveragingCycle if average == "all" else Cycle
    return kind(tuple((int(count), bool(steps), bool(uses)) for count, steps, uses in phases if count), before)


def local_sgd(*, period: int = 5, average: Average = "all") -> Cycle:
    """Return the schedule of local SGD: a step at every iteration, an average at every ``period``-th.

    Args:
        period: H, the steps between two averages.
        average: All clients; or neighbours, which is periodic (cooperative) decentralized SGD.
    """
    return cycle([(period - 1, True, False), (1, True, True)], average=average)


def post_local(*, start: int = 100, period: int = 5, average: Average = "all") -> Cycle:
    """Return the schedule of post-local SGD: an average at every iteration until ``start``, then local SGD.

    Args:
        start: k₀, the iteration from which clients take local steps.
        period: H, the steps between two averages from there on.
        average: All clients, or neighbours.
    """
    return cycle([(period - 1, True, False), (1, True, True)], before=start, average=average)


def ldsgd(*, local_steps: int = 4, gossip_steps: int = 1) -> Cycle:
    """Return the schedule of LD-SGD: I₁ local steps, then I₂ steps with an exchange between neighbours each.

    Args:
        local_steps: I₁.
        gossip_steps: I₂.
    """
    return cycle([(local_steps, True, False), (gossip_steps, True, True)])


@dataclass(frozen=True, eq=False)
class _WholeAtTimes:
    """The complete graph at every H-th iteration, and the links of another graph at the others."""

    time_varying_weights: ClassVar[bool] = True

    graph: Graph
    member: np.ndarray  # (links,) whether each link is one of the other graph
    period: int

    def present(self, k: np.ndarray) -> np.ndarray | None:
        """Return which links exist at each iteration, (iterations, links)."""
        return averages_at(k, self.period)[:, None] | self.member


def averages_at(k: np.ndarray, period: int) -> np.ndarray:
    """Return at which iterations all clients average: k + 1 is a multiple of the period.

    >>> averages_at(np.arange(5), 2).tolist()
    [False, True, False, True, False]
    """
    return np.asarray((np.asarray(k) + 1) % period == 0)


@dataclass(frozen=True, eq=False)
class GossipPga:
    """Gossip SGD with periodic global averaging: P = 11ᵀ/n at every ``period``-th iteration, else that of the graph.

    Delays follow the links that there are at an iteration: all pairs at an average, and those of the graph else.

    Args:
        period: H.
    """

    independent: ClassVar[bool] = True

    period: int = 6

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part: every client steps; every link that exists fires."""
        exchanges = np.ones((len(k), len(part.link)), dtype=bool)
        return Events(np.ones((len(k), len(part.client)), dtype=bool), exchanges)

    def probabilities(self, k: np.ndarray, rates: Rates) -> Probabilities:
        """Return 1 for every client and link; links that do not exist at an iteration do not fire."""
        return np.ones((1, rates.graph.n)), np.ones((1, rates.graph.links))

    def constant(self, rates: Rates) -> bool:
        """Return True: the topology decides which links there are."""
        return True

    def graph(self, base: Graph) -> Topology:
        """Return the complete graph, of which only the links of ``base`` exist between two averages."""
        whole = complete(base)
        return _WholeAtTimes(whole, _among(base, whole), self.period)

    def weights(self, k: np.ndarray, graph: Graph, base: WeightedTopology) -> np.ndarray:
        """Return 1/n at averages; between them the weights of the study's graph, 0 for links that it does not have."""
        gossip = np.zeros((1, graph.links))
        gossip[:, _among(base.graph, graph)] = base.at(np.zeros(1, dtype=np.int64))[1]
        return np.where(averages_at(k, self.period)[:, None], 1.0 / graph.n, gossip)


def _among(some: Graph, whole: Graph) -> np.ndarray:
    """Return which links of a graph are those of another, (links,), bool."""
    return np.isin(whole.edges @ [whole.n, 1], some.edges @ [whole.n, 1])
