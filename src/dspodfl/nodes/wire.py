"""Frames: what the two ends of a connection write, as a pure state machine without a socket.

A frame is a prefix of 32 bytes, a header (a message of `dspodfl.protocol` in MessagePack) and a piece of payload:

| bytes | prefix, little-endian |
|---|---|
| 1 | version of the frames |
| 1 | lane: 0 a message without payload, 1 a message and the first chunk of its payload, 2 a further chunk |
| 2 | bytes of the header |
| 4 | bytes of payload in this frame |
| 8 | bytes of the whole payload |
| 8 | counter: 0, 1, 2, … in each direction |
| 8 | session; zeros in the frame of HELLO |

A payload is cut into chunks of 256 KiB. Frames without payload overtake chunks that wait, but never each other; the
chunks of one payload are never mixed with those of another. Everything that a prefix says is checked before anything
is allocated: the one array that a payload is received into has the size that the agreed schema says.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from dspodfl.errors import DspodflError, plain
from dspodfl.nodes.schema import Bytes, Schema
from dspodfl.protocol import NO_SESSION, AnyMessage, Hello, Message, State, session_id

FRAME_VERSION = 1
"""The version of the layout of frames."""
CHUNK = 1 << 18
"""Bytes of payload in one frame, at most."""
LONGEST_HELLO = (1 << 16) - 1
"""Bytes of the header of HELLO, at most: it has a fingerprint of every key of the configuration."""
LONGEST_HEADER = 1 << 12
"""Bytes of any other header, at most."""
_PREFIX = struct.Struct("<BBHIQQ8s")
PREFIX_BYTES = _PREFIX.size
"""Bytes before the header of a frame."""
_CONTROL, _FIRST, _FURTHER = range(3)
_SCRATCH = PREFIX_BYTES + LONGEST_HELLO
_NOTHING = memoryview(b"")

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyMessage)


class WireError(DspodflError):
    """What a peer sent is not allowed; the message says why. The connection is closed, and nothing is applied.

    >>> WireError("frames are missing").exit_code
    1
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))


