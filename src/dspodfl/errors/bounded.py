"""Files of strangers, read within bounds: regular files only, at most so large, at most so deep, in UTF-8.

A file that comes with a study (a configuration, a graph, rates, data, weights) may be anything: a pipe that never ends,
a device, a directory, a gigabyte of brackets, an archive that claims to unpack to more than the machine holds. Each
reader here checks before it allocates, and whatever is wrong is a `DataError` that names the file, what was found and
what is allowed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from math import prod
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np

from dspodfl.errors import DataError, memory
from dspodfl.errors.memory import gib

TOML = 8 * 2**20
JSON = 256 * 2**20
TEXT = 256 * 2**20
DATA = 64 * 2**30
"""Largest files of each kind, in bytes."""
DEPTH = 64
"""Tables and lists inside one another."""
SHARE = 0.8
"""Of the available memory, what the content of a file may take."""
_MEMBERS = 10_000
_CHUNK = 2**20
_BITS = 1024


class MissingFileError(DataError):
    """There is no file of that name."""


def check(path: str | os.PathLike[str], limit: int = DATA) -> int:
    """Return the size of a regular file, without opening it.

    Args:
        path: the file; a symbolic link is followed.
        limit: the largest size allowed, in bytes.

    Raises:
        MissingFileError: there is none.
        DataError: it is a directory, a pipe, a socket or a device; it is larger; or its name cannot be one.

    """
    return _checked(path, _stat(path), limit)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a folder of that name; False also where no folder could have it."""
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
    """Return a path as a message can show it: printable, and not too long."""
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
    if len(content) > limit:  # files of /proc and /sys say that they are empty
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

    Raises:
        DataError: as for `read_bytes`, or it is not UTF-8.

    """
    content = read_bytes(path, limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name_of(path)}: cannot be read as utf-8 text (byte {error.start}: {error.reason})") from None


# --- TOML and JSON ----------------------------------------------------------------------------------------------

_STRINGS = re.compile(r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*+"|\'[^\'\n]*+\'|#[^\n]*+', re.DOTALL)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEPTH},}}")
_BRACKETS = re.compile(r"[\[\]{}]")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text that nests at most `DEPTH` deep.

    Args:
        text: the text, of any length; the depth is counted before it is parsed.

    Raises:
        ValueError: it is not TOML, or nests deeper.

    >>> parse_toml("a = [[1]]")
    {'a': [[1]]}
    """
    bare = _STRINGS.sub(lambda found: "" if found[0].startswith("#") else "s", text)
    depth = 0
    for bracket in _BRACKETS.finditer(bare):
        depth = max(0, depth + (1 if bracket[0] in "[{" else -1))
        if depth > DEPTH:
            raise ValueError(f"lists and tables nest more than {DEPTH} deep")
    if _LONG_KEY.search(bare):
        raise ValueError(f"a dotted key has more than {DEPTH} parts")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"lists and tables nest more than {DEPTH} deep") from None
    if _too_deep(found):
        raise ValueError(f"lists and tables nest more than {DEPTH} deep")
    if _too_long(found):
        raise ValueError(f"an integer has more than {_BITS:,} bits")
    return found


def read_toml(path: str | os.PathLike[str], limit: int = TOML) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Args:
        path: the file.
        limit: the largest size allowed, in bytes.

    Raises:
        DataError: as for `read_text`, or it is not TOML, or nests more than `DEPTH` deep.

    """
    text = read_text(path, limit)
    try:
        return parse_toml(text)
    except ValueError as error:  # TOMLDecodeError, or an integer too long to be read
        raise DataError(f"{name_of(path)}: not valid TOML: {error}") from None


class NestedError(ValueError):
    """Lists and objects nest more than `DEPTH` deep."""


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text that nests at most `DEPTH` deep.

    Args:
        text: the text, or its bytes.

    Raises:
        ValueError: it is not JSON, or nests deeper (`NestedError`).

    >>> parse_json(b"[[1]]")
    [[1]]
    """
    try:
        found = json.loads(text)
    except RecursionError:
        found, too_deep = None, True
    else:
        too_deep = isinstance(found, dict | list) and _too_deep(found)
    if too_deep:
        raise NestedError(f"lists and objects nest more than {DEPTH} deep")
    return found


