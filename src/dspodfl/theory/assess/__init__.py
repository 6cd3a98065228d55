"""What the formulas say of the problem, graph and rates that a configuration describes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
