"""What is typed behind a command: numbers, and in one line what is wrong with it."""

from __future__ import annotations

from typing import Any

import typer

from dspodfl.errors import InputError

WRONG: Any = typer.BadParameter.__base__
"""What is raised where a command line cannot be understood: Click's UsageError, which typer may bring with itself."""


class _NotSo(typer.BadParameter):
    """A value that is none; of which option, the parser learns too late for the message."""

    def __init__(self, value: str, allowed: str) -> None:
        self.value, self.allowed = value, allowed
        super().__init__(f"{value!r}: must be {allowed}")


def whole(text: str) -> int:
    """An integer."""
    try:
        return int(text)
    except ValueError:
        raise _NotSo(text, "an integer") from None


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise _NotSo(text, "a number") from None


def plainly(error: Any) -> str:
    """One line: the option, the value and what is allowed, or what is missing and where to read on."""
    if isinstance(error, _NotSo):
        name = error.param.opts[0] if error.param else "a value"
        return str(InputError(name, error.value, error.allowed))
    message = " ".join(error.format_message().split()).rstrip(".")
    where = f"; see {error.ctx.command_path} --help" if error.ctx else ""
    return f"{message[:1].lower()}{message[1:]}{where}"
