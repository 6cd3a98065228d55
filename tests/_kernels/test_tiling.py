"""How products are cut: blocks that the kernels take, and parts of sums only where processors would be idle."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dspodfl._kernels.cuda import tiling as cuts

CPU = torch.device("cpu")
PRECISIONS = st.sampled_from(["fp32", "tf32", "bf16"])
CHIPS = st.tuples(st.sampled_from([46, 84, 108, 132, 148]), st.booleans())
CLIENTS = st.integers(1, 200)
ROWS = st.integers(1, 20_000) | st.integers(1, 80).map(lambda n: 256 * n)
WIDTHS = st.integers(1, 600) | st.integers(1, 40).map(lambda n: 16 * n) | st.sampled_from([64, 128, 256, 512])
"""Of out_channels and channels: any, and those that networks have."""
PRODUCTS = st.tuples(CLIENTS, ROWS, WIDTHS, WIDTHS, PRECISIONS, st.booleans())
"""(clients, rows, out_channels, channels, precision, strided)"""
PROGRAMS = {16: 2, 32: 3, 64: 3, 128: 2, 256: 1}
"""The most programs that a processor takes at once, by the rows of a block."""


def product(args, backward, chip=(132, True)):
    with patch.object(cuts, "_chip", lambda device: chip):
        return cuts.product_shape(CPU, *args, backward=backward)


def weight(args, chip=(132, True)):
    with patch.object(cuts, "_chip", lambda device: chip):
        return cuts.weight_shape(CPU, *args)


def filled(programs, room):
    """The share of the rounds' places that have a program."""
    return programs / (cuts.cdiv(programs, room) * room)


def large(shape):
    return 256 in (shape.m, shape.n)


@given(PRODUCTS, st.booleans(), CHIPS)
def test_block_sizes_are_powers_of_two_and_fit_the_tensor_cores(args, backward, chip):
    for shape in (product(args, backward, chip), weight(args, chip)):
        for size in (shape.m, shape.n, shape.k):
            assert size >= 16 and size.bit_count() == 1


@given(PRODUCTS, st.booleans(), CHIPS)
def test_no_block_reaches_over_the_end_of_a_taps_channels(args, backward, chip):
    channels, strided = args[3], args[5]
    for shape in (product(args, backward, chip), weight(args, chip)):
        assert shape.flat == (channels % 16 > 0 or strided)
        assert shape.flat or channels % shape.k == 0


@given(blocks=st.integers(1, 1000), room=st.integers(1, 450), most=st.integers(-1, 8))
@example(blocks=12, room=264, most=8)
@example(blocks=131, room=132, most=8)
def test_parting_a_sum_leaves_no_round_emptier_and_fewer_parts_would_not_fill_as_well(blocks, room, most):
    parts = cuts._splits(blocks, room, most)
    assert 1 <= parts <= max(1, most)
    assert filled(blocks * parts, room) >= filled(blocks, room)
    assert parts == 1 or blocks < room
    assert all(filled(blocks * fewer, room) < filled(blocks * parts, room) for fewer in range(1, parts))


@given(PRODUCTS, st.booleans(), CHIPS)
@example((1, 64, 64, 512, "tf32", False), True, (132, True))
@example((3, 256, 512, 512, "tf32", False), False, (132, True))
@example((3, 64, 512, 512, "bf16", False), True, (132, True))
def test_the_sum_of_a_product_has_at_most_eight_parts_and_only_where_blocks_leave_room(args, backward, chip):
    clients, rows, out_channels, channels, *_ = args
    shape = product(args, backward, chip)
    assert 1 <= shape.splits <= 8
    if shape.splits > 1:
        assert clients * cuts.cdiv(rows, shape.m) * cuts.cdiv(out_channels, shape.n) < PROGRAMS[shape.m] * chip[0]
        assert 9 * channels >= 8 * shape.k * shape.splits  # eight steps in each part, or more


@given(PRODUCTS, CHIPS)
@example((3, 4096, 64, 64, "tf32", False), (132, True))
def test_the_parts_of_a_sum_over_pixels_fit_the_device_in_one_round(args, chip):
    clients, rows, out_channels, channels, *_ = args
    shape = weight(args, chip)
    assert shape.splits >= 1
    if shape.splits > 1:
        blocks = clients * cuts.cdiv(out_channels, shape.n) * cuts.cdiv(9 * channels, shape.k)
        assert blocks * shape.splits <= PROGRAMS[shape.m] * chip[0]
        assert rows >= 8 * shape.m * shape.splits


@given(PRODUCTS, st.booleans(), CHIPS)
@example((110, 16384, 256, 128, "tf32", False), False, (132, True))
@example((110, 4096, 256, 256, "tf32", False), True, (132, True))
def test_large_blocks_are_for_roomy_devices_with_plenty_to_do(args, backward, chip):
    clients, rows, out_channels, _, precision, _ = args
    processors, roomy = chip
    shape = product(args, backward, chip)
    if large(shape):
        plenty = clients * cuts.cdiv(rows, 128) * out_channels >= cuts._PLENTY * processors * 128
        assert roomy and (plenty if precision == "tf32" else precision == "bf16")


@pytest.mark.parametrize("backward", [False, True])
def test_the_same_layer_has_parts_for_few_clients_and_large_blocks_for_many(backward):
    few, many = ((clients, 256, 512, 512, "tf32", False) for clients in (1, 110))
    assert product(few, backward).splits > 1 and not large(product(few, backward))
    assert product(many, backward).splits == 1 and large(product(many, backward))
    assert not large(product(many, backward, chip=(132, False)))


@given(PRODUCTS, st.booleans())
def test_short_sums_stay_whole(args, backward):
    clients, rows, out_channels, _, precision, _ = args
    assert product((clients, rows, out_channels, 16, precision, False), backward).splits == 1
    assert product((clients, rows, out_channels, 64, precision, False), backward).splits == 1


def test_a_cpu_that_interprets_the_kernels_counts_as_a_roomy_gpu():
    assert cuts._chip(CPU) == (132, True)


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_cdiv_is_the_least_that_holds(a, b):
    assert (cuts.cdiv(a, b) - 1) * b < a <= cuts.cdiv(a, b) * b
