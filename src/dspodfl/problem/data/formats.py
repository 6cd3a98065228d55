"""Readers of the file formats that MNIST, Fashion-MNIST and CIFAR-10 come in; strict, and safe with any bytes.

Whatever is wrong with a file, the answer is a `DataError` that names it, what was found and what was expected.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import pickletools
import zlib
from math import prod
from pathlib import Path
from typing import IO, Self

import numpy as np

from dspodfl.errors import DataError, bounded

CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + prod(CIFAR_SHAPE)
CIFAR_CLASSES = 10
_GZIP_MAGIC = b"\x1f\x8b"
_MOST_BYTES = 2**30
CHUNK = 2**18
"""Bytes that are read at once."""


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzip (told by its first bytes, not by its name)."""
    raw = bounded.read_bytes(path, _MOST_BYTES)
    return _gunzip(raw, path) if raw.startswith(_GZIP_MAGIC) else raw


def _gunzip(raw: bytes, path: Path) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            while chunk := file.read(CHUNK):
                chunks.append(chunk)
                size += len(chunk)
                if size > _MOST_BYTES:
                    raise DataError(f"{path}: unpacks to more than {_MOST_BYTES} bytes; no dataset file does")
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file after {size} unpacked bytes: {error}") from error
    return b"".join(chunks)


class Stream:
    """The content of a file piece by piece, unpacked if it is gzip; what `read_bytes` refuses is refused."""

    def __init__(self, path: Path) -> None:
        self._path, self.size = path, 0
        self._stored = bounded.open_binary(path, _MOST_BYTES)
        self._unpacked: IO[bytes] | gzip.GzipFile = self._stored
        try:
            packed = self._stored.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            self._stored.seek(0)
            if packed:
                self._unpacked = gzip.GzipFile(fileobj=self._stored)
        except OSError as error:
            self.close()
            raise self._refused(error) from error

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes; fewer at the end. ``size`` counts all that were read."""
        try:
            piece = self._unpacked.read(count)
        except (EOFError, OSError, zlib.error) as error:
            raise self._refused(error) from error
        self.size += len(piece)
        if self.size > _MOST_BYTES:
            raise DataError(f"{self._path}: unpacks to more than {_MOST_BYTES} bytes; no dataset file does")
        return piece

    def end(self) -> int:
        """Read to the end, keep nothing, and return the number of bytes of the whole content."""
        while self.read(CHUNK):
            pass
        return self.size

    def length(self, expected: int) -> int | None:
        """The number of bytes of the content; None: it is packed, and ``expected`` is not too many to be true."""
        if self._unpacked is self._stored:
            return os.fstat(self._stored.fileno()).st_size
        return self.end() if expected > _MOST_BYTES else None

    def close(self) -> None:
        """Close the file."""
        self._stored.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refused(self, error: Exception) -> DataError:
        if self._unpacked is not self._stored:
            return DataError(f"{self._path}: damaged gzip file after {self.size} unpacked bytes: {error}")
        return DataError(f"{self._path}: cannot be read ({error})")


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of bytes, plain or gzip: 3 dimensions for images, 1 for labels.

    magic 00 00 08 D, then D sizes as big-endian 32-bit integers, then prod(sizes) bytes and nothing more

    Shapes: -> (size_1, …, size_D), uint8.
    """
    raw = read_bytes(path)
    sizes = idx_sizes(path, raw[: 4 + 4 * dimensions], dimensions)
    check_idx_length(path, len(raw), sizes)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(sizes).copy()


