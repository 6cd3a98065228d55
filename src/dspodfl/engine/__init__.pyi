from . import horizon as horizon
from .client import Client as Client
from .client import ClientState as ClientState
from .client_step import Swap as Swap
from .counters import Counters as Counters
from .device import choose_device as choose_device
from .device import choose_precision as choose_precision
from .device import products as products
from .ends import tree as tree
from .events import Block as Block
from .exchange import Split as Split
from .foresight import Due as Due
from .foresight import evaluated_iterations as evaluated_iterations
from .foresight import foreseen as foreseen
from .horizon import last_iterations as last_iterations
from .loop import shrunk as shrunk
from .loop import simulate as simulate
from .messages import Message as Message
from .messages import Schema as Schema
from .messages import packed as packed
from .messages import packed_by_peer as packed_by_peer
from .on_nodes import run_of_client as run_of_client
from .on_nodes import runs_on_nodes as runs_on_nodes
from .reference import all_clients as all_clients
from .reference import client_loop as client_loop
from .reference import last_iteration as last_iteration
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
from .transport.base import LocalTransport as LocalTransport
from .transport.base import Transport as Transport

__all__ = [
    "Block",
    "Client",
    "ClientState",
    "Counters",
    "Due",
    "LocalTransport",
    "Message",
    "Piece",
    "Run",
    "Schema",
    "Shard",
    "Snapshot",
    "Split",
    "Stack",
    "State",
    "Swap",
    "Transport",
    "all_clients",
    "choose_device",
    "choose_precision",
    "client_loop",
    "crossings",
    "evaluated_iterations",
    "foreseen",
    "horizon",
    "last_iteration",
    "last_iterations",
    "leaves",
    "link_leaves",
    "packed",
    "packed_by_peer",
    "plain_loop",
    "products",
    "run_of_client",
    "runs_on_nodes",
    "shrunk",
    "simulate",
    "tree",
]
