"""One run at a time writes to a folder: a lock that ends with the process that holds it, however it ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # there is no flock on Windows
    _LOCKS = False
else:
    _LOCKS = True

LOCK = ".dspodfl-lock"
OLD_LOCK = ".lock"
"""Of version 0.1: a process of it that writes to a folder is respected."""
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
"""What file systems without locks say; nothing is locked there."""


class Held(Exception):  # noqa: N818
    """Another process holds the lock; ``args[0]`` is its number, where it is known."""


class Lock:
    """The lock of a folder that exists. The kernel lets go of it when the process dies; no file needs removing."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._handle: int | None = None

    def take(self) -> None:
        """Take it, or raise `Held`."""
        old = _holder(self._path.with_name(OLD_LOCK))
        if old is not None:
            raise Held(old)
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                _flock(handle)
            except BlockingIOError:
                holder = os.read(handle, 20).decode(errors="replace").strip()
                os.close(handle)
                raise Held(holder) from None
            except BaseException:
                os.close(handle)
                raise
            # Whoever held it before may have removed the file between our opening and our locking it.
            if _is(self._path, handle):
                break
            os.close(handle)
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle

    def moved(self, folder: Path) -> None:
        """The folder has another name now."""
        self._path = folder / LOCK

    def release(self) -> None:
        """Let go of it, and leave no file."""
        if self._handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None


def holder(folder: Path) -> str | None:
    """The number of the process that writes to a folder now; none where no process does."""
    found = _holder(folder / LOCK)
    return found if found is not None else _holder(folder / OLD_LOCK)


def is_dead(path: Path) -> bool:
    """Whether a file is a lock that a process has left which has ended; one of 0.1 has nothing but its number."""
    if path.name not in (LOCK, OLD_LOCK) or path.is_symlink() or not path.is_file() or _holder(path) is not None:
        return False
    return path.name == LOCK or path.read_bytes()[:30].isdigit()


def _holder(path: Path) -> str | None:
    if path.is_symlink() or not path.is_file():
        return None
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        _flock(handle, share=True)
    except BlockingIOError:
        return os.read(handle, 20).decode(errors="replace").strip()
    finally:
        os.close(handle)
    return None


def _is(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _flock(handle: int, *, share: bool = False) -> None:
    if not _LOCKS:
        return
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if share else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