def idx_sizes(path: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    """The sizes that an idx file begins with; ``header`` is its first 4 + 4 · dimensions bytes."""
    expected = bytes([0, 0, 8, dimensions])
    if header[:4] != expected:
        raise DataError(
            f"{path}: begins with {header[:4].hex(' ') or 'nothing'}; expected {expected.hex(' ')}, "
            f"an idx file of bytes with {dimensions} dimension{'s' if dimensions > 1 else ''}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DataError(f"{path}: {len(header)} bytes; expected a header of {4 + 4 * dimensions}")
    return tuple(int(size) for size in np.frombuffer(header, dtype=">u4", count=dimensions, offset=4))


def check_idx_length(path: Path, length: int, sizes: tuple[int, ...]) -> None:
    """Refuse an idx file that has more or fewer bytes than its sizes say."""
    header = 4 + 4 * len(sizes)
    if length != header + prod(sizes):
        raise DataError(
            f"{path}: {length} bytes; expected {header + prod(sizes)}, a header of {header} "
            f"and {' × '.join(map(str, sizes))} values"
        )


def read_cifar_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A batch of CIFAR-10's binary version: records of one label byte and 3 × 32 × 32 pixel bytes.

    Shapes: -> x (samples, 3, 32, 32), uint8; y (samples,), int64.
    """
    raw = read_bytes(path)
    check_records(path, len(raw))
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE).copy(), cifar_labels(records[:, 0], path)


def check_records(path: Path, length: int) -> None:
    """Refuse a batch of the binary version that is no number of records."""
    if not length or length % CIFAR_RECORD:
        raise DataError(f"{path}: {length} bytes; expected a positive multiple of {CIFAR_RECORD}, the size of a record")


def read_cifar_python(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A batch of CIFAR-10's python version: a pickled dictionary with ``data`` and ``labels``.

    The pickle is read by an interpreter that can make bytes and lists of numbers and nothing else. Shapes: as
    `read_cifar_binary`.
    """
    raw = read_bytes(path)
    try:
        _check_opcodes(raw)
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # damaged pickles raise almost anything
        raise DataError(f"{path}: no readable pickle: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: the pickle is {_kind(content)}; expected a dictionary with data and labels")
    data, labels = (content.get(key.encode(), content.get(key)) for key in ("data", "labels"))
    pixels = data.values() if isinstance(data, _Array) else None
    if pixels is None or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != prod(CIFAR_SHAPE):
        found = _kind(data) if pixels is None else f"{pixels.dtype} of shape {pixels.shape}"
        raise DataError(f"{path}: data is {found}; expected uint8 of shape (samples, {prod(CIFAR_SHAPE)})")
    if not isinstance(labels, list) or any(type(label) is not int for label in labels):
        raise DataError(f"{path}: labels is {_kind(labels)}; expected a list of integers")
    if not labels or len(labels) != len(pixels):
        raise DataError(f"{path}: {len(pixels)} images and {len(labels)} labels; expected as many, and some")
    return pixels.reshape(-1, *CIFAR_SHAPE), cifar_labels(labels, path)


def _check_opcodes(raw: bytes) -> None:
    """Refuse a pickle that would make the interpreter allocate more than it has bytes, before it is interpreted."""
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and isinstance(argument, int) and argument > len(raw):
            raise DataError(f"refused: the pickle asks for a memo of {argument:,} places in {len(raw):,} bytes")


def cifar_labels(labels: np.ndarray | list[int], path: Path) -> np.ndarray:
    """Labels of a batch, checked. Shape: -> (samples,), int64."""
    lowest, highest = int(min(labels)), int(max(labels))
    if lowest < 0 or highest >= CIFAR_CLASSES:
        raise DataError(f"{path}: labels in [{lowest}, {highest}]; expected [0, {CIFAR_CLASSES - 1}]")
    return np.asarray(labels).astype(np.int64)


def _kind(value: object) -> str:
    if isinstance(value, _Array):
        return "an array of another type or size"
    return "missing" if value is None else f"of type {type(value).__name__}"


class _Type:
    """Stands for numpy.dtype in a pickle: remembers its name, ignores the rest."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name.decode("ascii") if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stands for numpy.ndarray in a pickle: remembers what it is given, which `values` checks."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def values(self) -> np.ndarray | None:
        """The array, or None unless it is an array of bytes, the only kind a batch holds."""
        match self.state:
            case (_, tuple(shape), _Type(name="u1" | "|u1"), bool() | int() as by_columns, bytes(raw)):
                if all(type(size) is int and size >= 0 for size in shape) and prod(shape) == len(raw):
                    flat = np.frombuffer(raw, dtype=np.uint8)
                    return np.array(flat.reshape(shape, order="F" if by_columns else "C"), order="C")
        return None


class _Latin1(bytes):
    """Stands for _codecs.encode, with which Python 3 writes bytes in old pickle protocols."""

    def __new__(cls, text: str, encoding: str = "latin1") -> bytes:  # type: ignore[misc]
        if encoding not in ("latin1", b"latin1"):
            raise DataError("refused: the pickle asks for a codec other than latin1")
        return text.encode("latin1")

    def __setstate__(self, state: object) -> None:
        pass


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Latin1,
}


class _Unpickler(pickle.Unpickler):
    """Knows the few names an array of bytes needs, and even those only as substitutes: no other code is reached.

    The substitutes are classes with a ``__setstate__``, so that a pickle cannot set attributes on them either.
    """

    def find_class(self, module: str, name: str) -> object:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(f"refused: the pickle asks for {module}.{name}, which no CIFAR-10 batch needs") from None
