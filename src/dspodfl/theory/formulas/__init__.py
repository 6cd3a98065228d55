"""The paper's constants, conditions and bounds as code; one module a theorem family.

``Constants`` holds what the assumptions name, ``estimate`` finds them for a real problem and ``spectral`` finds ρ̃ from
a graph, weights and link probabilities; ``lemmas`` bounds what one iteration does; ``convex``, ``pl``, ``nonconvex``,
``diminishing`` and ``diminishing_nonconvex`` are the theorem families, each with the printed quantities beside those
that hold, and ``recursion`` is what the first two share; ``special`` has the cases the paper compares with, ``orders``
the orders of every bound.
"""

from dspodfl.theory import estimation as estimate
from dspodfl.theory.formulas import (
    convex,
    diminishing,
    diminishing_nonconvex,
    lemmas,
    nonconvex,
    orders,
    pl,
    recursion,
    special,
    spectral,
)
from dspodfl.theory.formulas.constants import Constants, Rate
from dspodfl.theory.formulas.recursion import Hypothesis, Recursion
from dspodfl.theory.formulas.spectral import expected, expected_square, rho_r, rho_tilde

__all__ = [
    "Constants",
    "Hypothesis",
    "Rate",
    "Recursion",
    "convex",
    "diminishing",
    "diminishing_nonconvex",
    "estimate",
    "expected",
    "expected_square",
    "lemmas",
    "nonconvex",
    "orders",
    "pl",
    "recursion",
    "rho_r",
    "rho_tilde",
    "special",
    "spectral",
]
