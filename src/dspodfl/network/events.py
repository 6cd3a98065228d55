"""Events: which clients take a step and which links exchange models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Events:
    """The events of a block of iterations.

    A link fires once for both of its ends: v̂ is symmetric by construction.

    Attributes:
        v: v_i(k), whether client i takes a step, shape (iterations, clients), bool.
        v_hat: v̂_ij(k), whether link (i, j) exchanges models, shape (iterations, links), bool.
    """

    v: np.ndarray
    v_hat: np.ndarray
