"""Events: which clients take a step and which links exchange models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Events:
    """The events of a block of iterations.

    On an undirected graph a link fires once for both of its ends: v̂ is symmetric. On a directed graph each direction of
    a link (i, j), i < j, fires by itself: ``v_hat`` is i → j there, and ``back`` is j → i.

    Attributes:
        v: v_i(k), whether client i takes a step, shape (iterations, clients), bool.
        v_hat: v̂_ij(k), whether link (i, j) exchanges models (directed: whether i sends to j), shape (iterations,
            links), bool.
        back: Whether j sends to i, shape (iterations, links), bool; None: as ``v_hat``, both ends or neither.
    """

    v: np.ndarray
    v_hat: np.ndarray
    back: np.ndarray | None = None
