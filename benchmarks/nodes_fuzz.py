"""Damaged frames for the decoder: cut, flipped, oversized, of wrong type, of another session."""

from __future__ import annotations

import resource
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dspodfl.nodes import Schema, Sender, Wire, WireError
from dspodfl.protocol import (
    Ack,
    Bye,
    Checkpoint,
    Hello,
    LockstepNode,
    Message,
    Need,
    Ping,
    Plan,
    Save,
    State,
    session_id,
)

SCHEMA = Schema.of([[("float32", (6,)), ("uint8", (3,))], [("float64", (2,))]])
"""Payloads of 27 and of 16 bytes."""
CONFIG = (("data.name", b"12345678"), ("train.batch_size", bytes(8)))
PLAN = Plan(0, (1,), lambda _: (1,), 10, 2, SCHEMA.sizes, 1000, "fuzz", CONFIG, SCHEMA.digest)
"""The run of node 0, whose link to node 1 fires in every iteration."""
PREFIX = struct.Struct("<BBHIQQ8s")
HUGE = (2**63, 2**64 - 1, 2**40, 2**32 - 1)
Frames = list[bytes]
Delivered = list[tuple[Message, bytes | None]]


def hello(id: int, nonce: bytes = bytes(range(16))) -> Hello:
    """The HELLO of a node."""
    return Hello(1, id, "fuzz", nonce, CONFIG, SCHEMA.digest, (0, 0), 0)


def valid_frames(own: Hello, other: Hello) -> Frames:
    """What a node sends that does everything right, frame by frame; HELLO is the first."""
    sender = Sender(SCHEMA)
    sender.put(own)
    frames = _taken(sender)
    sender.session = session_id(own.id, own.nonce, other.id, other.nonce)
    sender.put(State(0, 0), np.arange(27, dtype=np.uint8))
    frames += _taken(sender)
    for message in (Ping(1.5), Need(0, 1), Save(7), Ack(2)):
        sender.put(message)
    frames += _taken(sender)
    sender.put(State(0, 1), np.array([1.0, -2.5]))
    frames += _taken(sender)
    sender.put(Bye("draining", 3, "ä text"))
    return frames + _taken(sender)


def _taken(sender: Sender) -> Frames:
    found = []
    while (frame := sender.take()) is not None:
        found.append(b"".join(frame))
    return found


@dataclass(frozen=True)
class Case:
    """Bytes that follow a valid HELLO.

    Attributes:
        kind: What was done.
        frames: The frames after HELLO.
        intact: Frames, HELLO included, before the damaged one.
        refused: Whether the decoder must refuse what follows; else it may wait for more, or understand something else.
    """

    kind: str
    frames: Frames
    intact: int
    refused: bool


def _prefix(frame: bytes, **fields: Any) -> bytes:
    names = ("version", "lane", "header", "body", "total", "counter", "session")
    values = dict(zip(names, PREFIX.unpack_from(frame), strict=True)) | fields
    return PREFIX.pack(*values.values()) + frame[PREFIX.size :]


def _headers(draw: np.random.Generator) -> bytes:
    """A header that is no message."""
    encode = msgspec.msgpack.encode
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    choices: list[Any] = [
        *(["state", 1], ["state", 1, 2, 3], ["state", -1, 0], ["state", 2**63, 0], ["state", 1, 2**16]),
        *(["ping", "x"], ["ping", None], ["bye", "bored", 0], ["bye", "finished", 0, "x" * 501], ["ack", True], deep),
        *(["frame", 1], [], {}, {"type": "state", "k": 1, "phase": 0}, None, 7, "state", ["hello", 1]),
        *(["state", 1.5, 0], [["state"], 1, 0]),
    ]
    number = int(draw.integers(len(choices) + 3))
    if number < len(choices):
        return encode(choices[number])
    tail = draw.bytes(int(draw.integers(1, 60)))
    return encode(["ack", 1]) + tail if number == len(choices) else b"\xc1" + tail


def _damaged(draw: np.random.Generator, frames: Frames) -> Iterator[tuple[str, Callable[[int], tuple[Frames, bool]]]]:
    """Every kind of damage, as a function of the number of the frame: the frames from there on, and must it fail."""

    def flipped(i: int) -> tuple[Frames, bool]:
        data = bytearray(frames[i])
        for _ in range(int(draw.integers(1, 9))):
            data[int(draw.integers(len(data)))] ^= 1 << int(draw.integers(8))
        return [bytes(data), *frames[i + 1 :]], False

    def oversized(i: int) -> tuple[Frames, bool]:
        field = ("header", "body", "total")[int(draw.integers(3))]
        most = {"header": 2**16 - 1, "body": 2**32 - 1, "total": 2**64 - 1}[field]
        return [_prefix(frames[i], **{field: min(most, HUGE[int(draw.integers(4))])}), *frames[i + 1 :]], True

    def rewritten(i: int) -> tuple[Frames, bool]:
        header = _headers(draw)
        return [_prefix(frames[i], lane=0, header=len(header), body=0, total=0)[: PREFIX.size] + header], True

    def not_finite(_: int) -> tuple[Frames, bool]:
        i = len(frames) - 2
        bad = np.array([1.0, (np.nan, np.inf, -np.inf)[int(draw.integers(3))]]).tobytes()
        return [*frames[1:i], frames[i][:-16] + bad], True

    def other_phase(i: int) -> tuple[Frames, bool]:
        header = msgspec.msgpack.encode(State(0, int(draw.integers(2, 60000))))
        return [_prefix(frames[1], counter=i, header=len(header))[: PREFIX.size] + header + bytes(27)], True

    yield "cut", lambda i: ([frames[i][: int(draw.integers(len(frames[i])))]], False)
    yield "flipped", flipped
    yield "oversized", oversized
    yield "unknown type", lambda i: ([_prefix(frames[i], lane=int(draw.integers(3, 256))), *frames[i + 1 :]], True)
    yield "unknown version", lambda i: ([_prefix(frames[i], version=int(draw.integers(2, 256)))], True)
    yield "counter", lambda i: ([_prefix(frames[i], counter=i + 1 + int(draw.integers(2**40))), *frames[i + 1 :]], True)
    yield "session", lambda i: ([_prefix(frames[i], session=draw.bytes(8)), *frames[i + 1 :]], True)
    yield "header", rewritten
    yield "not finite", not_finite
    yield "other phase", other_phase
    yield "noise", lambda i: ([draw.bytes(int(draw.integers(1, 3000)))], False)
    yield "dropped", lambda i: (frames[i + 1 :], i + 1 < len(frames))
    yield "repeated", lambda i: ([frames[i], frames[i], *frames[i + 1 :]], True)
    yield "swapped", lambda i: ([*reversed(frames[i:])], i + 1 < len(frames))
    yield "second hello", lambda i: ([_prefix(frames[0], counter=i, session=_session(frames))], True)


