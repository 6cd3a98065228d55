"""Samples in files: rows as an array gives them, each file asked for what is wanted of it."""

import numpy as np
import pytest

from dspodfl.problem.data import (
    Dataset,
    Federation,
    StoredRows,
    restrict_to_clients,
    samples_on_demand,
    with_channel_axis,
)
from dspodfl.problem.data.stored_rows import on_demand

WHOLE = np.arange(6 * 2 * 3, dtype=np.float32).reshape(6, 2, 3)


@pytest.fixture
def asked():
    return []


@pytest.fixture
def stored(asked):
    def read(rows):
        asked.append(rows.tolist())
        return WHOLE[rows]

    return StoredRows(WHOLE.shape, WHOLE.dtype, read)


def test_it_has_the_properties_of_the_array(stored, asked):
    for name in ("shape", "dtype", "ndim", "size", "nbytes"):
        assert getattr(stored, name) == getattr(WHOLE, name)
    assert len(stored) == 6
    assert asked == []


@pytest.mark.parametrize("rows", [[1, 4], [4, 1], [2, 2, 0], [], [5]])
def test_rows_are_those_of_the_array_and_read_once(stored, asked, rows):
    index = np.array(rows, dtype=np.int64)
    assert np.array_equal(stored[index], WHOLE[index])
    assert asked == [sorted(set(rows))]


@pytest.mark.parametrize("rows", [[-1], [6], [0, 7]])
def test_rows_that_do_not_exist_are_refused(stored, rows):
    with pytest.raises(IndexError):
        stored[np.array(rows)]


def test_anything_else_reads_all_samples(stored, asked):
    assert np.array_equal(np.concatenate([stored, WHOLE[:1]]), np.concatenate([WHOLE, WHOLE[:1]]))
    assert np.array_equal(stored[:, None], WHOLE[:, None])
    assert np.array_equal(stored[2], WHOLE[2])
    assert asked == [list(range(6))] * 3


def test_the_samples_stay_and_another_shape_is_that_of_rows(stored, asked):
    assert np.array_equal(stored.reshape(6, 6)[np.array([3])], WHOLE.reshape(6, 6)[[3]])
    assert asked == [[3]]
    with pytest.raises(ValueError, match="no shape"):
        stored.reshape(3, 12)


def dataset(x):
    y = np.arange(6) % 2
    return Dataset("some", x, y, WHOLE[:1], y[:1], 2)


def test_federations_on_one_dataset_read_the_union_of_their_rows_once(stored, asked):
    ways = [(np.array([0, 1]), np.array([2, 3])), (np.array([1, 5]), np.array([0, 4]))]
    clients = [np.array([0]), np.array([0])]
    lazy, whole = dataset(stored), dataset(WHOLE)
    assert lazy.on_demand and not whole.on_demand
    found = restrict_to_clients([Federation(lazy, shards, {}) for shards in ways], clients)
    expected = restrict_to_clients([Federation(whole, shards, {}) for shards in ways], clients)
    assert asked == [[0, 1, 5]]
    assert found[0].dataset is found[1].dataset and not found[0].dataset.on_demand
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one.dataset.x_train, other.dataset.x_train)
        assert all(map(np.array_equal, one.shards, other.shards))


def test_a_channel_axis_reads_nothing(stored, asked):
    made = with_channel_axis(dataset(stored))
    assert made.input_shape == (1, 2, 3)
    assert made.on_demand and asked == []
    assert np.array_equal(made.x_train[np.array([1])], WHOLE[[1], None])
    assert np.array_equal(made.normalized(made.x_train), WHOLE[:, None])


def test_on_demand_ends_with_its_block():
    with samples_on_demand():
        assert on_demand()
    assert not on_demand()
