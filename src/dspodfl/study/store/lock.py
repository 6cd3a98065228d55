"""One run at a time writes to a folder: a lock that ends with the process that holds it, however that ends.

The lock is one of `filelock`, on ``.dspodfl-lock`` in the folder: the operating system releases it when the process
dies, and a file that is left means nothing. The file holds the number of the process, for messages.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".dspodfl-lock"
OLD_LOCK = ".lock"
"""Of version 0.1: a folder that a process of it writes to is refused as well."""
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
"""The errors of file systems without locks; nothing is locked there."""
_PROBE_SECONDS, _PROBE_EVERY = 0.1, 0.01
"""How long a lock must be held to count as held: a process that asks who holds it holds it for an instant."""
_WINDOWS = os.name == "nt"


class LockHeldError(Exception):
    """Another process holds the lock.

    Args:
        process: The number of the process, empty where it is not known.
    """

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self.process = process


class Lock:
    """The lock of a folder.

    Args:
        folder: The folder; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._held: FileLock | None = None

    def take(self) -> None:
        """Take the lock.

        Raises:
            LockHeldError: Another process has it, or another `Lock` of this one.
            OSError: The folder cannot be written.
        """
        old = _holder(self._path.with_name(OLD_LOCK))
        if old is not None:
            raise LockHeldError(old)
        held = _file_lock(self._path)
        if not _acquired(held):
            raise LockHeldError(_content(self._path))
        self._held = held
        with suppress(PermissionError):  # on Windows nothing can be written to a file that is locked
            self._path.write_text(str(os.getpid()))

    @contextmanager
    def moving(self, folder: Path) -> Iterator[None]:
        """Keep the lock while the folder gets another name within a ``with`` statement.

        On Windows a folder with an open file cannot be renamed: there the lock is released, and taken again.

        Args:
            folder: The new name.

        Yields:
            Nothing.

        Raises:
            LockHeldError: On Windows: another process has taken it in between.
        """
        if _WINDOWS:
            self.release()
        yield
        self._path = folder / LOCK
        if _WINDOWS:
            self.take()

    def release(self) -> None:
        """Release the lock, and leave no file."""
        if self._held is not None:
            if not _WINDOWS:  # there the file is deleted once it is closed
                self._path.unlink(missing_ok=True)
            self._held.release(force=True)
            self._held = None


def holder(folder: Path) -> str | None:
    """Return the process that writes to a folder now.

    Args:
        folder: The folder.

    Returns:
        The number of the process (empty where it is not known); None where no process writes to the folder.
    """
    found = _holder(folder / LOCK)
    return found if found is not None else _holder(folder / OLD_LOCK)


def is_dead(path: Path) -> bool:
    """Return whether a file is a lock that a process has left which has ended.

    Args:
        path: The file.

    Returns:
        Whether it is one; a lock of version 0.1 holds nothing but the number of a process.
    """
    if path.name not in (LOCK, OLD_LOCK) or path.is_symlink() or not path.is_file():
        return False
    return (path.name == LOCK or _content(path).isdigit()) and _holder(path) is None


def _file_lock(path: Path) -> FileLock:
    return FileLock(path, thread_local=False, fallback_to_soft=False)


def _acquired(lock: FileLock) -> bool:
    """Acquire a lock, or find that another process holds it. Where there are no locks, nothing is locked."""
    try:
        lock.acquire(timeout=_PROBE_SECONDS, poll_interval=_PROBE_EVERY)
    except Timeout:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _holder(path: Path) -> str | None:
    """The process that holds a lock; None where no process does."""
    found = _content(path)
    if path.is_symlink() or not path.is_file() or (path.name == OLD_LOCK and not found.isdigit()):
        return None
    lock = _file_lock(path)
    try:
        if not _acquired(lock):
            return found
        if path.name == LOCK and not _content(path):  # it was deleted meanwhile, and made again here
            path.unlink(missing_ok=True)
    except OSError:  # this user may not open or delete it
        pass
    finally:
        lock.release(force=True)
    return None


def _content(path: Path) -> str:
    try:
        return path.read_bytes()[:20].decode(errors="replace").strip()
    except OSError:
        return ""
