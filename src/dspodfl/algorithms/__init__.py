"""What a method is: when clients step and links exchange (schedule), how models change (rule), and the step size."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
