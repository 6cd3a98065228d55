"""What a payload consists of: agreed in HELLO by its hash, checked before anything is allocated."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dspodfl.errors import InputError

Bytes = npt.NDArray[np.uint8]
"""A payload: one flat array of bytes."""
BFLOAT16 = "bfloat16"
"""The one dtype that NumPy does not have: the upper half of a float32."""
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("float16", "float32", "float64", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
} | {BFLOAT16: np.dtype("<u2")}
"""Names of dtypes → how their values are stored on the wire, little-endian."""
_FLOATS = {"float16", "float32", "float64", BFLOAT16}
_BLOCK = 1 << 16
"""Values that are checked in one batch."""


@dataclass(frozen=True)
class Part:
    """One array of a message.

    Attributes:
        dtype: The name of its dtype, a key of `DTYPES`.
        shape: Its shape.

    >>> Part("float32", (10, 2)).size
    80
    """

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError("dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        if any(length < 0 for length in self.shape):
            raise InputError("shape", self.shape, "lengths of at least 0")

    @property
    def count(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Schema:
    """What the payload of each phase consists of: arrays one after the other, without gaps, little-endian.

    Attributes:
        phases: The arrays of each phase.

    >>> schema = Schema.of([[("float32", (7850,))]])
    >>> schema.size(0), len(schema.digest)
    (31400, 32)
    """

    phases: tuple[tuple[Part, ...], ...]

    @classmethod
    def of(cls, phases: Iterable[Iterable[tuple[str, Sequence[int]]]]) -> Schema:
        """Make a schema.

        Args:
            phases: Of each phase: of each array the name of its dtype and its shape.

        Returns:
            The schema.
        """
        return cls(tuple(tuple(Part(dtype, tuple(map(int, shape))) for dtype, shape in parts) for parts in phases))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of a payload, by phase."""
        return tuple(sum(part.size for part in parts) for parts in self.phases)

    @cached_property
    def largest(self) -> int:
        """The bytes of the largest payload."""
        return max(self.sizes, default=0)

    def size(self, phase: int) -> int:
        """Return the bytes of a payload.

        Args:
            phase: The phase; IndexError if there is none of this number.

        Returns:
            The number of bytes.
        """
        return self.sizes[phase]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of dtypes and shapes, which HELLO carries."""
        text = json.dumps([[(part.dtype, part.shape) for part in parts] for parts in self.phases])
        return hashlib.sha256(text.encode()).digest()

    def finite(self, phase: int, payload: Bytes) -> bool:
        """Return whether all floats of a payload are finite.

        Args:
            phase: Its phase.
            payload: The payload, of the size of the phase.

        Returns:
            False where there is a NaN or an infinity.

        >>> Schema.of([[("float32", (2,))]]).finite(0, np.array([1, np.inf], np.float32).view(np.uint8))
        False
        """
        return all(_finite(payload, *floats) for floats in self._floats[phase])

    @cached_property
    def _floats(self) -> list[list[tuple[str, int, int]]]:
        """Of each phase the arrays of floats: dtype, the byte at which it begins, values."""
        found = []
        for parts in self.phases:
            starts = np.cumsum([0, *(part.size for part in parts)]).tolist()
            found.append(
                [(part.dtype, at, part.count) for part, at in zip(parts, starts, strict=False) if part.dtype in _FLOATS]
            )
        return found


def _finite(payload: Bytes, dtype: str, start: int, count: int) -> bool:
    """Check block by block, so that the intermediate values stay in the cache."""
    values = np.frombuffer(payload, DTYPES[dtype], count, start)
    for first in range(0, count, _BLOCK):
        block: npt.NDArray[Any] = values[first : first + _BLOCK]
        fine = (block & 0x7F80) != 0x7F80 if dtype == BFLOAT16 else np.isfinite(block)
        if not np.logical_and.reduce(fine):
            return False
    return True
