from . import assess as assess
from . import estimation as estimation
from . import formulas as formulas
from .assess import compare as compare
from .formulas import Constants as Constants
from .formulas import convex as convex
from .formulas import diminishing as diminishing
from .formulas import nonconvex as nonconvex
from .formulas import pl as pl

__all__ = [
    "Constants",
    "assess",
    "compare",
    "convex",
    "diminishing",
    "estimation",
    "formulas",
    "nonconvex",
    "pl",
]
