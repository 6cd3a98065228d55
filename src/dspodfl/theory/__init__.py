"""The paper's constants, conditions and bounds as code; one module a theorem family.

``Constants`` holds what the assumptions name; ``spectral`` finds ρ̃ from a graph, weights and link probabilities;
``lemmas`` bounds what one iteration does; ``convex``, ``pl``, ``nonconvex`` and ``diminishing`` are the theorem
families, each with the printed quantities beside those that hold; ``special`` has the cases the paper compares with.
"""

from dspodfl.theory import convex, diminishing, lemmas, nonconvex, pl, recursion, special, spectral
from dspodfl.theory.constants import Constants, Rate
from dspodfl.theory.recursion import Hypothesis, Recursion
from dspodfl.theory.spectral import expected, expected_square, rho_r, rho_tilde

__all__ = [
    "Constants",
    "Hypothesis",
    "Rate",
    "Recursion",
    "convex",
    "diminishing",
    "expected",
    "expected_square",
    "lemmas",
    "nonconvex",
    "pl",
    "recursion",
    "rho_r",
    "rho_tilde",
    "special",
    "spectral",
]
