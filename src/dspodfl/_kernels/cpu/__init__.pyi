from . import linear as linear

__all__ = [
    "linear",
]
