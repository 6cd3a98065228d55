"""A command on several ranks of this machine: they receive the resolved request as a file.

``python -m dspodfl.ui.cli.launch`` is one rank. It reads the request in the private directory where the ranks meet,
and runs the command as the command line would.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter

from dspodfl.errors import InputError

REQUEST = "request.json"
"""The file of the meeting directory that has the command and its options."""
_KIND, _FORMAT = "request", 1
COMMANDS = {
    "run": ("dspodfl.ui.cli.run", "RunOptions", "run_command"),
    "sweep": ("dspodfl.ui.cli.grids", "SweepOptions", "sweep_command"),
    "reproduce": ("dspodfl.ui.cli.grids", "ReproduceOptions", "reproduce_command"),
}
"""Command -> the module, the options and the function of it."""


def check_ranks(ranks: int | None) -> int:
    """Return the number of processes to start, where ``--ranks`` or ``--max-restarts`` was given.

    Args:
        ranks: The value of ``--ranks``, None where it was not given.

    Returns:
        The number of processes.

    Raises:
        InputError: Names the option.
    """
    from dspodfl.engine.transport import torch_distributed as distributed

    if distributed.launched():
        raise InputError("ranks", ranks, "left out: a launcher has started this process as one of several already")
    if ranks is None:
        raise InputError("ranks", ranks, "an integer of at least 1 where --max-restarts is given")
    return ranks


def launch(command: str, options: Any, ranks: int, max_restarts: int) -> int:
    """Run a command on several processes of this machine.

    Args:
        command: One of `COMMANDS`.
        options: Its options, resolved.
        ranks: How many processes.
        max_restarts: How often all are started again when one of them dies.

    Returns:
        The exit code.

    Raises:
        LostRankError: One of them was killed.
    """
    from dspodfl.engine.transport import torch_distributed as distributed

    kind, _ = _found(command)
    request = {"kind": _KIND, "format": _FORMAT, "command": command}
    request["options"] = TypeAdapter(kind).dump_python(options, mode="json")
    files = {REQUEST: json.dumps(request).encode()}
    return distributed.launch(ranks, [], max_restarts=max_restarts, module=__spec__.name, files=files)


def _found(command: str) -> tuple[Any, Callable[[Any], None]]:
    module, options, function = COMMANDS[command]
    return getattr(import_module(module), options), getattr(import_module(module), function)


def _rank() -> int:
    """Run the command of the request."""
    from dspodfl.engine.transport import launch as launcher
    from dspodfl.study.store import check_format

    request = json.loads(launcher.shared_file(REQUEST))
    check_format(request, {_KIND}, _FORMAT, REQUEST)
    kind, function = _found(request["command"])
    function(TypeAdapter(kind).validate_python(request["options"]))
    return 0


if __name__ == "__main__":
    from dspodfl.ui.cli import failures

    failures.leave(failures.guarded(_rank))
