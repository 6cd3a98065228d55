"""The part of a run's graph that a process holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dspodfl.network.graph import Graph


@dataclass(frozen=True, eq=False)
class Part:
    """The clients of one run that a process holds, the links that touch them, and the neighbour rows they need.

    Every array holds addresses, so a part draws exactly the numbers that the whole run would. Rows of stacked arrays
    are the owned clients in order, then the halo. A process that works alone holds everything, and has no halo.
    """

    seed: int
    client: np.ndarray  # (clients,) numbers of the owned clients in the run's graph
    halo: np.ndarray  # (halo,) numbers of neighbours whose rows are needed but not owned
    link: np.ndarray  # (links,) numbers of the links in the run's graph
    ends: np.ndarray  # (links, 2) client numbers i < j of each link

    @staticmethod
    def whole(graph: Graph, seed: int) -> Part:
        """Return the part that has every client of a run."""
        return Part.of(graph, seed, range(graph.n))

    @staticmethod
    def of(graph: Graph, seed: int, clients: Iterable[int]) -> Part:
        """Return the part that has some clients of a run, with every link that touches one of them.

        Args:
            graph: The graph of the run.
            seed: The seed of the run.
            clients: The numbers of the owned clients.

        Returns:
            The part.
        """
        owned = np.array(sorted(clients), dtype=np.int64)
        link = np.flatnonzero(np.isin(graph.edges, owned).any(axis=1))
        ends = graph.edges[link]
        return Part(seed, owned, np.setdiff1d(ends, owned), link, ends)
