"""Digits of any base in few bytes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspodfl.algorithms.digits import pack, packed_bytes, unpack


@given(st.integers(2, 2**40), st.integers(0, 200), st.integers(0, 2**32))
def test_digits_come_back(base, count, seed):
    digits = np.random.default_rng(seed).integers(0, base, count)
    data = pack(digits, base)
    assert data.dtype == np.uint8 and len(data) == packed_bytes(base, count)
    assert np.array_equal(unpack(data, base, count), digits)


def test_the_largest_and_the_smallest_digits_come_back():
    for base in (2, 3, 33, 255, 256, 257, 2**16 + 1):
        digits = np.array([base - 1, 0] * 100)
        assert np.array_equal(unpack(pack(digits, base), base, 200), digits)


@pytest.mark.parametrize("base", [2, 3, 5, 9, 17, 33, 65, 129, 257, 513])
def test_they_take_little_more_than_their_information(base):
    assert packed_bytes(base, 10_000) <= 1.05 * 10_000 * math.log2(base) / 8
