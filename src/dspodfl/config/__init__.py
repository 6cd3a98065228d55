"""Configuration: typed (`Config`), written as TOML, varied over grids; no tensor is needed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
