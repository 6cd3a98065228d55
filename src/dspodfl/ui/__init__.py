"""The interfaces for users: the command line, the console, and the HTML report."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
