"""Inner loops in Triton, each with a reference implementation in plain PyTorch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
