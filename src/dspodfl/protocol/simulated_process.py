"""The parts of a simulated run: processes with their disks, and connections.

Connections are as over TLS: what arrives is in order, or a frame is missing, which its counter shows. A connection can
end with or without the other end noticing. Frames of connections that have ended can turn up again (stale sessions).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from dspodfl.protocol import exact
from dspodfl.protocol.effects import Checkpoint
from dspodfl.protocol.exact import Vector
from dspodfl.protocol.lockstep_node import LockstepNode
from dspodfl.protocol.messages import NONCE_BYTES, AnyMessage, Position
from dspodfl.protocol.plan import Plan
from dspodfl.protocol.session import FrameCounters

Frame = tuple[bytes, int, AnyMessage, Any]
"""Session, counter, message, payload."""


class ViolationError(AssertionError):
    """Something that must hold does not."""


class Connection:
    """One connection between two nodes.

    Attributes:
        toward: Receiver → frames under way to it; None as a frame says that the other end closed.
        counters: Node → session and counters of its end.
        nonces: Node → the random bytes of its end.
        silent: Whether everything that is sent is lost without notice.
    """

    __slots__ = ("_states", "counters", "nonces", "silent", "toward")

    def __init__(self, a: int, b: int, number: int, counters_type: type[FrameCounters] = FrameCounters) -> None:
        self.toward: dict[int, deque[Frame | None]] = {a: deque(), b: deque()}
        self.counters = {a: counters_type(), b: counters_type()}
        self.nonces = {end: (2 * number + (end == b)).to_bytes(NONCE_BYTES, "big") for end in (a, b)}
        self.silent = False
        self._states: dict[int, Position] = {}

    def first_time(self, sender: int, position: Position) -> bool:
        """Record that an end sends a STATE.

        Args:
            sender: The end.
            position: The position.

        Returns:
            Whether it is past every STATE that the end has sent before.
        """
        last = self._states.get(sender)
        self._states[sender] = position
        return last is None or position > last


class Process:
    """A process that holds one node: its worker, and its disk.

    Attributes:
        id: The node.
        plan: The run as it sees it.
        disk: The last checkpoints, oldest first.
        node: The state machine; None while the process is down.
        todo: What the worker does next: "offer", "advance", or None while it waits.
        model: The worker's model within the iteration.
        phase: The phase that the worker is in.
        writing: The checkpoint that is being written.
        reason: How the process ended; None while it has not.
        connections: Neighbour → the connection, as this end sees it.
    """

    __slots__ = ("connections", "disk", "id", "model", "node", "phase", "plan", "reason", "todo", "writing")

    def __init__(self, plan: Plan) -> None:
        self.id = plan.id
        self.plan = plan
        self.disk = [Checkpoint(0, exact.initial(plan.id))]
        self.node: LockstepNode | None = None
        self.todo: str | None = None
        self.model: Vector = exact.initial(plan.id)
        self.phase = 0
        self.writing: Checkpoint | None = None
        self.reason: str | None = None
        self.connections: dict[int, Connection] = {}
