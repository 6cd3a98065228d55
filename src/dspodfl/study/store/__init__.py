"""The files of a folder: opened, written, verified and deleted here, and nowhere else."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
