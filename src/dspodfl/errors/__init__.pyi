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
from .registry import LARGEST as LARGEST
from .registry import LEAST as LEAST
from .registry import REQUIRED as REQUIRED
from .registry import SMALLEST as SMALLEST
from .registry import WORD as WORD
from .registry import Count as Count
from .registry import Doc as Doc
from .registry import Entry as Entry
from .registry import EventProbability as EventProbability
from .registry import NonNegative as NonNegative
from .registry import Parameter as Parameter
from .registry import Positive as Positive
from .registry import Probability as Probability
from .registry import Real as Real
from .registry import Registry as Registry
from .registry import Seed as Seed
from .registry import Size as Size
from .signals import SIGNALS as SIGNALS
from .signals import Handler as Handler
from .signals import Interrupt as Interrupt
from .signals import Interrupted as Interrupted
from .signals import available_signals as available_signals
from .user_code import guarded as guarded

__all__ = [
    "LARGEST",
    "LEAST",
    "REQUIRED",
    "SIGNALS",
    "SMALLEST",
    "WORD",
    "ConfigError",
    "Count",
    "DataError",
    "Doc",
    "DspodflError",
    "Entry",
    "EventProbability",
    "Handler",
    "InputError",
    "Interrupt",
    "Interrupted",
    "LostRankError",
    "NonNegative",
    "OutOfMemoryError",
    "Parameter",
    "Positive",
    "Probability",
    "Real",
    "Registry",
    "Seed",
    "Size",
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
