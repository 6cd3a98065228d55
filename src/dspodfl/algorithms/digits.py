"""Whole numbers in few bytes: digits of any base, packed into bits."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

_WORD = 64


@cache
def _groups(base: int) -> tuple[int, int]:
    """How many digits are packed together, and into how many bits: those that waste the least."""
    most = max(count for count in range(1, _WORD + 1) if base**count <= 2**_WORD)
    bits = {count: (base**count - 1).bit_length() for count in range(1, most + 1)}
    count = min(bits, key=lambda count: (bits[count] / count, count))
    return count, bits[count]


def packed_bytes(base: int, count: int) -> int:
    """Return the number of bytes of some digits.

    Args:
        base: The base.
        count: The number of digits.

    Returns:
        At most a twentieth above count · log₂(base) / 8 for bases up to 2¹⁰, and some bytes.

    >>> packed_bytes(2, 9), packed_bytes(33, 1200)
    (2, 763)
    """
    each, bits = _groups(base)
    return math.ceil(-(-count // each) * bits / 8)


def pack(digits: np.ndarray, base: int) -> np.ndarray:
    """Pack digits into bytes.

    Args:
        digits: Integers in [0, base), (count,).
        base: The base, at most 2⁶³.

    Returns:
        `packed_bytes` bytes, uint8.

    >>> unpack(pack(np.array([2, 0, 1, 2]), 3), 3, 4).tolist()
    [2, 0, 1, 2]
    """
    each, bits = _groups(base)
    padded = np.zeros((-(-len(digits) // each), each), dtype=np.uint64)
    padded.reshape(-1)[: len(digits)] = digits
    weight = np.array([base**place for place in range(each)], dtype=np.uint64)
    words = (padded * weight).sum(axis=1, dtype=np.uint64).astype("<u8")
    found = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little", count=bits)
    return np.packbits(found.reshape(-1), bitorder="little")


def unpack(data: np.ndarray, base: int, count: int) -> np.ndarray:
    """Unpack digits from bytes.

    Args:
        data: The bytes, uint8.
        base: The base.
        count: The number of digits.

    Returns:
        The digits, (count,), int64.
    """
    each, bits = _groups(base)
    words = -(-count // each)
    found = np.unpackbits(data, bitorder="little", count=words * bits).reshape(words, bits)
    whole = np.zeros((words, _WORD), dtype=np.uint8)
    whole[:, :bits] = found
    values = np.packbits(whole, axis=1, bitorder="little").view("<u8").reshape(-1).astype(np.uint64)
    weight = np.array([base**place for place in range(each)], dtype=np.uint64)
    digits = values[:, None] // weight % np.uint64(base)
    return digits.reshape(-1)[:count].astype(np.int64)
