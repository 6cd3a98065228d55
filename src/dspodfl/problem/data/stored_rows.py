"""Samples that stay in their files: a process that holds some clients alone reads the rows of these clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

_ON_DEMAND: ContextVar[bool] = ContextVar("samples_on_demand", default=False)


@contextmanager
def samples_on_demand() -> Iterator[None]:
    """Leave the samples of datasets that are loaded in the meantime in their files.

    fmnist, mnist, cifar10 and folders of .npz files then have `StoredRows` in place of arrays of samples; labels are
    read as always.

    Returns:
        A context manager: what is loaded inside it is loaded so.

    >>> with samples_on_demand():
    ...     on_demand()
    True
    """
    before = _ON_DEMAND.set(True)
    try:
        yield
    finally:
        _ON_DEMAND.reset(before)


def on_demand() -> bool:
    """Whether samples stay in their files until they are asked for."""
    return _ON_DEMAND.get()


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Samples in files, in place of an array of them: rows are read when they are taken.

    Rows are taken by their numbers, ``stored[rows]``. Whatever else needs an array reads all samples.

    Args:
        shape: (samples, *shape of a sample).
        dtype: Of the samples.
        read: Rows, (rows,) int64, ascending and each once -> these samples, (rows, …).

    >>> stored = StoredRows((5, 1), np.dtype(np.uint8), lambda rows: rows.astype(np.uint8) * 10)
    >>> stored[np.array([4, 1, 4])].tolist()
    [[40], [10], [40]]
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[np.ndarray], np.ndarray]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that all samples take."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Read rows by their numbers; anything else that an array can be indexed by reads all of them."""
        if not isinstance(index, np.ndarray) or index.ndim != 1 or index.dtype.kind not in "iu":
            return np.asarray(np.asarray(self)[index])
        if index.size and not 0 <= int(index.min()) <= int(index.max()) < len(self):
            raise IndexError(f"rows {index.min()} … {index.max()} of {len(self)}")
        rows, places = np.unique(index.astype(np.int64), return_inverse=True)
        found = self.read(rows).reshape(len(rows), *self.shape[1:])
        return found if np.array_equal(places, np.arange(len(rows))) else found[places]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read all samples."""
        return np.asarray(self[np.arange(len(self))], dtype=dtype)

    def reshape(self, *shape: int) -> StoredRows:
        """Return the same samples in another shape, (samples, *shape)."""
        if shape[:1] != self.shape[:1] or prod(shape) != self.size:
            raise ValueError(f"samples of shape {self.shape} have no shape {shape}")
        return replace(self, shape=shape)
