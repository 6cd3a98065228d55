"""Models: flat parameter vectors in, scores and objectives out; named ones, VGG11, and any `nn.Module`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
