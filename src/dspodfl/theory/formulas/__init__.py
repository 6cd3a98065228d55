"""The paper's constants, conditions and bounds as code; one module a theorem family."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
