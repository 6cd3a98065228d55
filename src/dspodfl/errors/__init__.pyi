from . import bounded as bounded
from . import memory as memory
from . import user_code as user_code
from .base import ConfigError as ConfigError
from .base import DataError as DataError
from .base import DspodflError as DspodflError
from .base import InputError as InputError
from .base import LostRankError as LostRankError
from .base import OutOfMemoryError as OutOfMemoryError
from .base import nearest as nearest
from .base import plain as plain
from .base import shown as shown
from .bounded import parse_toml as parse_toml
from .memory import gib as gib
from .signals import SIGNALS as SIGNALS
from .signals import Handler as Handler
from .signals import Interrupt as Interrupt
from .signals import Interrupted as Interrupted
from .signals import available_signals as available_signals
from .user_code import guarded as guarded

__all__ = [
    "SIGNALS",
    "ConfigError",
    "DataError",
    "DspodflError",
    "Handler",
    "InputError",
    "Interrupt",
    "Interrupted",
    "LostRankError",
    "OutOfMemoryError",
    "available_signals",
    "bounded",
    "gib",
    "guarded",
    "memory",
    "nearest",
    "parse_toml",
    "plain",
    "shown",
    "user_code",
]
