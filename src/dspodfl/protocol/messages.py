"""What the two ends of a link say to each other: the headers of frames, without payloads.

A message is a small immutable value. msgspec encodes it as an array that begins with its tag and refuses unknown
fields, other types and values out of range before anything is looked at. A model travels beside the header, never
inside it, and is opaque to the protocol. Lengths and hashes of payloads belong to the frame (`dspodfl.nodes`).

A *position* is ``(k, phase)``: the exchange number ``phase`` of iteration ``k``. Positions are ordered as tuples.
HELLO, PING, PONG, ACK and BYE serve every clock; STATE, NEED and SAVE are those of lockstep.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

VERSION = 1
"""The version of the protocol; ends of different versions refuse each other."""
NONCE_BYTES = 16
"""Random bytes that each end gives to a session."""
SCHEMA_BYTES = 32
"""SHA-256 of the names, shapes and dtypes of what is exchanged."""
FINGERPRINT_BYTES = 8
"""First bytes of SHA-256 of the canonical JSON of one value of the configuration."""
MAX_TEXT = 500
"""The longest text of a BYE, in characters."""

Iteration = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
"""A number of an iteration, or of a client."""
Phase = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
"""The number of an exchange within an iteration."""
Position = tuple[Iteration, Phase]
"""An exchange: (k, phase)."""
Fingerprint = Annotated[bytes, msgspec.Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]
"""What stands for one value of the configuration."""
Key = Annotated[str, msgspec.Meta(max_length=200)]
"""A dotted key of the configuration."""
Configuration = Annotated[tuple[tuple[Key, Fingerprint], ...], msgspec.Meta(max_length=4096)]
"""Dotted key → fingerprint of its value, in the order of the keys."""
Seconds = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
"""A reading of the sender's own clock; it comes back unchanged in PONG. NaN is refused."""
Reason = Literal["finished", "diverged", "draining", "refused"]
"""Why an end says BYE."""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The base of all messages."""


class Hello(Message, frozen=True, tag="hello"):
    """Who this end is, what it runs, and which STATE it waits for; the first message of a session in both directions.

    Attributes:
        version: The version of the protocol (`VERSION`).
        id: The sender's client.
        run_id: The name of the run; two runs never mix.
        nonce: Random bytes of this connection.
        config: All that determines draws and updates.
        schema: Hash of what is exchanged.
        need: The next position whose STATE the sender does not hold; None if it holds two, or if there is none left.
        durable: The start of this iteration is safe at the sender: it will never ask for STATEs before it.
    """

    version: Iteration
    id: Iteration
    run_id: Annotated[str, msgspec.Meta(max_length=400)]
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    config: Configuration
    schema: Annotated[bytes, msgspec.Meta(min_length=SCHEMA_BYTES, max_length=SCHEMA_BYTES)]
    need: Position | None
    durable: Iteration


class State(Message, frozen=True, tag="state"):
    """The sender's message of one phase of one iteration; the payload travels beside it."""

    k: Iteration
    phase: Phase


class Need(Message, frozen=True, tag="need"):
    """The sender is at this position and does not hold the STATE of it."""

    k: Iteration
    phase: Phase


class Save(Message, frozen=True, tag="save"):
    """The sender asks for a checkpoint of the start of iteration ``k`` or of a later one."""

    k: Iteration


class Ack(Message, frozen=True, tag="ack"):
    """The checkpoint of the start of iteration ``durable`` is safe at the sender."""

    durable: Iteration


class Ping(Message, frozen=True, tag="ping"):
    """The sender measures the round trip."""

    t: Seconds


class Pong(Message, frozen=True, tag="pong"):
    """The answer to a PING, with its ``t``."""

    t: Seconds


class Bye(Message, frozen=True, tag="bye"):
    """The sender ends this session.

    Attributes:
        reason: Why.
        k: The iteration in which the sender is; of a divergence, the iteration whose model is not finite.
        text: What to write into the log.
    """

    reason: Reason
    k: Iteration
    text: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] = ""


AnyMessage = Hello | State | Need | Save | Ack | Ping | Pong | Bye
"""Every message of lockstep: the type that a decoder is made for."""
