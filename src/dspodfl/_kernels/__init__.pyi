from . import philox as philox

__all__ = [
    "philox",
]
