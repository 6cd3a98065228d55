"""Ctrl-C and SIGTERM: the first is heard and waited for, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal came; ``code`` is what a process that it ended exits with: 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Interrupt:
    """Hears the signals while it is entered; in other threads than the main one, nothing changes.

    A signal raises `Interrupted` where it comes, unless someone is patient: then the first one is kept in
    ``heard`` until they look, and only the second raises.
    """

    def __init__(self) -> None:
        self.heard: Interrupted | None = None
        self._patient = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """For a while the first signal is only heard."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._patient and self.heard is None:
            self.heard = Interrupted(number)
        else:
            raise Interrupted(number)
