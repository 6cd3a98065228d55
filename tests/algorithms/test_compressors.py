"""Compressors: what they keep, what they send, and that the mean of the unbiased one is right."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dspodfl import rng
from dspodfl.algorithms.compressors import COMPRESSORS, Identity, Qsgd, RandomK, Sign, TopK, contraction, kept
from dspodfl.rng import Stream

ADDRESSES = 2000
ALL = [Identity(), TopK(0.3), TopK(0.01), TopK(1.0), RandomK(0.3), RandomK(1.0), Qsgd(1), Qsgd(7), Sign()]
NUMBERS = st.floats(-100, 100).map(lambda x: round(x, 3))


def words_of(compressor, p, count, k=3):
    """The words of clients 0 … count − 1 at iteration k."""
    slots = compressor.slots(p)
    client = torch.arange(count)
    return rng.words(7, Stream.COMPRESS, client, k=k, slots=slots) if slots else torch.zeros(count, 0)


def rows_of(x, count):
    return torch.as_tensor(x, dtype=torch.float64).expand(count, -1)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(ALL), arrays.arrays(np.float64, st.integers(1, 12), elements=NUMBERS))
def test_a_compressor_keeps_its_share_in_the_mean(compressor, x):
    count = ADDRESSES if compressor.slots(len(x)) else 1
    rows = rows_of(x, count)
    lost = (contraction(compressor, rows, words_of(compressor, len(x), count)) - rows).square().sum(dim=1).mean()
    chance = 0.06 if count > 1 else 1e-12  # five standard deviations of the mean over addresses
    assert lost <= (1 - compressor.delta(len(x)) + chance) * float((x**2).sum()) + 1e-12


@pytest.mark.parametrize("compressor", ALL, ids=repr)
def test_zeros_become_zeros(compressor):
    found = contraction(compressor, torch.zeros(3, 5), words_of(compressor, 5, 3))
    assert torch.equal(found, torch.zeros(3, 5))


def test_qsgd_is_unbiased_and_its_variance_is_at_most_omega():
    x = torch.tensor([0.3, -2.0, 0.0, 1e-3, 5.0, -0.7, 1.1], dtype=torch.float64)
    for levels in (1, 4):
        q = Qsgd(levels)
        found = q.compress(rows_of(x, 20_000), words_of(q, 7, 20_000))
        error = float(x.norm()) / levels / 2 / 20_000**0.5
        assert (found.mean(dim=0) - x).abs().max() < 4 * error
        assert (found - x).square().sum(dim=1).mean() < q.omega(7) * x.square().sum()
        assert torch.allclose(contraction(q, x[None], words_of(q, 7, 1)) * (1 + q.omega(7)), found[:1])


def test_qsgd_gives_whole_levels_of_the_norm():
    x = torch.randn(50, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    level = Qsgd(5).compress(x, words_of(Qsgd(5), 9, 50)) / x.norm(dim=1, keepdim=True) * 5
    assert (level - level.round()).abs().max() < 1e-12
    assert (level - x / x.norm(dim=1, keepdim=True) * 5).abs().max() < 1


def test_ties_of_top_k_are_broken_by_index():
    x = torch.tensor([[1.0, -2.0, 2.0, 2.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0, 5.0]])
    found = TopK(0.5).compress(x, torch.zeros(2, 0))
    assert found.tolist() == [[0.0, -2.0, 2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 5.0]]


@given(arrays.arrays(np.float64, (3, 8), elements=NUMBERS), st.floats(0.01, 1))
def test_top_k_is_a_stable_sort(x, share):
    found = TopK(share).compress(torch.from_numpy(x), torch.zeros(3, 0)).numpy()
    for row, got in zip(x, found, strict=True):
        keep = sorted(range(8), key=lambda n: (-abs(row[n]), n))[: kept(share, 8)]
        assert got.tolist() == [row[n] if n in keep else 0.0 for n in range(8)]


def test_random_k_keeps_every_place_equally_often_and_the_same_for_all_vectors_of_an_address():
    q, p = RandomK(0.25), 8
    words = words_of(q, p, 8000)
    found = q.compress(torch.ones(8000, p), words)
    assert torch.equal(found.sum(dim=1), torch.full((8000,), 2.0))
    assert (found.mean(dim=0) - 0.25).abs().max() < 5 * (0.25 * 0.75 / 8000) ** 0.5
    other = torch.arange(1.0, 9.0).expand(8000, -1)
    assert torch.equal(q.compress(other, words) != 0, found != 0)


def test_signs_are_those_of_the_vector_times_its_mean_absolute_value():
    found = Sign().compress(torch.tensor([[1.0, -3.0, 0.0, 4.0]]), torch.zeros(1, 0))
    assert found.tolist() == [[2.0, -2.0, 2.0, 2.0]]


def test_bytes_by_hand():
    sent = {Identity(): 4000, TopK(0.01): 80, RandomK(0.01): 40, Qsgd(1): 4 + 199, Qsgd(127): 4 + 1000, Sign(): 129}
    assert {q: q.sent(1000) for q in sent} == sent  # 1000 log₂ 3 = 1584.96 bits, 1000 log₂ 255 = 7994.4
    assert (TopK(0.01).sent(20), TopK(1e-9).sent(20), Sign().sent(9)) == (8, 8, 6)


def test_the_registry_has_each_compressor_by_the_name_of_the_setting():
    assert {name: type(kind()).__name__ for name, kind in COMPRESSORS.items()} == {
        "identity": "Identity",
        "qsgd": "Qsgd",
        "random_k": "RandomK",
        "sign": "Sign",
        "top_k": "TopK",
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_is_encoded_is_decoded_to_the_same_numbers(name, dtype):
    compressor, random = COMPRESSORS[name](), torch.Generator().manual_seed(4)
    for p in (1, 7, 64, 785):
        for x in (torch.randn(1, p, generator=random, dtype=dtype), torch.zeros(1, p, dtype=dtype)):
            x[0, ::3] = 0.0
            words = torch.randint(0, 2**32, (1, compressor.slots(p)), generator=random)
            q = contraction(compressor, x, words)
            parts = compressor.encode(q, x, words)
            assert all(len(part) == 1 for part in parts)
            assert torch.equal(compressor.decode(parts, p, lambda words=words: words), q)
