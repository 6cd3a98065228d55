"""The arguments of `run`, checked by type before anything is done with them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dspodfl.errors import InputError


def check_inputs(schedules: object, device: object) -> None:
    """Refuse schedules and devices that a study cannot be made of.

    Args:
        schedules: None, or functions by name.
        device: "auto", "cpu", "cuda" or another name of PyTorch's.

    Raises:
        InputError: names the argument, its type and what is allowed.

    """
    named = schedules is None or (isinstance(schedules, Mapping) and all(isinstance(name, str) for name in schedules))
    _must(named, "schedules", schedules, 'schedules by name, {"name": schedule}')
    _must(isinstance(device, str), "device", device, "'auto', 'cpu' or 'cuda'")


def check_options(callbacks: object, out: object, resume: object, progress: object, **flags: object) -> None:
    """Refuse options of `run` that are of another type.

    Args:
        callbacks: functions of an update.
        out: None or the name of a folder.
        resume: None or the name of a folder.
        progress: None, true or false.
        **flags: true or false.

    Raises:
        InputError: names the argument, its type and what is allowed.

    """
    several = isinstance(callbacks, Sequence) and not isinstance(callbacks, str | bytes)
    _must(several, "callbacks", callbacks, "a list of functions")
    for callback in callbacks if isinstance(callbacks, Sequence) else ():
        _must(callable(callback), "callbacks", callback, "a list of functions")
    for name, folder in (("out", out), ("resume", resume)):
        _must(folder is None or isinstance(folder, str | os.PathLike), name, folder, "the name of a folder")
    _must(progress is None or isinstance(progress, bool), "progress", progress, "True, False or None")
    for name, flag in flags.items():
        _must(isinstance(flag, bool), name, flag, "True or False")


def _must(fine: bool, name: str, value: Any, allowed: str) -> None:
    if not fine:
        plain = isinstance(value, str | int | float)
        raise InputError(name, value if plain else f"a {type(value).__name__}", allowed)
