from . import linear as linear
from . import methods as methods

__all__ = [
    "linear",
    "methods",
]
