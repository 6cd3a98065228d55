"""A topology whose mixing weights are those of a method, not of ``graph.weights``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dspodfl.errors import InputError
from dspodfl.network.topology import WeightedTopology
from dspodfl.network.weights import degrees


@dataclass(frozen=True, eq=False)
class OwnWeights(WeightedTopology):
    """A topology with weights r_ij that a function gives, at every iteration or once for all.

    Attributes:
        unweighted: Which links exist at which iteration.
        rule: The rule of the weights that these take the place of: a name of `WEIGHTS`.
        own: Iterations k (iterations,) -> weights (iterations, links), or (1, links) where they never change.

    Raises:
        InputError: The weights are of another shape, or not in [0, 1].

    >>> from dspodfl.network import Graph, Static
    >>> path = Static(Graph.from_edges(3, [(0, 1), (1, 2)]))
    >>> OwnWeights(path, "metropolis", lambda k: np.full((1, 2), 0.5)).at(np.arange(4))[1].tolist()
    [[0.5, 0.5]]
    """

    own: Callable[[np.ndarray], np.ndarray]

    def __post_init__(self) -> None:
        found = np.asarray(self.own(np.arange(2)))
        links = self.graph.links
        if found.shape not in ((1, links), (2, links)):
            raise InputError("weights", f"of shape {found.shape}", f"of shape (iterations or 1, {links})")
        wrong = found[~((found >= 0) & (found <= 1))]
        if wrong.size:
            raise InputError("weights", float(wrong[0]), "in [0, 1]")

    @cached_property
    def constant(self) -> bool:
        """Whether every link always exists, with the same weight."""
        k = np.arange(2)
        return self.present(k) is None and len(self.own(k)) == 1

    def at(self, k: np.ndarray) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
        """Return present links, weights r_ij and degrees |N_i| at each iteration; see `WeightedTopology.at`."""
        graph, present = self.graph, self.present(k)
        if self.time_varying_weights and present is not None:
            degree = degrees(graph.n, graph.edges, present)
        else:
            degree = graph.degree[None]
        return present, np.asarray(self.own(k), dtype=np.float64), degree
