"""Regular files, checked before they are read: size, kind of file, memory, UTF-8."""

from __future__ import annotations

import errno
import os
import stat
from typing import IO

from dspodfl.errors import memory
from dspodfl.errors.base import DataError
from dspodfl.errors.memory import gib

TEXT = 256 * 2**20
"""The largest text file, in bytes."""
DATA = 64 * 2**30
"""The largest data file, in bytes."""
SHARE = 0.8
"""The fraction of the available memory that the content of a file may take."""
_CHUNK = 2**20


class MissingFileError(DataError):
    """There is no file of that name."""


def check(path: str | os.PathLike[str], limit: int = DATA) -> int:
    """Return the size of a regular file, without opening it.

    Args:
        path: the file; a symbolic link is followed.
        limit: the largest size allowed, in bytes.

    Returns:
        The size in bytes.

    Raises:
        MissingFileError: there is none.
        DataError: it is a directory, a pipe, a socket or a device; it is larger; or its name cannot be one.
    """
    return _checked(path, _stat(path), limit)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a folder of that name.

    Args:
        path: the name.

    Returns:
        False also where no folder could have the name.
    """
    try:
        return stat.S_ISDIR(_stat(path).st_mode)
    except DataError:
        return False


def _stat(path: str | os.PathLike[str]) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise _refused(path, error) from None
    except ValueError:  # a NUL byte in the name
        raise MissingFileError(f"{name_of(path)}: no such file; it cannot be the name of one") from None


def _refused(path: str | os.PathLike[str], error: OSError) -> DataError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MissingFileError(f"{name_of(path)}: no such file")
    return DataError(f"{name_of(path)}: cannot be read ({error.strerror or error})")


def name_of(path: str | os.PathLike[str]) -> str:
    r"""Return a path as a message can show it.

    Args:
        path: any path.

    Returns:
        A printable text of at most 300 characters.

    >>> name_of("a" + chr(10))
    'a\\n'
    """
    text = os.fspath(path)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 300 else text[:299] + "…"


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _checked(path: str | os.PathLike[str], found: os.stat_result, limit: int) -> int:
    if not stat.S_ISREG(found.st_mode):
        kind = next((words for test, words in _KINDS if test(found.st_mode)), "no regular file")
        raise DataError(f"{name_of(path)}: cannot be read: it is {kind}, and must be a regular file")
    if found.st_size > limit:
        raise DataError(f"{name_of(path)}: has {found.st_size:,} bytes; must have at most {limit:,}")
    return found.st_size


def open_binary(path: str | os.PathLike[str], limit: int = DATA) -> IO[bytes]:
    """Open a regular file for reading, checked before and after it is opened; no pipe makes this wait.

    Args:
        path: the file.
        limit: the largest size allowed, in bytes.

    Returns:
        The open file.

    Raises:
        DataError: as for `check`.
    """
    check(path, limit)
    try:
        opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise _refused(path, error) from None
    try:
        _checked(path, os.fstat(opened.fileno()), limit)  # it may have been replaced in between
    except DataError:
        opened.close()
        raise
    return opened


def read_bytes(path: str | os.PathLike[str], limit: int = DATA) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes that fits into memory.

    Args:
        path: the file.
        limit: the largest size allowed, in bytes.

    Returns:
        The content.

    Raises:
        DataError: as for `check`; it grows while it is read; it does not fit into memory.
    """
    size = check(path, limit)
    fits(path, size)
    with open_binary(path, limit) as opened:
        try:
            content = opened.read(size + 1)
            while len(content) <= limit and (more := opened.read(min(_CHUNK, limit + 1 - len(content)))):
                content += more
        except OSError as error:
            raise _refused(path, error) from None
    if len(content) > limit:  # files of /proc and /sys have size 0
        raise DataError(f"{name_of(path)}: has more than {limit:,} bytes; must have at most that")
    return content


def fits(path: str | os.PathLike[str], size: int, what: str = "its content") -> None:
    """Refuse what does not fit into `SHARE` of the available memory.

    Args:
        path: the file, for the message.
        size: bytes that its content takes.
        what: what takes them, for the message.

    Raises:
        DataError: it does not fit; the message has both numbers.

    """
    free = memory.available()
    if size > SHARE * free:
        raise DataError(f"{name_of(path)}: {what} takes {gib(size)}, and {gib(free)} of memory are free")


def read_text(path: str | os.PathLike[str], limit: int = TEXT) -> str:
    """Return the text of a UTF-8 file, without a byte-order mark at its beginning.

    Args:
        path: the file.
        limit: the largest size allowed, in bytes.

    Returns:
        The text.

    Raises:
        DataError: as for `read_bytes`, or it is not UTF-8.
    """
    content = read_bytes(path, limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name_of(path)}: cannot be read as utf-8 text (byte {error.start}: {error.reason})") from None
