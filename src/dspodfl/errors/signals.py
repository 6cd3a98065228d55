"""Ctrl-C, SIGTERM and SIGHUP: the first is remembered until the run can stop, the second stops immediately."""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP
"""The signals that stop a run with a checkpoint."""


def available_signals() -> list[int]:
    """Return the numbers of the signals to handle in this process.

    Returns:
        Those of `SIGNALS`, without SIGHUP where ``nohup`` has switched it off.
    """
    hangup = getattr(signal, "SIGHUP", None)
    return [number for number in SIGNALS if number != hangup or signal.getsignal(number) != signal.SIG_IGN]


class Interrupted(KeyboardInterrupt):
    """A signal came; ``code`` is the exit code it leads to: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Handler(ABC):
    """Handles the signals while it is entered; in other threads than the main one, nothing changes."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in available_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @abstractmethod
    def _handle(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""


class Interrupt(Handler):
    """What a run makes of signals.

    A signal raises `Interrupted` where it comes, except within `deferred`: then the first one is kept in ``received``
    until the run asks for it, and only the second raises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: Interrupted | None = None
        self._defers = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """For a while the first signal is only remembered."""
        self._defers = True
        try:
            yield
        finally:
            self._defers = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._defers and self.received is None:
            self.received = Interrupted(number)
        else:
            raise Interrupted(number)
