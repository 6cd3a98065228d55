"""Files of MNIST, Fashion-MNIST and CIFAR-10 whose samples are read row by row, in memory for these rows alone.

What is refused is what `dspodfl.problem.data.formats` refuses, in the same words. A packed file is read to its end
whenever rows of it are taken, so that damage anywhere in it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import numpy as np

from dspodfl.errors import DataError, bounded
from dspodfl.problem.data.formats import (
    CHUNK,
    CIFAR_RECORD,
    CIFAR_SHAPE,
    Stream,
    check_idx_length,
    check_records,
    cifar_labels,
    idx_sizes,
    read_cifar_python,
)
from dspodfl.problem.data.stored_rows import StoredRows

_BYTES = np.dtype(np.uint8)
_NO_ROWS = np.zeros(0, dtype=np.int64)
BatchRows = Callable[[np.ndarray], np.ndarray]
"""Rows of a batch, ascending -> their samples."""


def idx_rows(path: Path, dimensions: int) -> StoredRows:
    """Return the values of an idx file, which stay there until rows of them are taken.

    Args:
        path: The file, plain or gzip.
        dimensions: The number of axes.

    Returns:
        The rows, (size_1, …, size_D), uint8.

    Raises:
        DataError: The beginning of the file, or the size of a plain one, is wrong. Other damage is found when rows are
            taken.
    """
    with Stream(path) as stream:
        sizes = idx_sizes(path, stream.read(4 + 4 * dimensions), dimensions)
        length = stream.length(4 + 4 * dimensions + prod(sizes))
        if length is not None:
            check_idx_length(path, length, sizes)

    def read(rows: np.ndarray) -> np.ndarray:
        bounded.fits(path, len(rows) * prod(sizes[1:]), "the samples of the shard")
        with Stream(path) as stream:
            if idx_sizes(path, stream.read(4 + 4 * dimensions), dimensions) != sizes:
                raise _changed(path)
            found = _taken(stream, rows, sizes[0], prod(sizes[1:]))
            check_idx_length(path, stream.end(), sizes)
        return found.reshape(len(rows), *sizes[1:])

    return StoredRows(sizes, _BYTES, read)


def check_idx(rows: StoredRows) -> None:
    """Read an idx file to its end, and keep nothing.

    Args:
        rows: What `idx_rows` returned.

    Raises:
        DataError: The file is damaged.
    """
    rows.read(_NO_ROWS)


def cifar_rows(
    files: Sequence[Path], batch: Callable[[Path], tuple[np.ndarray, BatchRows]]
) -> tuple[StoredRows, np.ndarray]:
    """Return the samples of batches, which stay there until rows of them are taken, and all labels.

    Args:
        files: The batches.
        batch: `binary_batch` or `python_batch`.

    Returns:
        The samples, (samples, 3, 32, 32), uint8, and their labels, (samples,), int64.

    Raises:
        DataError: A file is damaged.
    """
    batches = [batch(file) for file in files]
    ends = np.cumsum([len(labels) for labels, _ in batches])

    def read(rows: np.ndarray) -> np.ndarray:
        bounded.fits(files[0].parent, len(rows) * prod(CIFAR_SHAPE), "the samples of the shard")
        out = np.empty((len(rows), *CIFAR_SHAPE), dtype=np.uint8)
        for (labels, rows_of), end in zip(batches, ends.tolist(), strict=True):
            a, b = np.searchsorted(rows, [end - len(labels), end])
            if a < b:
                out[a:b] = rows_of(rows[a:b] - (end - len(labels)))
        return out

    return StoredRows((int(ends[-1]), *CIFAR_SHAPE), _BYTES, read), np.concatenate([labels for labels, _ in batches])


def binary_batch(path: Path) -> tuple[np.ndarray, BatchRows]:
    """Return the labels of a batch of the binary version, (samples,), int64, and what reads its samples."""
    step, found = max(1, CHUNK // CIFAR_RECORD) * CIFAR_RECORD, []
    with Stream(path) as stream:
        while piece := stream.read(step):
            found.append(np.frombuffer(piece, dtype=np.uint8)[::CIFAR_RECORD].copy())
        check_records(path, stream.size)
    labels = cifar_labels(np.concatenate(found), path)

    def read(rows: np.ndarray) -> np.ndarray:
        with Stream(path) as stream:
            records = _taken(stream, rows, len(labels), CIFAR_RECORD)
            if stream.end() != len(labels) * CIFAR_RECORD:
                raise _changed(path)
        return records[:, 1:].reshape(len(rows), *CIFAR_SHAPE)

    return labels, read


def python_batch(path: Path) -> tuple[np.ndarray, BatchRows]:
    """Return the labels of a batch of the python version, (samples,), int64, and what reads its samples."""
    labels = read_cifar_python(path)[1]

    def read(rows: np.ndarray) -> np.ndarray:
        x, y = read_cifar_python(path)
        if len(y) != len(labels):
            raise _changed(path)
        return x[rows]

    return labels, read


def _taken(stream: Stream, rows: np.ndarray, count: int, width: int) -> np.ndarray:
    """Rows of ``width`` bytes out of the next ``count`` of a stream. Shapes: (rows,), ascending -> (rows, width)."""
    out = np.empty((len(rows), width), dtype=np.uint8)
    if not out.size:
        return out
    step = max(1, CHUNK // width)
    for first in range(0, int(rows[-1]) + 1, step):
        piece = stream.read(min(step, count - first) * width)
        held = len(piece) // width  # fewer than wanted: the file is too short, which the caller reports
        some = np.frombuffer(piece, dtype=np.uint8, count=held * width).reshape(held, width)
        a, b = np.searchsorted(rows, [first, first + held])
        out[a:b] = some[rows[a:b] - first]
        if held < min(step, count - first):
            break
    return out


def _changed(path: Path) -> DataError:
    return DataError(f"{path}: was changed while it was in use")
