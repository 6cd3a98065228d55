from . import horizon as horizon
from .counters import Counters as Counters
from .device import choose_device as choose_device
from .device import choose_precision as choose_precision
from .device import products as products
from .events import Block as Block
from .exchange import Split as Split
from .foresight import Due as Due
from .foresight import evaluated_iterations as evaluated_iterations
from .foresight import foreseen as foreseen
from .horizon import last_iterations as last_iterations
from .loop import shrunk as shrunk
from .loop import simulate as simulate
from .reference import plain_loop as plain_loop
from .run import Run as Run
from .shard import Shard as Shard
from .shard import crossings as crossings
from .snapshots import Snapshot as Snapshot
from .stack import Stack as Stack
from .state import Piece as Piece
from .state import State as State
from .state import leaves as leaves
from .state import link_leaves as link_leaves
from .step import tree as tree
from .transport.base import LocalTransport as LocalTransport
from .transport.base import Transport as Transport

__all__ = [
    "Block",
    "Counters",
    "Due",
    "LocalTransport",
    "Piece",
    "Run",
    "Shard",
    "Snapshot",
    "Split",
    "Stack",
    "State",
    "Transport",
    "choose_device",
    "choose_precision",
    "crossings",
    "evaluated_iterations",
    "foreseen",
    "horizon",
    "last_iterations",
    "leaves",
    "link_leaves",
    "plain_loop",
    "products",
    "shrunk",
    "simulate",
    "tree",
]