def read_json(path: str | os.PathLike[str], limit: int = JSON) -> Any:
    """Return the content of a JSON file.

    Args:
        path: the file.
        limit: the largest size allowed, in bytes.

    Raises:
        DataError: as for `read_text`, or it is not JSON, or nests more than `DEPTH` deep.

    """
    text = read_text(path, limit)
    try:
        return parse_json(text)
    except NestedError as error:
        raise DataError(f"{name_of(path)}: not valid here: {error}") from None
    except ValueError as error:
        raise DataError(f"{name_of(path)}: not valid JSON: {error}") from None


def _too_deep(value: Any) -> bool:
    """Whether lists and tables nest more than `DEPTH` deep; level by level, since recursion is what must not be."""
    level = [value]
    for _ in range(DEPTH + 1):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _too_long(value: Any) -> bool:
    """Whether there is an integer of more than `_BITS` bits: Python writes none of more than 4,300 digits."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, int) and item.bit_length() > _BITS:
            return True
        left += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return False


# --- archives of arrays -----------------------------------------------------------------------------------------


class Header(NamedTuple):
    """What an array of an archive is, before it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int


_DAMAGED = (OSError, ValueError, EOFError, KeyError, TypeError, OverflowError, RuntimeError, NotImplementedError)
_BAD = (*_DAMAGED, zipfile.BadZipFile, zlib.error, SyntaxError, RecursionError, MemoryError)


class Npz(Mapping[str, np.ndarray]):
    """An open .npz archive: arrays by name, each read when it is asked for, and only if it is what it says.

    ``headers`` has shape, type and size of each array from the archive's directory and the array's own header, which
    must agree; no sample is unpacked for it.
    """

    def __init__(self, path: str | os.PathLike[str], limit: int = DATA) -> None:
        self.path = path
        self._file = open_binary(path, limit)
        try:
            self._zip = zipfile.ZipFile(self._file)
            self.headers = dict(self._headers())
        except DataError:
            self._file.close()
            raise
        except zipfile.BadZipFile as error:
            self._file.close()
            raise DataError(f"{name_of(path)}: cannot be read: not an .npz archive ({_why(error)})") from None
        except _BAD as error:
            self._file.close()
            raise DataError(f"{name_of(path)}: cannot be read as .npz with plain arrays: {_why(error)}") from None

    def _headers(self) -> Iterator[tuple[str, Header]]:
        members = self._zip.infolist()
        if len(members) > _MEMBERS:
            raise DataError(f"{name_of(self.path)}: has {len(members):,} members; must have at most {_MEMBERS:,}")
        for member in members:
            if member.filename.endswith(".npy"):
                yield member.filename.removesuffix(".npy"), self._header(member)

    def _header(self, member: zipfile.ZipInfo) -> Header:
        with self._zip.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read is None:
                raise ValueError(f"{member.filename} is of version {version}, which plain arrays do not need")
            shape, _, dtype = read(stream)
            begins = stream.tell()
        if any(not 0 <= side < 2**63 for side in shape):
            raise ValueError(f"{member.filename} claims the shape {shape}")
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects")
        size = prod(shape) * dtype.itemsize
        if begins + size != member.file_size:
            held = member.file_size - begins
            raise ValueError(f"{member.filename} claims {size:,} bytes of shape {shape}, and holds {held:,}")
        return Header(shape, dtype, size)

    def __getitem__(self, name: str) -> np.ndarray:
        """Read an array; it must fit into memory."""
        if name not in self.headers:
            raise KeyError(name)
        fits(self.path, self.headers[name].size, f"array {name}")
        try:
            with self._zip.open(f"{name}.npy") as stream:
                return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
        except _BAD as error:
            raise DataError(f"{name_of(self.path)}: array {name} cannot be read: {_why(error)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._zip.close()
        self._file.close()


def open_npz(path: str | os.PathLike[str], limit: int = DATA) -> Npz:
    """Open an archive of plain arrays; nothing in it is unpacked or run until an array is asked for.

    Args:
        path: the file.
        limit: the largest size allowed, in bytes, as it lies on the disk.

    Returns:
        A mapping from names to arrays, to be used in a ``with``.

    Raises:
        DataError: it is no such archive, or one of its arrays is not what its header says.

    """
    return Npz(path, limit)


def unpacked_size(path: str | os.PathLike[str]) -> int:
    """Return what the members of a zip archive unpack to, in bytes, by its directory; 0 where it is no archive.

    Args:
        path: a regular file.

    """
    with open_binary(path) as opened:
        try:
            with zipfile.ZipFile(opened) as archive:
                return sum(member.file_size for member in archive.infolist())
        except _BAD:
            return 0


def _why(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"
