"""What payloads consist of."""

import numpy as np
import pytest

from dspodfl.errors import InputError
from dspodfl.nodes import Part, Schema
from dspodfl.nodes.schema import DTYPES


def test_sizes_are_those_of_the_arrays():
    schema = Schema.of([[("float32", (3, 2)), ("uint8", (5,))], [("float64", ())], []])
    assert schema.sizes == (29, 8, 0) and schema.largest == 29 and schema.size(1) == 8


def test_the_digest_depends_on_dtypes_shapes_and_order():
    variants = [
        [[("float32", (6,))]],
        [[("float32", (2, 3))]],
        [[("float64", (6,))]],
        [[("float32", (6,))], []],
        [[("float32", (3,)), ("float32", (3,))]],
    ]
    digests = {Schema.of(phases).digest for phases in variants}
    assert len(digests) == len(variants) and all(len(digest) == 32 for digest in digests)
    assert Schema.of(variants[0]).digest == Schema.of([[("float32", [6])]]).digest


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_one_value_that_is_not_finite_is_found_wherever_it_is(dtype, bad):
    count = 70_000  # more than a block
    schema = Schema.of([[("uint8", (3,)), (dtype, (count,)), ("int32", (1,))]])
    for place in (0, 65_536, count - 1):
        values = np.ones(count, dtype)
        payload = bytes([255] * 3) + values.tobytes() + b"\xff" * 4
        assert schema.finite(0, np.frombuffer(payload, np.uint8))
        values[place] = bad
        payload = bytes([255] * 3) + values.tobytes() + b"\xff" * 4
        assert not schema.finite(0, np.frombuffer(payload, np.uint8))


def test_bfloat16_is_checked_by_its_bits():
    torch = pytest.importorskip("torch")
    schema = Schema.of([[("bfloat16", (4,))]])
    for values, fine in (
        ([1.0, -3.0e38, 0.0, 1e-40], True),
        ([1, 2, float("nan"), 4], False),
        ([float("-inf")] * 4, False),
    ):
        bits = torch.tensor(values).to(torch.bfloat16).view(torch.uint8).numpy()
        assert schema.finite(0, bits) is fine


def test_numbers_that_are_no_floats_are_not_checked():
    for dtype in set(DTYPES) - {"float16", "float32", "float64", "bfloat16"}:
        part = Part(dtype, (8,))
        assert Schema(((part,),)).finite(0, np.full(part.size, 255, np.uint8))


@pytest.mark.parametrize(("dtype", "shape"), [("complex64", (1,)), ("float32", (-1,)), ("object", (1,))])
def test_what_cannot_be_sent_is_refused(dtype, shape):
    with pytest.raises(InputError):
        Part(dtype, shape)
