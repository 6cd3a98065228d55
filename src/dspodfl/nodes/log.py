"""The log of a node: JSON lines in its folder, and sentences for a person on standard error."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

_AGAIN_SECONDS, _REMEMBERED = 60.0, 1000
"""Seconds after which the same is said again, and sayings that are remembered."""


class Log:
    """Writes what happens on a node, each event once.

    Args:
        path: The file, which is appended to; None: none.
        id: The node.
        say: Gets a sentence for a person; None: standard error.
        run: The run, which every line names.
    """

    def __init__(self, path: Path | None, id: int, say: Callable[[str], None] | None = None, run: str = "") -> None:
        self._id, self._run = id, run
        self._said: dict[Hashable, tuple[float, int]] = {}
        self._say = say or (lambda line: print(line, file=sys.stderr, flush=True))
        self._file: TextIO | None = None
        if path is not None:
            with suppress(OSError):  # a full disk does not stop a node
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, event: str, **values: Any) -> None:
        """Write an event to the file.

        Args:
            event: What happened, one word.
            **values: More about it.
        """
        if self._file is None:
            return
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "node": self._id, "event": event}
        line |= {"run": self._run} if self._run else {}
        with suppress(OSError, ValueError):
            self._file.write(json.dumps(line | values, ensure_ascii=False) + "\n")

    def warn(self, text: str, *, event: str = "warning", once: Hashable = None, **values: Any) -> None:
        """Write an event, and say it to a person.

        Args:
            text: A sentence without a full stop.
            event: What happened, one word.
            once: What was said with the same value less than a minute ago is counted, and not said; None: it is said.
            **values: More about it.
        """
        if once is not None:
            now = time.monotonic()
            at, count = self._said.get(once, (-math.inf, 0))
            if now - at < _AGAIN_SECONDS:
                self._said[once] = at, count + 1
                return
            if len(self._said) >= _REMEMBERED:
                self._said.clear()
            self._said[once] = now, 0
            text += f" ({count} times more since this was said last)" if count else ""
        self.write(event, text=text, **values)
        self._say(f"node {self._id}: {text}")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
