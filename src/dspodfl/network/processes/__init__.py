"""One file a process: when clients or links are on (`dspodfl.network.activation`). A new file is found by itself."""

from importlib import import_module
from pkgutil import iter_modules

from dspodfl.network.activation import AVAILABILITY, CHANNELS

__all__ = ["AVAILABILITY", "CHANNELS"]

_FIRST = ("gilbert_elliott", "markov")
"""What lists and examples begin with."""

for _name in sorted((module.name for module in iter_modules(__path__)), key=lambda name: (name not in _FIRST, name)):
    import_module(f"{__name__}.{_name}")
