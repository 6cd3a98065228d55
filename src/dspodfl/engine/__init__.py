"""Advances a stack of runs; opens no file and reads no clock.

All runs of a study advance together, as one run on the disjoint union of their graphs. `plain_loop` is the reference
implementation: one run, one client, one neighbour, one parameter vector at a time.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
