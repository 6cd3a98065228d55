"""The addressed generator: known answers, and the same words however they are asked for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspodfl import rng
from dspodfl._kernels import philox
from dspodfl._kernels.cpu import linear as compiled
from dspodfl.rng import Stream

ADDRESS = st.tuples(
    st.integers(0, 2**63 - 1),
    st.sampled_from(list(Stream)),
    st.integers(0, 2**31),
    st.integers(0, 2**31),
    st.integers(0, 2**31),
)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((rng.MASK,) * 4, (rng.MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_known_answers(counter, key, answer):
    as_numpy = rng.philox(tuple(np.array([c]) for c in counter), tuple(np.array([c]) for c in key))
    as_torch = rng.philox(tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([c]) for c in key))
    assert tuple(int(w[0]) for w in as_numpy) == answer
    assert tuple(int(w[0]) for w in as_torch) == answer


def test_an_address_is_laid_out_as_documented():
    seed, i, j, k, slot = 0x123456789ABCDEF0, 7, 11, 13, 9
    counter = (i, j, k, (int(Stream.LINK) << 26) + slot // 4)
    expected = rng.philox(tuple(np.array([c]) for c in counter), (np.array([seed & rng.MASK]), np.array([seed >> 32])))
    assert rng.words(seed, Stream.LINK, i, j, k, slots=12)[slot] == expected[slot % 4][0]


def test_the_streams_and_the_layout_never_move():
    """A pinned stream: a change here changes every published result."""
    got = [int(rng.words(2025, s, 3, 5, 1000, slots=3)[2]) for s in Stream]
    assert [int(s) for s in Stream] == list(range(22))
    assert got == PINNED


PINNED = [
    1194573166,
    1199207630,
    1396928187,
    1713405415,
    4199398654,
    893553561,
    72496794,
    41649678,
    4012411571,
    2335685856,
    1261602071,
    2252491138,
    283822330,
    2780689297,
    37918447,
    4160099662,
    792052825,
    241366639,
    2936822201,
    1467839448,
    4287603892,
    2915080132,
]


def test_the_seeds_of_named_sub_streams_never_move():
    assert rng.seed_of(2025, "pairwise") == 2873885842209329254
    assert rng.seed_of(2**63 - 1, "mine:Pairwise") == 868652488374578621


@given(st.integers(0, 2**63 - 1), st.text(max_size=20), st.text(max_size=20))
def test_the_seed_of_a_sub_stream_is_one_of_words_and_differs_by_name_and_by_seed(seed, name, other):
    found = rng.seed_of(seed, name)
    assert 0 <= found < 2**63 and found not in (seed, rng.seed_of(seed ^ 1, name))
    assert (found == rng.seed_of(seed, other)) == (name == other)


@given(ADDRESS, st.integers(1, 9))
def test_numpy_torch_and_scalars_give_the_same_words(address, slots):
    seed, stream, i, j, k = address
    plain = rng.words(seed, stream, i, j, k, slots=slots)
    tensor = rng.words(seed, stream, torch.tensor([i, i + 1]), j, k, slots=slots)
    assert tensor[0].tolist() == plain.tolist()
    assert ((plain >= 0) & (plain < rng.WORD)).all()


@given(ADDRESS, st.integers(0, 5))
def test_a_word_does_not_depend_on_which_slots_are_asked_for_with_it(address, block):
    seed, stream, i, j, k = address
    whole = rng.words(seed, stream, i, j, k, slots=24)
    assert rng.words(seed, stream, i, j, k, slots=4, first=4 * block).tolist() == whole[4 * block :][:4].tolist()


@given(st.integers(1, 2**31 - 1), st.integers(0, rng.MASK))
def test_indices_stay_below_n(n, word):
    assert 0 <= rng.index_below(word, n) < n


def test_probability_one_always_fires_and_zero_never():
    extremes = np.array([0, rng.MASK])
    assert rng.bernoulli(extremes, 1.0).all()
    assert not rng.bernoulli(extremes, 0.0).any()
    assert int(rng.threshold(0.5)) == 2**31


def test_uniforms_and_normals_have_the_moments_of_their_laws():
    u = rng.uniform(1, Stream.DATA, count=200_000)
    z = rng.normal(1, Stream.DATA, count=200_000)
    assert 0 <= u.min() and u.max() < 1
    assert abs(u.mean() - 0.5) < 4 / np.sqrt(12 * len(u))
    assert abs(z.mean()) < 4 / np.sqrt(len(z))
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / len(z))


@given(st.integers(0, 2**40), st.integers(0, 300))
def test_a_permutation_is_one(seed, n):
    assert sorted(rng.permutation(seed, Stream.PARTITION, n).tolist()) == list(range(n))


def test_slots_past_the_counter_are_refused():
    with pytest.raises(ValueError, match="2²⁸"):
        rng.words(0, Stream.INIT, slots=4, first=rng.MAX_SLOT)


@given(
    st.integers(0, 2**63 - 1), st.sampled_from(Stream), st.integers(1, 9), st.sampled_from([0, 4, 8]), st.integers(1, 5)
)
def test_compiled_words_are_those_of_the_plain_generator(seed, stream, slots, first, rows):
    i, k = np.arange(4000), np.arange(rows)[:, None] + 10**6
    many = rng.words(seed, stream, i, 7, k, slots=slots, first=first)
    assert many.size >= philox.MANY or rows * slots == 1
    some = np.random.default_rng(seed % 1000).integers(0, 4000, 20)
    assert np.array_equal(many[:, some], rng.words(seed, stream, i[some], 7, k, slots=slots, first=first))
    tensors = rng.words(seed, stream, torch.from_numpy(i), 7, torch.from_numpy(k), slots=slots, first=first)
    assert np.array_equal(tensors.numpy(), many)


def test_without_a_compiler_the_words_are_the_same(monkeypatch):
    fast = rng.words(3, Stream.LINK, np.arange(5000), 1, 2, slots=4)
    monkeypatch.setattr(compiled, "available", lambda: False)
    assert np.array_equal(rng.words(3, Stream.LINK, np.arange(5000), 1, 2, slots=4), fast)
