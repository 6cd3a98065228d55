"""A folder belongs to one process at a time: two that write the checkpoints of one node would spoil them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspodfl.errors import DataError, InputError

try:
    import fcntl
except ImportError:  # a system without it does not guard its folders
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The file that a process holds a lock of; the lock ends with the process, whatever ends it."""
_AGAIN_SECONDS = 0.05


@contextmanager
def locked(folder: Path, what: str, seconds: float = 0.0) -> Iterator[None]:
    """Hold a folder.

    Args:
        folder: The folder, which exists.
        what: What a message calls the option that names it.
        seconds: How long to wait for another process: one that was told to end may need a moment.

    Yields:
        Nothing; the folder is held until the block ends.

    Raises:
        InputError: Another process holds it.
        DataError: The file of the lock cannot be written.
    """
    if fcntl is None:
        yield
        return
    try:
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror})") from None
    try:
        end = time.monotonic() + seconds
        while not _taken(file):
            if time.monotonic() >= end:
                raise InputError(what, str(folder), "a folder that no other process uses now")
            time.sleep(_AGAIN_SECONDS)
        yield
    finally:
        os.close(file)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
