"""The graph and the mixing weights of a method that has its own.

A schedule may have ``graph(base)``, the graph that the method runs on in place of that of the study, and
``weights(k, graph)``, its own r_ij. `own_topology` makes of them what the engine needs.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dspodfl.network import Graph, OwnWeights, Static, Topology, WeightedTopology

if TYPE_CHECKING:
    from dspodfl.algorithms.base import Schedule
    from dspodfl.network import Rates


class OwnGraph(Protocol):
    """A schedule that has a graph of its own."""

    def graph(self, base: Graph) -> Graph | Topology:
        """Return the graph that the method runs on, or a `Topology` where its links change; ``base`` is the study's."""
        ...


class OwnLinkWeights(Protocol):
    """A schedule that has mixing weights of its own."""

    def weights(self, k: np.ndarray, graph: Graph) -> np.ndarray:
        """Return r_ij at iterations k, (iterations or 1, links); one row where they never change.

        It may have further parameters, by these names: ``base``, the `WeightedTopology` of the study; ``rates``, those
        of the run; ``seed``, that of the run.
        """
        ...


def own_graph(schedule: Schedule, base: Graph) -> Topology | None:
    """Return the topology of a schedule that has a graph of its own.

    Args:
        schedule: The schedule.
        base: The graph of the study.

    Returns:
        The topology; None where the schedule has no graph of its own, or it is that of the study.
    """
    made = getattr(schedule, "graph", None)
    if not callable(made):
        return None
    found: Any = made(base)
    if isinstance(found, Graph):
        return None if np.array_equal(found.edges, base.edges) else Static(found)
    return found if callable(getattr(found, "present", None)) else None


def own_topology(
    schedule: Schedule, base: WeightedTopology, rates: Rates, seed: int, unweighted: Topology | None = None
) -> WeightedTopology:
    """Return the weighted topology that a schedule runs on.

    Args:
        schedule: The schedule.
        base: The topology of the study.
        rates: The rates of the run, on the graph that the schedule runs on.
        seed: The seed of the run.
        unweighted: The topology of the schedule's own graph, as `own_graph` gives it; None: that of the study.

    Returns:
        ``base`` itself, where the schedule has neither a graph nor weights of its own.
    """
    made = getattr(schedule, "weights", None)
    topology = unweighted or base.unweighted
    if not callable(made):
        return base if unweighted is None else WeightedTopology(topology, base.rule)
    known = {"base": base, "rates": rates, "seed": seed}
    taken = {key: value for key, value in known.items() if key in inspect.signature(made).parameters}
    return OwnWeights(topology, base.rule, partial(_called, made, topology.graph, taken))


def _called(made: Any, graph: Graph, more: dict[str, Any], k: np.ndarray) -> np.ndarray:
    return np.asarray(made(k, graph, **more))
