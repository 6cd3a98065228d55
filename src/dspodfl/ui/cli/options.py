"""The options that commands share, and the line that says what is wrong with a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dspodfl.errors import InputError

USAGE_ERROR: Any = typer.BadParameter.__base__
"""The error of a command line that cannot be parsed: Click's UsageError, of which typer may have a copy."""

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a configuration key: table.key=value, a TOML value. Repeatable."
    ),
]
Algorithms = Annotated[str | None, typer.Option(metavar="A,B", help="Algorithms to compare, separated by commas.")]
Seeds = Annotated[int | None, typer.Option(metavar="N", help="Number of seeds.", min=1)]
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only: no progress and no table.")]
Ranks = Annotated[
    int | None,
    typer.Option(metavar="N", help="Number of processes on this machine; for several machines use torchrun.", min=1),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="With --ranks: number of restarts from the last checkpoint after a process dies.",
        min=0,
    ),
]


@dataclass(frozen=True)
class Output:
    """What a command that runs studies writes and prints: the command line makes it, and it is passed on as one value.

    A flag that says what is written is a field here, an option of its command, and a line where it takes effect. The
    fields in `STORED` are also kept in the folder of a run, so that the run is resumed as it was started.
    """

    out: Path | None = None
    """The folder; None: one that is named after the configuration."""
    overwrite: bool = False
    """Whether what is in the folder may be replaced."""
    quiet: bool = False
    """Print errors only."""
    json: bool = False
    """Print the summary as JSON and nothing else."""
    models: bool = False
    """Also write the final models."""
    record: bool = False
    """Also write the events."""

    @property
    def prints(self) -> bool:
        """Whether progress, tables and places are printed."""
        return not (self.quiet or self.json)

    @property
    def stored(self) -> dict[str, Any]:
        """What the folder of a run keeps of it."""
        return {key: getattr(self, key) for key in STORED}

    def as_started(self, stored: Mapping[str, Any]) -> Output:
        """Return it with what the folder of a run that is resumed has stored.

        >>> Output(quiet=True).as_started({"models": True, "launch": "x"})
        Output(out=None, overwrite=False, quiet=True, json=False, models=True, record=False)
        """
        found: dict[str, Any] = {key: bool(stored[key]) for key in STORED if key in stored}
        return replace(self, **found)


STORED = ("models", "record")
"""The fields of `Output` that the folder of a run keeps."""


def names_in(text: str | None) -> list[str] | None:
    """The names in a text that are separated by commas; None where nothing was given.

    >>> names_in("dgd, rg")
    ['dgd', 'rg']
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def usage_line(error: Any) -> str:
    """Write a usage error in one line: the option, its value and what is allowed, or what is missing.

    Args:
        error: A `USAGE_ERROR`.

    Returns:
        ``--seeds = 'x': must be an integer`` for a number that is none or is out of range, else the message of the
        parser, with the command whose ``--help`` says more.
    """
    problems = getattr(error.__cause__, "errors", None)  # typer validates numbers by pydantic
    problem = problems()[0] if callable(problems) else {}
    allowed = _NUMBERS.get(problem.get("type", ""))
    if allowed is not None and getattr(error, "param", None) is not None:
        value = int(problem["input"]) if problem["type"] == "greater_than_equal" else problem["input"]
        return str(InputError(error.param.opts[0], value, allowed.format(**problem.get("ctx") or {})))
    message = " ".join(error.format_message().split()).rstrip(".")
    where = f"; see {error.ctx.command_path} --help" if error.ctx else ""
    return f"{message[:1].lower()}{message[1:]}{where}"


_NUMBERS = {
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of fewer digits",
    "float_parsing": "a number",
    "greater_than_equal": "an integer of at least {ge}",
}
"""Pydantic's type of a problem with a number -> what is allowed; every minimum of an option is an integer."""

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
