"""Archives of arrays (.npz): what they claim is compared with what they hold before an array is read."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from math import prod
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from dspodfl.errors.base import DataError
from dspodfl.errors.bounded.files import DATA, fits, name_of, open_binary

_MEMBERS = 10_000
"""The most files in an archive."""


class Header(NamedTuple):
    """What an array of an archive is, before it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int


_DAMAGED = (OSError, ValueError, EOFError, KeyError, TypeError, OverflowError, RuntimeError, NotImplementedError)
_BAD = (*_DAMAGED, zipfile.BadZipFile, zlib.error, SyntaxError, RecursionError, MemoryError)


class Npz(Mapping[str, np.ndarray]):
    """An open .npz archive: arrays by name, each read when it is accessed, and only if it is what its header says.

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
    """Open an archive of plain arrays; nothing in it is unpacked or run until an array is accessed.

    Args:
        path: the file.
        limit: the largest size allowed, in bytes, as it is stored.

    Returns:
        A mapping from names to arrays, to be used in a ``with``.

    Raises:
        DataError: it is no such archive, or one of its arrays is not what its header says.

    """
    return Npz(path, limit)


def unpacked_size(path: str | os.PathLike[str]) -> int:
    """Return the size of a zip archive once it is unpacked, according to its directory.

    Args:
        path: a regular file.

    Returns:
        The size in bytes; 0 where it is no archive.
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