class Sender:
    """What one end still has to write: messages in, frames out.

    Args:
        schema: What payloads consist of.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._control: deque[bytes] = deque()
        self._payloads: deque[tuple[bytes, memoryview]] = deque()
        self._offset = 0
        self._counter = 0
        self.session = NO_SESSION

    def put(self, message: Message, payload: Any = None) -> None:
        """Queue a message.

        Args:
            message: The message.
            payload: What travels beside it, as a contiguous buffer; it must not change until it is written. None:
                nothing.

        Raises:
            ValueError: The payload is not of the size that the schema says, or the header is too long.
        """
        header = _encode(message)
        is_state = isinstance(message, State)
        if len(header) > (LONGEST_HELLO if isinstance(message, Hello) else LONGEST_HEADER):
            raise ValueError(f"{type(message).__name__}: a header of {len(header)} bytes is too long")
        if (payload is not None) is not is_state:
            raise ValueError(f"{type(message).__name__}: a payload belongs to STATE, and to nothing else")
        if not is_state:
            self._control.append(header)
            return
        view, size = memoryview(payload).cast("B"), self._schema.sizes[message.phase]  # type: ignore[attr-defined]
        if view.nbytes != size:
            raise ValueError(f"{view.nbytes} bytes of payload, not {size}")
        self._payloads.append((header, view))

    @property
    def waiting(self) -> bool:
        """Whether there is a frame to write now: before the session is known that is HELLO alone."""
        if self.session == NO_SESSION:
            return self._counter == 0 and bool(self._control)
        return bool(self._control or self._payloads)

    def take(self) -> tuple[bytes, memoryview] | None:
        """Return the next frame: prefix and header, and its piece of payload; None where there is nothing to write."""
        if not self.waiting:
            return None
        if self._control:
            header = self._control.popleft()
            return self._head(_CONTROL, header, 0, 0), _NOTHING
        header, view = self._payloads[0]
        offset, total = self._offset, len(view)
        if not offset and total <= CHUNK:
            self._payloads.popleft()
            return self._head(_FIRST, header, total, total), view
        chunk = view[offset : offset + CHUNK]
        head = self._head(_FURTHER if offset else _FIRST, b"" if offset else header, len(chunk), total)
        self._offset = offset + len(chunk)
        if self._offset == total:
            self._payloads.popleft()
            self._offset = 0
        return head, chunk

    @property
    def progress(self) -> tuple[int, int] | None:
        """Bytes of the payload under way that were taken, and of the whole of it; None where none is under way."""
        return (self._offset, len(self._payloads[0][1])) if self._offset else None

    def drop_payloads(self) -> None:
        """Forget payloads that are not written yet: the connection is about to be closed."""
        self._payloads.clear()
        self._offset = 0

    def _head(self, lane: int, header: bytes, body: int, total: int) -> bytes:
        counter, self._counter = self._counter, self._counter + 1
        session = self.session if counter else NO_SESSION
        return _PREFIX.pack(FRAME_VERSION, lane, len(header), body, total, counter, session) + header


class Receiver:
    """What one end has read: bytes in, messages out.

    `buffer` says where the next bytes are to be stored, `filled` how many came. The bytes of a payload are received
    straight into the array that is handed over, but for those that came with the prefix.

    Args:
        schema: What payloads consist of.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._have = 0
        self._counter = 0
        self._message: State | None = None
        self._array: Bytes | None = None
        self._target = _NOTHING
        self._done = 0
        self._left = 0
        self.session = NO_SESSION

    def buffer(self) -> memoryview:
        """Return where the next bytes are to be stored: never empty."""
        if self._left:
            return self._target[self._done : self._done + self._left]
        return self._scratch[self._have :]

    @property
    def progress(self) -> tuple[int, int] | None:
        """Bytes of the payload under way that are here, and of the whole of it; None where none is under way."""
        return None if self._message is None else (self._done, len(self._target))

    def filled(self, count: int) -> Iterator[tuple[Message, Bytes | None]]:
        """Interpret the bytes that were stored.

        Args:
            count: Bytes that were stored in `buffer`.

        Returns:
            The messages that are complete, with their payloads, one after the other.

        Raises:
            WireError: The bytes are not allowed. Nothing more may be read.
        """
        if self._left:
            self._done += count
            self._left -= count
            if not self._left and self._done == len(self._target):
                yield self._finish()
            return
        self._have += count
        at = 0
        while self._have - at >= PREFIX_BYTES:
            lane, length, body, total = self._checked(at)
            start = at + PREFIX_BYTES
            if self._have < start + length:
                break
            at = start + length
            self._counter += 1
            if lane == _FURTHER:
                self._left = body
            else:
                message = self._decoded(self._scratch[start:at])
                if lane == _FIRST:
                    self._begin(message, total, body)
                elif isinstance(message, State):
                    raise WireError("a STATE without payload")
                else:
                    yield message, None
            if self._message is not None:
                at += self._copied(at)
                if not self._left and self._done == len(self._target):
                    yield self._finish()
        if at:
            rest = self._have - at
            self._scratch[:rest] = bytes(self._scratch[at : self._have])
            self._have = rest

    def _checked(self, at: int) -> tuple[int, int, int, int]:
        """Read a prefix: lane, bytes of the header, of payload here, of the whole payload."""
        version, lane, length, body, total, counter, session = _PREFIX.unpack_from(self._scratch, at)
        if version != FRAME_VERSION:
            raise WireError(f"a frame of version {version}, not {FRAME_VERSION}")
        if lane > _FURTHER:
            raise WireError(f"a frame of unknown type {lane}")
        if counter != self._counter:
            raise WireError(f"frames are missing: number {counter} came where {self._counter} was due")
        if session != self.session or (counter > 0 and session == NO_SESSION):
            raise WireError("a frame of another session")
        if counter == 0 and lane != _CONTROL:
            raise WireError("the first frame is not HELLO")
        whole = self._schema.largest
        if lane == _FIRST and 0 < length <= LONGEST_HEADER and total <= whole and self._message is None:
            fine = body == min(CHUNK, total)
        elif lane == _FURTHER:
            done, whole = self.progress or (0, 0)
            fine = self._message is not None and length == 0 and total == whole and body == min(CHUNK, whole - done)
        else:
            longest = LONGEST_HEADER if counter else LONGEST_HELLO
            whole = 0 if lane == _CONTROL else self._schema.largest
            fine = 0 < length <= longest and total <= whole and body == min(CHUNK, total)
            fine = fine and (lane == _CONTROL or self._message is None)
        if not fine:
            raise WireError(f"a frame of {length} + {body} of {total} bytes (type {lane}) is not allowed here")
        return lane, length, body, total

    def _decoded(self, header: memoryview) -> Message:
        try:
            message: Message = _decoder.decode(header)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise WireError(f"a header that cannot be read ({error})") from None
        if isinstance(message, Hello) is not (self._counter == 1):
            raise WireError("HELLO is the first message, and no other is")
        return message

    def _begin(self, message: Message, total: int, body: int) -> None:
        """Allocate what a payload is received into, once it is known that it is of the agreed size."""
        if not isinstance(message, State):
            raise WireError(f"a payload beside {type(message).__name__}")
        sizes = self._schema.sizes
        if message.phase >= len(sizes) or total != sizes[message.phase]:
            raise WireError(f"a payload of {total} bytes for phase {message.phase}, which is not what was agreed")
        self._message, self._array = message, np.empty(total, np.uint8)
        self._target, self._done, self._left = self._array.data, 0, body

    def _copied(self, at: int) -> int:
        """Move the bytes of payload that came with the prefix; return how many."""
        count = min(self._left, self._have - at)
        if count:
            self._target[self._done : self._done + count] = self._scratch[at : at + count]
            self._done += count
            self._left -= count
        return count

    def _finish(self) -> tuple[Message, Bytes]:
        message, array = self._message, self._array
        self._message, self._array, self._target, self._done = None, None, _NOTHING, 0
        assert message is not None
        assert array is not None
        if not self._schema.finite(message.phase, array):
            raise WireError(f"the STATE of iteration {message.k} has values that are not finite")
        return message, array


