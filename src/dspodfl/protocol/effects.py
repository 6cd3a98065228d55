"""What a node asks its surroundings to do, and the checkpoint, as values.

Every input of a node returns a list of effects, to be carried out in order. They hold references to payloads and never
copies; payloads are opaque and must not be changed once they were given to a node.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dspodfl.protocol.messages import AnyMessage, Position, Reason


class Checkpoint(msgspec.Struct, frozen=True):
    """All that a node needs to replay its run from the start of an iteration.

    Attributes:
        k: The iteration at whose start it was taken.
        value: The opaque state at the start of ``k``: model and state of the rule.
        kept: For every neighbour, what was sent before ``k`` and is not known to be safe there. What was sent in
            iteration ``k`` itself is computed again by the replay.
        durable: For every neighbour, the iteration whose start is known to be safe there.
        end: How the run ended here, (reason, k), or None while it goes on.
    """

    k: int
    value: Any
    kept: dict[int, dict[Position, Any]] = {}
    durable: dict[int, int] = {}
    end: tuple[Reason, int] | None = None


class Send(msgspec.Struct, frozen=True):
    """Send a message to a neighbour, over the connection that was opened last."""

    peer: int
    message: AnyMessage
    payload: Any = None


class Deliver(msgspec.Struct, frozen=True):
    """Give the worker the neighbours' messages of a phase, in the order of ``Plan.fires``; all of them are here."""

    k: int
    phase: int
    payloads: dict[int, Any]


class Store(msgspec.Struct, frozen=True):
    """Write a checkpoint to disk, then call `LockstepNode.saved` (or `LockstepNode.unsaved`).

    Two checkpoints of one iteration may be asked for: each is a file of its own, and the last ``Plan.keep`` files stay.
    """

    checkpoint: Checkpoint


class Close(msgspec.Struct, frozen=True):
    """Close the connection to a neighbour, after what was sent before; ``refused``: connecting again will not help."""

    peer: int
    reason: str
    refused: bool = False


class Note(msgspec.Struct, frozen=True):
    """Write a line to the log."""

    text: str
    peer: int | None = None


class Done(msgspec.Struct, frozen=True):
    """The node has ended: close all connections after what was sent before, and exit.

    Attributes:
        reason: "finished", "diverged" or "draining".
        k: The iteration in which it ended; of a divergence, the one whose model is not finite.
    """

    reason: Reason
    k: int


Effect = Send | Deliver | Store | Close | Note | Done
"""Every effect."""
