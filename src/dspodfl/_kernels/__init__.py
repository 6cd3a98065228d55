"""Inner loops, arrays in and arrays out: compiled for the CPU by Numba, for GPUs by Triton. Private to the package."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