class Wire:
    """Both directions of a connection to an authenticated peer: HELLO first, then frames of its session alone.

    Args:
        local: The id of this end.
        peer: The id that the peer's certificate stands for.
        schema: What payloads consist of.
    """

    def __init__(self, local: int, peer: int, schema: Schema) -> None:
        self.local, self.peer = local, peer
        self.sender, self.receiver = Sender(schema), Receiver(schema)
        self._sent: Hello | None = None
        self._received: Hello | None = None

    def put(self, message: Message, payload: Any = None) -> None:
        """Queue a message, HELLO first.

        Args:
            message: The message.
            payload: What travels beside it; None: nothing.

        Raises:
            ValueError: HELLO is not the first message, or the payload is not of the agreed size.
        """
        if isinstance(message, Hello) is not (self._sent is None):
            raise ValueError("HELLO is the first message, and no other is")
        self.sender.put(message, payload)
        if isinstance(message, Hello):
            self._sent = message
            self._agree()

    def filled(self, count: int) -> Iterator[tuple[Message, Bytes | None]]:
        """Interpret the bytes that were stored in the receiver's buffer.

        Args:
            count: Their number.

        Returns:
            The messages that are complete, one after the other.

        Raises:
            WireError: The bytes are not allowed, or the peer claims another id than its certificate's.
        """
        for message, payload in self.receiver.filled(count):
            if isinstance(message, Hello):
                if message.id != self.peer:
                    raise WireError(f"it claims to be node {message.id}, with the certificate of node {self.peer}")
                self._received = message
                self._agree()
            yield message, payload

    @property
    def greeted(self) -> bool:
        """Whether the peer's HELLO is here."""
        return self._received is not None

    def _agree(self) -> None:
        one, other = self._sent, self._received
        if one is not None and other is not None:
            session = session_id(one.id, one.nonce, other.id, other.nonce)
            self.sender.session = self.receiver.session = session
