# mypy: ignore-errors
"""Philox4x32-10 compiled for the CPU. Importing this imports Numba."""

from __future__ import annotations

from functools import partial

import numpy as np
from numba import uint32, uint64

from dspodfl._kernels.cpu._cache import cached

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


LANES = 64
"""Addresses at a time; a register holds some of them."""


@partial(cached, nogil=True, boundscheck=False)
def _rounds(s):
    """Ten rounds of all lanes. In s are the four words of the counter, then the two of the key.

    Distances between them are constants, so that the compiler sees that lanes do not touch each other.
    """
    w0, w1 = uint32(0), uint32(0)
    for _ in range(10):
        for c in range(LANES):
            p0, p1 = uint64(s[c]) * _M0, uint64(s[128 + c]) * _M1
            c0 = uint32(p1 >> uint64(32)) ^ s[64 + c] ^ uint32(s[256 + c] + w0)
            c2 = uint32(p0 >> uint64(32)) ^ s[192 + c] ^ uint32(s[320 + c] + w1)
            s[c], s[64 + c], s[128 + c], s[192 + c] = c0, uint32(p1), c2, uint32(p0)
        w0, w1 = uint32(w0 + _W0), uint32(w1 + _W1)


@partial(cached, nogil=True, boundscheck=False)
def fill(out, seed, i, j, k, upper, first, s):
    """Words at addresses. Shapes: out (rows, columns, slots), addresses (rows, columns), s (6 · LANES,) scratch.

    A lane takes four words of an address, the next lane the next four, or the first four of the next address.
    """
    rows, columns, slots = out.shape
    groups = (slots + 3) // 4
    for r in range(rows):
        for start in range(0, columns * groups, LANES):
            lanes = min(LANES, columns * groups - start)
            column, group = start // groups, start % groups
            for c in range(lanes):
                key = uint64(seed[r, column])
                s[c], s[64 + c], s[128 + c] = uint32(i[r, column]), uint32(j[r, column]), uint32(k[r, column])
                s[192 + c] = uint32(upper + first + group)
                s[256 + c], s[320 + c] = uint32(key), uint32(key >> uint64(32))
                group += 1
                if group == groups:
                    column, group = column + 1, 0
            _rounds(s)
            column, group = start // groups, start % groups
            for c in range(lanes):
                for q in range(min(4, slots - 4 * group)):
                    out[r, column, 4 * group + q] = s[LANES * q + c]
                group += 1
                if group == groups:
                    column, group = column + 1, 0
