"""How frames reach a neighbour: TLS over TCP, or memory for tests, with or without random faults."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
