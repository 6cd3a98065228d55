from . import horizon as horizon
from .device import choose_device as choose_device
from .device import choose_precision as choose_precision
from .device import products as products
from .horizon import last_iterations as last_iterations
from .loop import Counters as Counters
from .loop import Snapshot as Snapshot
from .loop import shrunk as shrunk
from .loop import simulate as simulate
from .shard import Shard as Shard
from .shard import crossings as crossings
from .stack import Block as Block
from .stack import Run as Run
from .stack import Stack as Stack
from .state import Piece as Piece
from .state import State as State
from .steppers.sharded import Split as Split
from .transport.base import Alone as Alone
from .transport.base import Team as Team

__all__ = [
    "Alone",
    "Block",
    "Counters",
    "Piece",
    "Run",
    "Shard",
    "Snapshot",
    "Split",
    "Stack",
    "State",
    "Team",
    "choose_device",
    "choose_precision",
    "crossings",
    "horizon",
    "last_iterations",
    "products",
    "shrunk",
    "simulate",
]
