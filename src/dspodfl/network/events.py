"""Events: which clients take a step and which links exchange models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Events:
    """What happens: v_i(k), shape (iterations, clients), and v̂_ij(k), shape (iterations, links); both bool.

    A link fires once for both of its ends: v̂ is symmetric by construction.
    """

    v: np.ndarray
    v_hat: np.ndarray
