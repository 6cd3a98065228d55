"""A session is one connection between two nodes: its name, the counters of its frames, and whether the peer is alive.

Every frame carries the session and a counter per direction. HELLO is frame 0 and carries no session (zeros), since the
sender does not know the other end's random bytes yet. A frame of another session, or one that was seen, is dropped; a
frame that comes too early shows that one was lost, and the connection is closed. Both clocks use this module.
"""

from __future__ import annotations

import hashlib
from typing import Literal

SESSION_BYTES = 8
"""The bytes of a session in a frame."""
NO_SESSION = bytes(SESSION_BYTES)
"""The session of a HELLO."""
LEAST_PATIENCE = 5.0
"""Seconds without progress that are never too long."""
ROUND_TRIPS = 20
"""Round trips without progress after which a connection is given up."""


def session_id(id_a: int, nonce_a: bytes, id_b: int, nonce_b: bytes) -> bytes:
    """Name the session of two ends.

    Args:
        id_a: The client at one end.
        nonce_a: The random bytes of its HELLO.
        id_b: The client at the other end.
        nonce_b: The random bytes of its HELLO.

    Returns:
        The same 8 bytes for both orders of the ends.

    >>> session_id(1, b"a" * 16, 2, b"b" * 16) == session_id(2, b"b" * 16, 1, b"a" * 16)
    True
    """
    ends = sorted(((id_a, nonce_a), (id_b, nonce_b)))
    text = b"".join(end.to_bytes(8, "big") + nonce for end, nonce in ends)
    return hashlib.sha256(text).digest()[:SESSION_BYTES]


class FrameCounters:
    """The session and the counters of one end of a connection.

    >>> a, b = FrameCounters(), FrameCounters()
    >>> b.check(*a.stamp())
    'take'
    >>> a.agree(b"sessions"); b.agree(b"sessions")
    >>> lost, seen = a.stamp(), a.stamp()
    >>> b.check(*seen), b.check(*lost), b.check(*lost), b.check(b"old one.", 2)
    ('gap', 'take', 'drop', 'drop')
    """

    __slots__ = ("_received", "_sent", "session")

    def __init__(self) -> None:
        self.session: bytes | None = None
        self._sent = 0
        self._received = 0

    def agree(self, session: bytes) -> None:
        """Set the session, once both HELLOs are known.

        Args:
            session: What `session_id` returned.
        """
        self.session = session

    def stamp(self) -> tuple[bytes, int]:
        """Number a frame that is to be sent.

        Returns:
            The session (zeros for the HELLO) and the counter of the frame.

        Raises:
            ValueError: A second frame is sent before the session is known.
        """
        number = self._sent
        if number and self.session is None:
            raise ValueError("only HELLO is sent before the session is agreed")
        self._sent = number + 1
        return (NO_SESSION if number == 0 else self.session or NO_SESSION), number

    def check(self, session: bytes, number: int) -> Literal["take", "drop", "gap"]:
        """Decide what to do with a frame that arrived.

        Args:
            session: The session of the frame.
            number: The counter of the frame.

        Returns:
            "take" for the next frame, "drop" for one of another session or one seen before, "gap" if one was lost.
        """
        expected = NO_SESSION if number == 0 else self.session
        if session != expected or number < self._received:
            return "gap" if self.session is None and number else "drop"
        if number > self._received:
            return "gap"
        self._received = number + 1
        return "take"


class Liveness:
    """When to ask the peer for a sign of life, and when to give the connection up: a timer without a clock.

    The timeout is on progress and never on totals: every message and every received part of a long frame counts. A PING
    is sent after half the patience in silence; its PONG measures the round trip.
    """

    __slots__ = ("_heard", "_patience", "_pinged", "due", "greeted", "round_trip")

    def __init__(self, now: float, patience: float | None, round_trip: float | None = None) -> None:
        self.round_trip = round_trip
        """Seconds, smoothed; None before the first PONG."""
        self.greeted = False
        """Whether HELLO has arrived; before it nothing is asked."""
        self._patience = patience
        self._heard = now
        self._pinged: float | None = None
        self.due = now + self.patience
        """When to call `check`; it may turn out that nothing is to be done yet."""

    @property
    def patience(self) -> float:
        """Seconds without progress after which the connection is given up."""
        if self._patience is not None:
            return self._patience
        return max(LEAST_PATIENCE, ROUND_TRIPS * (self.round_trip or 0.0))

    def heard(self, now: float) -> None:
        """Record progress.

        Args:
            now: The time in seconds.
        """
        self._heard = now

    def ping(self, now: float) -> float:
        """Record that a PING is sent.

        Args:
            now: The time in seconds.

        Returns:
            What the PING carries.
        """
        self._pinged = now
        self.due = now + self.patience
        return now

    def pong(self, t: float, now: float) -> None:
        """Take the answer to a PING; one that was not asked for counts for nothing.

        Args:
            t: What the PONG carries.
            now: The time in seconds.
        """
        if t == self._pinged and now >= t:
            trip = now - t
            old = self.round_trip
            self.round_trip = trip if old is None else max(trip, 0.875 * old + 0.125 * trip)
            self._pinged = None
            self.due = min(self.due, now + self.patience / 2)

    def check(self, now: float) -> Literal["wait", "ping", "lost"]:
        """Decide what is to be done now.

        Args:
            now: The time in seconds.

        Returns:
            "ping" if a PING is due (then call `ping`), "lost" if the connection is to be closed.
        """
        waits = self._pinged is not None or not self.greeted
        since = self._heard if self._pinged is None else max(self._heard, self._pinged)
        self.due = since + (self.patience if waits else self.patience / 2)
        if now < self.due:
            return "wait"
        return "lost" if waits else "ping"
