# mypy: ignore-errors
"""The compiled code behind `dspodfl._kernels.cpu.linear.join`; importing this module imports Numba."""

from __future__ import annotations

from dspodfl._kernels.cpu._cache import cached
from dspodfl._kernels.cpu._linear import _at, _bare, _mix_columns


def join(theta, back_buffer, received, ptr, col, link, active, place, neighbours, weights):
    """Each new model plus its share of the received neighbours, less as much of its own old model."""
    now, new, far = _bare(theta), _bare(back_buffer), _bare(received)
    columns = now.shape[1]
    wide = columns * now.itemsize
    one = now.dtype.type(1)
    for n in range(ptr.size - 1):
        count = 0
        total = now.dtype.type(0)
        for e in range(ptr[n], ptr[n + 1]):
            weight = active[link[e]]
            if weight != 0:
                neighbours[count] = _at(far) + place[col[e]] * wide
                weights[count] = weight
                total += weight
                count += 1
        if count:
            neighbours[count] = _at(now) + n * wide
            weights[count] = -total
            out = _at(new) + n * wide
            _mix_columns(now, out, out, 0, columns, one, _at(neighbours), _at(weights), count + 1)


join = cached(join, error_model="numpy", boundscheck=False, nogil=True)
