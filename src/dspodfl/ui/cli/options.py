"""What is typed behind a command: the options that commands share, and in one line what is wrong with a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

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


Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a configuration key: table.key=value, a TOML value. Repeatable."
    ),
]
Algorithms = Annotated[str | None, typer.Option(metavar="A,B", help="Algorithms to compare, separated by commas.")]
Seeds = Annotated[int | None, typer.Option(metavar="N", help="Number of seeds.", parser=whole)]
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only: no progress and no table.")]
Ranks = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Number of processes on this machine; for several machines use torchrun.", parser=whole
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="With --ranks: number of restarts from the last checkpoint after a process dies.",
        parser=whole,
    ),
]


@dataclass(frozen=True)
class Output:
    """What commands that run studies have in common; made by the command line and handed on whole."""

    device: str = "auto"
    out: Path | None = None
    overwrite: bool = False
    quiet: bool = False


def names_in(text: str | None) -> list[str] | None:
    """The names in a text that are separated by commas; None where nothing was given.

    >>> names_in("dgd, rg")
    ['dgd', 'rg']
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def plainly(error: Any) -> str:
    """One line: the option, the value and what is allowed, or what is missing and where to read on."""
    if isinstance(error, _NotSo):
        name = error.param.opts[0] if error.param else "a value"
        return str(InputError(name, error.value, error.allowed))
    message = " ".join(error.format_message().split()).rstrip(".")
    where = f"; see {error.ctx.command_path} --help" if error.ctx else ""
    return f"{message[:1].lower()}{message[1:]}{where}"


HELP_NAMES = {"help_option_names": ["-h", "--help"]}
"""What every command answers to with its help."""


def in_full(app: typer.Typer) -> None:
    """Let a list of commands show the first sentence of each help whole, where Click would cut it at the width."""
    for command in app.registered_commands:
        text = command.help or (command.callback.__doc__ if command.callback else None)
        command.short_help = command.short_help or _first_paragraph(text)
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is not None:
            group.short_help = _first_paragraph(inner.info.help)
            in_full(inner)


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().partition("\n\n")[0].split())