def _session(frames: Frames) -> bytes:
    found: bytes = PREFIX.unpack_from(frames[1])[6]
    return found


KINDS = 15


def damaged(draw: np.random.Generator, frames: Frames) -> Case:
    """Damage one frame after HELLO."""
    kind, make = list(_damaged(draw, frames))[int(draw.integers(KINDS))]
    i = int(draw.integers(1, len(frames)))
    rest, refused = make(i)
    intact = len(frames) - 2 if kind == "not finite" else i + 1 if kind == "repeated" else i
    before = [] if kind == "not finite" else frames[1:i]
    return Case(kind, [*before, *rest], intact, refused)


def fed(wire: Wire, data: bytes) -> tuple[Delivered, str | None]:
    """Decode bytes: the messages, and why the rest was refused."""
    found: Delivered = []
    rest = memoryview(data)
    try:
        while rest:
            buffer = wire.receiver.buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            for message, body in wire.filled(count):
                found.append((message, None if body is None else bytes(body)))
    except WireError as error:
        return found, str(error)
    return found, None


def check(case: Case, delivered: Delivered, error: str | None, valid: Delivered) -> None:
    """Raise AssertionError where anything damaged was delivered."""
    intact = valid[: case.intact]
    assert delivered[: len(intact)] == intact, case.kind
    if case.refused:
        assert error is not None, case.kind
        assert len(delivered) == len(intact), case.kind
    for message, payload in delivered[len(intact) :]:  # bits that flipped may give another valid message, and no more
        assert (payload is None) is not isinstance(message, State), case.kind
        if isinstance(message, State):
            assert payload is not None
            assert len(payload) == SCHEMA.size(message.phase)
            assert SCHEMA.finite(message.phase, np.frombuffer(payload, np.uint8))


def played(own: Hello, delivered: Delivered) -> LockstepNode:
    """Give a node what was delivered; it is in its first exchange, and has sent its own STATE."""
    node = LockstepNode(PLAN, Checkpoint(0, "model"))
    node.start(0.0)
    node.opened(1, own.nonce, 0.0)
    node.offer(0, 0, {1: bytes(27)}, 0.0)
    for message, payload in delivered:
        node.received(1, message, payload, 1.0)
    return node


def _check_core(case: Case, own: Hello, delivered: Delivered, valid: Delivered) -> None:
    """Raise AssertionError where a damaged frame changed a node, or where it holds more than two STATEs."""
    node, link = (made := played(own, delivered)), made.links[1]
    assert len(link.held) <= 2, case.kind
    assert node.k == 0, case.kind
    if case.refused:
        other = played(own, valid[: case.intact])
        assert (node.phase, link.held, link.durable) == (other.phase, other.links[1].held, other.links[1].durable)


def fuzz(count: int, seed: int = 0) -> dict[str, int]:
    """Send damaged frames through the decoder and the core in memory; AssertionError where one is applied.

    Args:
        count: Their number.
        seed: The seed of all draws.

    Returns:
        How many of each kind were refused.
    """
    draw = np.random.default_rng(seed)
    own, other = hello(0, bytes(16)), hello(1)
    frames = valid_frames(other, own)
    valid = fed(_wire(own), b"".join(frames))[0]
    refused: dict[str, int] = {}
    for _ in range(count):
        case = damaged(draw, frames)
        delivered, error = fed(_wire(own), b"".join([frames[0], *case.frames]))
        check(case, delivered, error, valid)
        _check_core(case, own, delivered, valid)
        refused[case.kind] = refused.get(case.kind, 0) + (error is not None)
    return refused


def _wire(own: Hello) -> Wire:
    wire = Wire(0, 1, SCHEMA)
    wire.put(own)
    return wire


def measured(count: int, seed: int = 1) -> tuple[float, float, dict[str, int]]:
    """Fuzz, and measure.

    Args:
        count: Damaged frames.
        seed: The seed of all draws.

    Returns:
        Growth of memory in bytes, seconds, and how many of each kind were refused.
    """
    before, begin = _peak(), time.perf_counter()
    found = fuzz(count, seed)
    return _peak() - before, time.perf_counter() - begin, found


def _peak() -> float:
    """The most memory that this process has had, in bytes; Linux counts in units of 1024, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)
