"""How the processes of one study exchange rows: not at all, or by torch.distributed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
