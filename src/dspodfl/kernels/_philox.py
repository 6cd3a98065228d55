# mypy: ignore-errors
"""Philox4x32-10 compiled for the CPU. Importing this imports Numba."""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


@njit(cache=True, nogil=True, boundscheck=False)
def fill(out, seed, i, j, k, upper, first, words):
    """Words at addresses. Shapes: out (rows, columns, slots), addresses (rows, columns), words (4, columns) scratch."""
    rows, columns, slots = out.shape
    for r in range(rows):
        for group in range((slots + 3) // 4):
            c3_start = uint32(upper + first + group)
            for c in range(columns):
                key = uint64(seed[r, c])
                k0, k1 = uint32(key), uint32(key >> uint64(32))
                c0, c1, c2, c3 = uint32(i[r, c]), uint32(j[r, c]), uint32(k[r, c]), c3_start
                for _ in range(10):
                    p0, p1 = uint64(c0) * _M0, uint64(c2) * _M1
                    c0, c1, c2, c3 = (
                        uint32(p1 >> uint64(32)) ^ c1 ^ k0,
                        uint32(p1),
                        uint32(p0 >> uint64(32)) ^ c3 ^ k1,
                        uint32(p0),
                    )
                    k0 = uint32(k0 + _W0)
                    k1 = uint32(k1 + _W1)
                words[0, c], words[1, c], words[2, c], words[3, c] = c0, c1, c2, c3
            for q in range(min(4, slots - 4 * group)):
                for c in range(columns):
                    out[r, c, 4 * group + q] = words[q, c]
