from . import convex as convex
from . import diminishing as diminishing
from . import diminishing_nonconvex as diminishing_nonconvex
from . import lemmas as lemmas
from . import nonconvex as nonconvex
from . import orders as orders
from . import pl as pl
from . import recursion as recursion
from . import special as special
from . import spectral as spectral
from .constants import Constants as Constants
from .constants import Rate as Rate
from .recursion import Hypothesis as Hypothesis
from .recursion import Recursion as Recursion
from .spectral import expected as expected
from .spectral import expected_square as expected_square
from .spectral import rho_r as rho_r
from .spectral import rho_tilde as rho_tilde

__all__ = [
    "Constants",
    "Hypothesis",
    "Rate",
    "Recursion",
    "convex",
    "diminishing",
    "diminishing_nonconvex",
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
