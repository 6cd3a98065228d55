"""Partitions: what every kind promises, for whatever is asked of it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dspodfl import rng
from dspodfl.errors import InputError
from dspodfl.problem.data import partitions
from dspodfl.rng import Stream

SEEDS = st.integers(0, 2**40)
SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=12)  # samples of each class
CLIENTS = st.integers(1, 30)
TEN = np.arange(1000) % 10
KINDS = {
    "iid": {},
    "labels": {"per_client": 3},
    "dirichlet": {"alpha": 0.5},
    "shards": {"per_client": 2},
    "quantity": {"alpha": 0.5},
    "shared": {"samples": 20},
}


def labelled(sizes, seed=0):
    """Labels with so many samples a class, in mixed order, class names with gaps."""
    y = np.repeat(3 * np.arange(len(sizes)), sizes)
    return y[rng.permutation(seed, Stream.DATA, len(y))]


def check_disjoint(partition, y, clients):
    assert len(partition.shards) == clients
    assert all(len(shard) and shard.dtype == np.int64 for shard in partition.shards)
    held = np.concatenate(partition.shards)
    assert len(np.unique(held)) == len(held) == len(y) - partition.unused
    assert held.min() >= 0
    assert held.max() < len(y)
    assert all((np.diff(shard) > 0).all() for shard in partition.shards)


def test_a_client_that_the_dirichlet_draw_leaves_empty_is_given_a_sample_by_the_richest():
    counts = np.array([[5, 3], [0, 0], [2, 6], [0, 0], [1, 0]])
    assert partitions._fill(counts.copy()).tolist() == [[4, 3], [1, 0], [2, 5], [0, 1], [1, 0]]


def test_a_thousand_clients_share_classes_very_unevenly():
    y = np.repeat(np.arange(10), 600)
    partition = partitions.dirichlet(y, 1000, 0, 0.05)
    check_disjoint(partition, y, 1000)
    held = [len(np.unique(y[shard])) for shard in partition.shards]
    assert np.median(held) <= 2


@given(n=st.integers(1, 500), clients=CLIENTS, seed=SEEDS)
def test_iid_cuts_equal_parts_and_leaves_less_than_one_sample_a_client(n, clients, seed):
    assume(n >= clients)
    partition = partitions.iid(np.zeros(n), clients, seed)
    check_disjoint(partition, np.zeros(n), clients)
    assert {len(shard) for shard in partition.shards} == {n // clients}
    assert partition.unused == n % clients


@given(sizes=SIZES, clients=CLIENTS, seed=SEEDS, share=st.floats(0, 1), allow_unused=st.booleans())
def test_labels_are_exact_balanced_disjoint_and_exhaustive(sizes, clients, seed, share, allow_unused):
    y, classes = labelled(sizes), len(sizes)
    per_client = 1 + int(share * (classes - 1))
    places = clients * per_client
    try:
        partition = partitions.labels(y, clients, seed, per_client, allow_unused)
    except InputError as error:
        without_holder = error.field == "data.partition.per_client" and places < classes and not allow_unused
        too_many = error.field == "clients.count" and -(-places // classes) > min(sizes)
        assert without_holder or too_many
        return
    check_disjoint(partition, y, clients)
    assert all(len(np.unique(y[shard])) == per_client for shard in partition.shards)
    loads = Counter(int(label) for shard in partition.shards for label in np.unique(y[shard]))
    load = [loads[3 * code] for code in range(classes)]
    assert max(load) - min(load) <= 1
    assert partition.unused_classes == tuple(3 * code for code in range(classes) if load[code] == 0)
    for code, size in enumerate(sizes):
        parts = {int((y[shard] == 3 * code).sum()) for shard in partition.shards} - {0}
        assert parts == ({size // load[code]} if load[code] else set())
    remainders = [size % held if held else size for size, held in zip(sizes, load, strict=True)]
    assert partition.unused == sum(remainders)


@given(clients=st.integers(1, 200), classes=st.integers(1, 40), share=st.floats(0, 1), seed=SEEDS)
def test_the_assignment_is_balanced_for_any_numbers(clients, classes, share, seed):
    per_client = 1 + int(share * (classes - 1))
    held = partitions._balanced(clients, classes, per_client, seed)
    assert all(len(set(row)) == per_client for row in held.tolist())
    loads = np.bincount(held.ravel(), minlength=classes)
    assert loads.max() - loads.min() <= 1


def test_every_client_is_as_likely_to_hold_every_class():
    held = np.stack([partitions._balanced(4, 5, 2, seed) for seed in range(2000)])  # (seeds, clients, 2)
    shares = (held[..., None] == np.arange(5)).any(axis=2).mean(axis=0)
    assert np.abs(shares - 2 / 5).max() < 0.05


def test_neighbouring_clients_share_classes_as_often_as_any_others():
    held = np.stack([partitions._balanced(8, 4, 2, seed) for seed in range(2000)])
    overlap = [np.mean([len(set(a) & set(b)) for a, b in zip(held[:, 0], held[:, i], strict=True)]) for i in (1, 7)]
    assert abs(overlap[0] - overlap[1]) < 0.08


@given(sizes=SIZES, clients=CLIENTS, seed=SEEDS, alpha=st.floats(1e-3, 1000))
def test_dirichlet_leaves_no_sample_unused_and_no_client_empty(sizes, clients, seed, alpha):
    y = labelled(sizes)
    assume(len(y) >= clients)
    partition = partitions.dirichlet(y, clients, seed, alpha)
    check_disjoint(partition, y, clients)
    assert partition.unused == 0


@given(n=st.integers(1, 500), clients=CLIENTS, seed=SEEDS, alpha=st.floats(1e-3, 1e6))
def test_quantity_leaves_no_sample_unused_and_no_client_empty(n, clients, seed, alpha):
    assume(n >= clients)
    partition = partitions.quantity(np.zeros(n), clients, seed, alpha)
    check_disjoint(partition, np.zeros(n), clients)
    assert partition.unused == 0


@given(sizes=SIZES, clients=CLIENTS, seed=SEEDS, per_client=st.integers(1, 4))
def test_shards_are_even_runs_of_the_sorted_labels(sizes, clients, seed, per_client):
    y = labelled(sizes)
    assume(len(y) >= clients * per_client)
    partition = partitions.shards(y, clients, seed, per_client)
    check_disjoint(partition, y, clients)
    runs = clients * per_client
    assert partition.unused == 0
    short = len(y) // runs
    assert all(per_client * short <= len(shard) <= per_client * (short + 1) for shard in partition.shards)


def test_shards_of_balanced_classes_hold_at_most_one_label_a_run():
    partition = partitions.shards(TEN, clients=10, seed=0, per_client=2)
    assert max(len(np.unique(TEN[shard])) for shard in partition.shards) == 2


@given(n=st.integers(1, 300), clients=CLIENTS, seed=SEEDS, share=st.floats(0, 1))
def test_shared_sets_are_distinct_exact_and_the_same_whatever_the_number_of_clients(n, clients, seed, share):
    samples = 1 + int(share * (n - 1))
    partition = partitions.shared(np.zeros(n), clients, seed, samples)
    rows = np.stack(partition.shards)
    assert rows.shape == (clients, samples)
    assert rows.dtype == np.int64
    assert rows.min() >= 0
    assert rows.max() < n
    assert (np.diff(rows, axis=1) > 0).all()
    assert partition.unused == n - len(np.unique(rows))
    more = partitions.shared(np.zeros(n), clients + 1, seed, samples)
    assert np.array_equal(np.stack(more.shards[:-1]), rows)


@pytest.mark.parametrize("samples", [3, 7, 20])
def test_shared_takes_every_sample_equally_often(samples):
    rows = np.stack(partitions.shared(np.zeros(20), 20_000, 0, samples).shards)
    shares = np.bincount(rows.ravel(), minlength=20) / 20_000
    assert np.abs(shares - samples / 20).max() < 0.015


def test_shared_serves_very_many_clients_from_one_matrix():
    partition = partitions.shared(np.zeros(60_000), 100_000, 0, 32)
    assert len(partition.shards) == 100_000
    assert partition.shards[0].base is partition.shards[-1].base
    assert partition.shards[0].base.shape == (100_000, 32)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 30.0])
def test_dirichlet_shares_have_the_moments_of_the_law(alpha):
    m = 8
    u = rng.uniform(0, Stream.PARTITION, i=np.arange(m)[:, None], j=np.arange(20_000), count=2)
    shares = partitions._dirichlet(u, alpha)
    assert np.allclose(shares.sum(axis=0), 1)
    assert np.abs(shares.mean(axis=1) - 1 / m).max() < 0.015
    assert (shares**2).sum(axis=0).mean() == pytest.approx((alpha + 1) / (m * alpha + 1), rel=0.02)


@pytest.mark.parametrize("alpha", [1e-320, 1e-9, 1e12])
def test_dirichlet_shares_are_finite_for_extreme_parameters(alpha):
    u = np.stack([np.array([0.0, 0.5, 1 - 2.0**-53])] * 2, axis=-1)[:, None]
    shares = partitions._dirichlet(u, alpha)
    assert np.isfinite(shares).all()
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_is_decided_by_its_seed(kind):
    make = getattr(partitions, kind)
    one, same, other = (make(TEN, 10, seed, **KINDS[kind]) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one.shards, same.shards, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one.shards, other.shards, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_alone_is_served(kind):
    make, arguments = getattr(partitions, kind), {**KINDS[kind], **({"per_client": 10} if kind == "labels" else {})}
    assert len(make(TEN, 1, 0, **arguments).shards) == 1


@pytest.mark.parametrize(
    ("kind", "clients", "arguments", "field"),
    [
        ("iid", 1001, {}, "clients.count"),
        ("iid", 0, {}, "clients.count"),
        ("iid", 2.0, {}, "clients.count"),
        ("iid", True, {}, "clients.count"),
        ("labels", 10, {"per_client": 11}, "data.partition.per_client"),
        ("labels", 10, {"per_client": 0}, "data.partition.per_client"),
        ("labels", 10, {"per_client": 1.5}, "data.partition.per_client"),
        ("labels", 9, {"per_client": 1}, "data.partition.per_client"),
        ("labels", 999, {"per_client": 2}, "clients.count"),
        ("dirichlet", 10, {"alpha": 0}, "data.partition.alpha"),
        ("dirichlet", 10, {"alpha": float("nan")}, "data.partition.alpha"),
        ("dirichlet", 10, {"alpha": "0.5"}, "data.partition.alpha"),
        ("dirichlet", 1001, {"alpha": 1.0}, "clients.count"),
        ("shards", 10, {"per_client": 101}, "data.partition.per_client"),
        ("shards", 10, {"per_client": -1}, "data.partition.per_client"),
        ("quantity", 10, {"alpha": -1.0}, "data.partition.alpha"),
        ("quantity", 10, {"alpha": 10**400}, "data.partition.alpha"),
        ("quantity", 1001, {"alpha": 1.0}, "clients.count"),
        ("shared", 10, {"samples": 1001}, "data.partition.samples"),
        ("shared", 10, {"samples": 0}, "data.partition.samples"),
        ("shared", -3, {"samples": 1}, "clients.count"),
    ],
)
def test_an_impossible_request_is_refused_by_the_name_of_its_field(kind, clients, arguments, field):
    with pytest.raises(InputError) as caught:
        getattr(partitions, kind)(TEN, clients, 0, **arguments)
    assert caught.value.field == field


@pytest.mark.parametrize("kind", ["labels", "dirichlet", "shards"])
def test_kinds_that_need_labels_refuse_a_regression(kind):
    with pytest.raises(InputError, match="iid, quantity or shared"):
        getattr(partitions, kind)(np.zeros(50, dtype=np.float32), 5, 0, **KINDS[kind])


def test_classes_without_holder_are_reported_where_they_are_allowed():
    partition = partitions.labels(TEN, 4, 0, per_client=2, allow_unused=True)
    held = {int(label) for shard in partition.shards for label in TEN[shard]}
    assert len(held) == 8
    assert set(partition.unused_classes) == set(range(10)) - held
    assert partition.report() == {
        "samples_min": 200,
        "samples_max": 200,
        "unused": 200,
        "unused_classes": partition.unused_classes,
    }


def test_ten_labels_a_client_use_all_the_data():
    partition = partitions.labels(TEN, 10, 0, per_client=10)
    assert partition.unused == 0
    assert {len(shard) for shard in partition.shards} == {100}
