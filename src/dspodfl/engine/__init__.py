"""The engine: all runs of a study advance together, as one run on the disjoint union of their graphs."""

from dspodfl.engine.loop import Snapshot, simulate
from dspodfl.engine.stack import Block, Run, Stack
from dspodfl.engine.state import Piece, State

__all__ = ["Block", "Piece", "Run", "Snapshot", "Stack", "State", "simulate"]
