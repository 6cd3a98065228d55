"""Grids of studies, the paper's figures and tables as files, and the claims that they decide."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
