"""Errors that a user can act on; the command line prints them in one line and exits with their code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

_LONGEST = 400
"""Characters of a value that a message repeats."""


def shown(value: object, most: int = _LONGEST) -> str:
    """Return ``repr(value)`` for a message, shortened.

    Args:
        value: Any value, of any size.
        most: The most characters.

    Returns:
        A text of at most ``most`` characters.

    >>> shown("x" * 1000, most=8)
    "'xxxxxx…"
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError, MemoryError):  # an integer of thousands of digits, a list in a list in a list
        text = f"a value of type {type(value).__name__} that is too large to be shown"
    return text if len(text) <= most else text[: most - 1] + "…"


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    r"""Escape the control characters of a message: a name in it may hold what a terminal would obey.

    Args:
        text: The message.

    Returns:
        The message; tabs and line breaks stay.

    >>> print(plain(chr(27) + "[31m"))
    \x1b[31m
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class DspodflError(Exception):
    """The base of all errors of the package; ``exit_code`` is what the command line exits with.

    >>> issubclass(InputError, DspodflError), InputError.exit_code, LostRankError.exit_code
    (True, 2, 1)
    """

    exit_code: ClassVar[int] = 2


class InputError(DspodflError, ValueError):
    """What the user gave cannot be used: names the field, the value and what is allowed.

    >>> raise InputError("graph.radius", -1, "a number above 0")
    Traceback (most recent call last):
    dspodfl.errors.base.InputError: graph.radius = -1: must be a number above 0
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(plain(f"{field} = {shown(value)}: must be {allowed}"))


class DataError(DspodflError, RuntimeError):
    """A data file is missing, damaged or of the wrong form; the message says which and what to do."""

    def __init__(self, message: str = "") -> None:
        super().__init__(plain(message))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint that names the most similar of some names.

    Args:
        name: What was written.
        names: What is known.

    Returns:
        A clause for the end of a message; empty where no name is similar.

    >>> nearest("rign", ["ring", "star"])
    "; did you mean 'ring'?"
    """
    close = get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


class ConfigError(DspodflError, ValueError):
    """A configuration that cannot be used; ``problems`` has a line for each thing wrong with it."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = [plain(line) for line in problems]
        super().__init__("\n".join(self.problems))


class OutOfMemoryError(DspodflError, RuntimeError):
    """A run does not fit into the memory of its device; the message says how much it needs and what there is."""


class LostRankError(DspodflError, RuntimeError):
    """One of the processes that run a study together is gone or does not answer."""

    exit_code = 1
