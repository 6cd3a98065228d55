"""Everything that is printed goes through here.

Text of strangers (names, labels, keys, paths) cannot command the terminal: control characters are shown, not sent. A
stream that cannot be written to (closed, full, a pipe without a reader) never stops a run: the failure is remembered,
and becomes the exit code at the end.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Iterable
from typing import IO, Any, cast

import rich.console
from rich.console import RenderableType
from rich.segment import Segment

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, marks that change the direction of text, and halves of surrogate pairs."""


def clean(text: str) -> str:
    r"""Show control characters instead of sending them.

    >>> clean("a\x1b[2Jb")
    'a\\u001b[2Jb'
    """
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Stream:
    """``sys.stdout`` or ``sys.stderr``, whatever that is at the moment; writing to it never raises."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.error: OSError | None = None

    @property
    def _now(self) -> Any:
        return getattr(sys, self._name)

    @property
    def encoding(self) -> str:
        """How characters become bytes."""
        return str(getattr(self._now, "encoding", None) or "utf-8")

    def isatty(self) -> bool:
        """Whether a person reads it."""
        try:
            return bool(self._now is not None and self._now.isatty())
        except ValueError:  # it is closed
            return False

    def fileno(self) -> int:
        """The file descriptor."""
        if self._now is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return int(self._now.fileno())

    def write(self, text: str) -> int:
        """Write, unless that failed before."""
        if self.error is None:
            self._try(lambda stream: stream.write(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all of them."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Write what is buffered, unless that failed before."""
        if self.error is None and self._now is not None:
            self._try(lambda stream: stream.flush())

    def _try(self, work: Any) -> None:
        try:
            if self._now is None:  # closed before the program began
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            work(self._now)
        except (OSError, ValueError) as error:  # ValueError: it was closed later
            self.error = error if isinstance(error, OSError) else OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._discard()

    def _discard(self) -> None:
        """What is still buffered goes nowhere: Python would try again at exit, and complain."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._now.fileno())
            os.close(nowhere)


class Console(rich.console.Console):
    """A console that cleans what it is given, and takes brackets for brackets (no markup)."""

    def __init__(self, stream: Stream, **more: Any) -> None:
        super().__init__(file=cast(IO[str], stream), markup=False, emoji=False, **more)
        self.stream = stream

    def render(
        self, renderable: RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is printed, piece by piece."""
        for segment in super().render(renderable, options):
            if segment.control or not _UNSAFE.search(segment.text):
                yield segment
            else:
                yield Segment(clean(segment.text), segment.style)


_out, _err = Stream("stdout"), Stream("stderr")
OUT = Console(_out, width=None if _out.isatty() else 240)  # a table in a file or a pipe is never cut short
ERR = Console(_err)


def say(text: str) -> None:
    """Print a line of plain text, or JSON.

    Args:
        text: What is printed; control characters are replaced.
    """
    _out.write(clean(text) + "\n")
    _out.flush()


def prepare() -> None:
    """Before anything else: no file that is opened later takes the place of a closed standard stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show θ shows ?
    _out.error = _err.error = None


def failure() -> OSError | None:
    """Why something could not be printed, if so; what is buffered is written first."""
    for console in (OUT, ERR):
        console.stream.flush()
    return _out.error or _err.error
