"""What the clients minimise: their samples, their models, and the gradients and metrics of a stack of clients."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
