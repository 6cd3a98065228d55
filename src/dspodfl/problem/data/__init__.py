"""Datasets, where they come from, and how their samples are assigned to clients."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
