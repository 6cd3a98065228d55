"""From tables of metrics to aggregates, comparisons, tables and figures; pure functions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
