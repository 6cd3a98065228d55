"""Inner loops compiled by Numba. Importing a module that begins with an underscore imports Numba."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
