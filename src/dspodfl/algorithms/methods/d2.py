"""D²: corrected steps, then mixing; every client and every link, always."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspodfl.algorithms.corrections import Together
from dspodfl.algorithms.entry import Entry
from dspodfl.errors import InputError

if TYPE_CHECKING:
    from dspodfl.network import Rates, WeightedTopology

ENTRY = Entry(
    label="D²",
    line="corrected steps, then mixing, every client and link always; exact where λ_min(W) > −1/3",
    schedule="dspodfl.algorithms.schedules:dgd",
    rule=f"{__name__}:D2",
    reference="Tang, Lian, Yan, Zhang and Liu, ICML 2018",
    order=28,
    exact=True,
    sporadic=False,
    takes_local=False,
    update="Θ̂ = Θ − α(G − h)\nΘ ← WΘ̂\nh ← h − (1/α) L Θ̂",
    when="As exact diffusion, and it mixes twice as fast; the graph must have λ_min(W) > −1/3, else it diverges.",
)
LEAST = -1 / 3
"""The bound of the smallest eigenvalue of W."""


@dataclass(frozen=True)
class D2(Together):
    """`Together` with all of the mixing, at every iteration."""

    s: float = 1.0

    def check(self, topology: WeightedTopology, rates: Rates) -> None:
        """Refuse weights for which the method diverges.

        Args:
            topology: The graph and its weights.
            rates: Not read.

        Raises:
            InputError: λ_min(W) ≤ −1/3.
        """
        least = smallest_eigenvalue(topology)
        if least <= LEAST + 1e-9:
            allowed = (
                f"used on a graph whose weights have λ_min(W) > −1/3 (here {least:.3f}); "
                "use graph.weights = 'lazy_metropolis', or exact_diffusion"
            )
            raise InputError("algorithms", "d2", allowed)


def smallest_eigenvalue(topology: WeightedTopology) -> float:
    """Return the smallest eigenvalue of W, the mixing matrix where every link fires.

    Args:
        topology: The graph and its weights; those of iteration 0.

    Returns:
        λ_min(W).

    >>> from dspodfl.network import Static, WeightedTopology, generate
    >>> round(smallest_eigenvalue(WeightedTopology(Static(generate("complete", 4, 0)), "metropolis")), 6) + 0.0
    0.0
    """
    import numpy as np
    from scipy.sparse import coo_array, diags_array
    from scipy.sparse.linalg import eigsh

    graph, r = topology.graph, topology.at(np.zeros(1, dtype=np.int64))[1][0]
    i, j = graph.edges.T
    ends = np.concatenate([i, j]), np.concatenate([j, i])
    w = coo_array((np.tile(r, 2), ends), shape=(graph.n, graph.n)).tocsr()
    w = w + diags_array(1.0 - w.sum(axis=1))
    if graph.n <= _DENSE:
        return float(np.linalg.eigvalsh(w.toarray())[0])
    start = np.random.default_rng(0).normal(size=graph.n)
    return float(eigsh(w, k=1, which="SA", return_eigenvectors=False, v0=start)[0])


_DENSE = 512
"""Clients up to which all eigenvalues are computed."""
