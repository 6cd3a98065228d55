"""The engine: all runs of a study advance together, as one run on the disjoint union of their graphs."""

from dspodfl.engine.loop import Snapshot, shrunk, simulate
from dspodfl.engine.shard import Shard
from dspodfl.engine.stack import Block, Run, Stack
from dspodfl.engine.state import Piece, State
from dspodfl.engine.steppers.sharded import Split
from dspodfl.engine.transport.base import Alone, Team

__all__ = [
    "Alone",
    "Block",
    "Piece",
    "Run",
    "Shard",
    "Snapshot",
    "Split",
    "Stack",
    "State",
    "Team",
    "shrunk",
    "simulate",
]
