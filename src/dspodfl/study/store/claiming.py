"""Refuses a folder that cannot or must not be written, before anything is computed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dspodfl.errors import InputError
from dspodfl.study.store import lock
from dspodfl.study.store.files import is_temporary
from dspodfl.study.store.folder import Folder
from dspodfl.study.store.layout import NEW


def claim(folder: Path, *, overwrite: bool, names: Iterable[str] = (), kind: str = "run") -> None:
    """Refuse a folder that cannot or must not be written, before anything is computed.

    Args:
        folder: Where files are to be written.
        overwrite: Whether it may exist.
        names: The files that are to be written.
        kind: What the folder is written as.

    Raises:
        InputError: It exists, cannot be written, or a file of others has one of the names.
    """
    try:
        os.path.abspath(folder).encode()
    except UnicodeEncodeError:
        raise InputError("out", ascii(str(folder)), "a path in UTF-8") from None
    try:
        if folder.is_dir() and not overwrite and not abandoned(folder):
            raise InputError("out", str(folder), NEW)
        if os.path.lexists(folder) and not folder.is_dir():
            raise InputError("out", str(folder), "a folder; there is a file of that name")
        where = folder
        while not where.exists():
            where = where.parent
        with tempfile.TemporaryFile(dir=where):  # it has no name: nothing is left of it, whatever happens
            pass
        if folder.is_dir():
            Folder(folder, kind).guard(names)
    except OSError as error:
        raise InputError("out", str(folder), f"a folder that can be written ({error.strerror or error})") from None


def abandoned(folder: Path) -> bool:
    """Return whether a folder holds only what a process left that ended before it had written a result.

    Args:
        folder: The folder; it exists.

    Returns:
        Whether there are files, and all of them are temporary ones or locks of processes that have ended.
    """
    paths = list(folder.iterdir())
    return bool(paths) and all(lock.is_dead(path) or is_temporary(path.name) for path in paths)
