"""One place that turns any failure into a line and an exit code.

| exit code | what happened |
|---|---|
| 0 | all is well |
| 1 | a rank was lost, output could not be printed, or the program itself is at fault |
| 2 | what was given cannot be used: input, files, user code, memory |
| 129, 130, 143 | SIGHUP, Ctrl-C, SIGTERM |
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import typer
from rich.text import Text

from dspodfl.engine.transport import launch as supervisor
from dspodfl.errors import DspodflError, Interrupt, Interrupted, LostRankError, user_code
from dspodfl.study import terminal
from dspodfl.ui.cli.options import USAGE_ERROR, usage_line

TRACEBACK = "DSPODFL_TRACEBACK"
"""Environment: set to 1, tracebacks are printed too."""
_LONGEST = 1000


def guarded(command: Callable[[], int]) -> int:
    """Run a command and return its exit code; failures are reported on standard error, one line each."""
    terminal.prepare()
    supervisor.follow_launcher()
    user_code.forget()
    warnings.showwarning = _show_warning
    try:
        with Interrupt():  # from here on every signal is an `Interrupted`, and nothing else is one
            code = command()
    except BaseException as error:
        code = report(error)
    failure = terminal.failure()
    if failure is not None and code == 0:
        if failure.errno != errno.EPIPE:  # the process that closed a pipe knows
            _say([f"what was to be printed could not be ({failure.strerror})"])
        code = 1
    return code


def leave(code: int) -> None:
    """Exit; a rank does so immediately: gloo's threads may wait for the others, or abort, where Python shuts down."""
    if "RANK" in os.environ:
        terminal.failure()
        supervisor.clean_up()
        os._exit(code)
    sys.exit(code)


def report(error: BaseException) -> int:
    """Print what went wrong, once for all ranks, and return the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        terminal.ERR.print(Text(error.ctx.get_help()), soft_wrap=True)  # type: ignore[attr-defined]
        return 2
    lines, code = explained(error)
    if os.environ.get(TRACEBACK) == "1" and lines:
        terminal.ERR.print(Text("".join(traceback.format_exception(error)).rstrip()), soft_wrap=True)
    rank = os.environ.get("RANK", "0")
    if rank != "0" and getattr(error, "agreed", False):
        return code  # rank 0 reports it
    if isinstance(error, LostRankError) and {"RANK", "DSPODFL_LAUNCHED"} <= os.environ.keys():
        return code  # the launcher reports which rank is gone
    where = f"rank {rank}: " if rank != "0" and not isinstance(error, LostRankError) else ""
    _say([where + line for line in lines])
    return code


def _say(lines: list[str]) -> None:
    for line in lines:
        terminal.ERR.print(Text(f"error: {line}"), soft_wrap=True)


def explained(error: BaseException) -> tuple[list[str], int]:
    """Return the lines that explain a failure, and the exit code."""
    if isinstance(error, typer.Exit) and user_code.where_user_code_raised(error.__traceback__) is None:
        return [], error.exit_code
    if isinstance(error, Interrupted):
        return [], error.code
    if isinstance(error, USAGE_ERROR):
        return [usage_line(error)], 2
    if isinstance(error, DspodflError):
        lines = [_brief(error)] if isinstance(error, LostRankError) else str(error).splitlines()
        return lines or [type(error).__name__], error.exit_code
    return _of_others(error)


def _of_others(error: BaseException) -> tuple[list[str], int]:
    """Explain failures that are not ours."""
    what = f"{type(error).__name__}: {_brief(error)}".removesuffix(": ")
    place = user_code.where_user_code_raised(error.__traceback__)
    if place is not None:
        verb = "raised" if isinstance(error, Exception) else "ended in"
        return [f"{place}: user code {verb} {what}"], 2
    if isinstance(error, SystemExit):
        return [f"code that was called ended the program: {what}"], 2
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return [], 128 + int(signal.SIGINT)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return [f"out of memory: {_brief(error) or 'something did not fit'}"], 2
    if isinstance(error, OSError) and error.errno is not None:
        file = error.filename if error.filename2 is None else error.filename2
        name = "" if file is None else f"{os.fsdecode(file) if isinstance(file, bytes) else file}: "
        return [f"{name}{error.strerror or what}"], 2
    if isinstance(error, getattr(USAGE_ERROR, "__base__", USAGE_ERROR)):  # Click's other exceptions
        message: Any = error
        return [" ".join(message.format_message().split())], 2
    return [f"internal error: {what}; please report it ({TRACEBACK}=1 prints the traceback)"], 1


def _brief(error: BaseException) -> str:
    """The message of an error in one line that is not endless."""
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Python's warnings, in the way of all other lines."""
    terminal.ERR.print(Text(f"warning: {' '.join(str(message).split())}"), soft_wrap=True)
