"""Datasets and federations: what they accept, what they refuse, and the affine map."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from dspodfl.errors import DataError
from dspodfl.problem.data import Dataset, Federation

X = np.arange(12, dtype=np.uint8).reshape(4, 3)
Y = np.array([0, 1, 2, 1])


def test_bytes_stay_bytes_and_labels_give_the_number_of_classes():
    data = Dataset.from_arrays(X, Y, X[:2], [3, 0])
    assert data.x_train.dtype == np.uint8
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert data.classes == data.outputs == 4
    assert data.input_shape == (3,)
    assert np.allclose(data.normalized(data.x_train), X / 255)


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32, bool])
def test_other_numbers_become_float32_unscaled(kind):
    data = Dataset.from_arrays(X.astype(kind), Y, X.astype(kind), Y)
    assert data.x_train.dtype == np.float32
    assert np.array_equal(data.normalized(data.x_train), X.astype(kind).astype(np.float32))


def test_floating_targets_make_a_regression():
    data = Dataset.from_arrays(X, Y / 2, X, Y / 2)
    assert data.classes is None
    assert data.outputs == 1
    assert data.y_train.dtype == np.float32


def test_tensors_and_lists_are_accepted():
    x = torch.ones(4, 2, requires_grad=True)
    for given in (x, x.to(torch.bfloat16), x.tolist()):
        data = Dataset.from_arrays(given, torch.tensor(Y), given, Y.tolist())
        assert np.array_equal(data.x_train, np.ones((4, 2), np.float32))
        assert np.array_equal(data.y_train, Y)


@pytest.mark.parametrize("targets", [torch.tensor(Y), torch.tensor(Y / 2)])
def test_map_style_torch_datasets_are_accepted(targets):
    train = TensorDataset(torch.rand(4, 1, 2, 2), targets)
    data = Dataset.from_torch(train, train)
    assert data.input_shape == (1, 2, 2)
    assert np.array_equal(data.x_train, train.tensors[0].numpy())
    assert np.array_equal(data.y_train, targets.numpy().astype(data.y_train.dtype))


def test_torch_datasets_with_plain_labels_are_accepted():
    pairs = [(torch.zeros(2), 0), (torch.ones(2), 1)]
    assert Dataset.from_torch(pairs, pairs).classes == 2


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (iter([]), "map-style"),
        ([], "no sample"),
        ([1, 2], "pair"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], "different shapes"),
    ],
)
def test_other_torch_datasets_are_refused(train, words):
    with pytest.raises(DataError, match=words):
        Dataset.from_torch(train, [(torch.zeros(2), 0)])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ((X, Y[:3], X, Y), "4 samples"),
        ((X[:0], Y[:0], X, Y), "at least one sample"),
        ((X, Y, X[:0], Y[:0]), "at least one sample"),
        ((X[:, 0], Y, X, Y), r"\(samples, \*shape\)"),
        ((X, Y, X[:, :2], Y), "shape"),
        ((X, -Y, X, Y), r"int64 in \[0, 2\]"),
        ((X, Y - 9, X, Y - 9), "labels must be 0 or more"),
        ((X, Y, X, Y / 2), "both"),
        ((X, Y[:, None], X, Y), "y_train has shape"),
        ((X, Y, X / 2, Y), "x_train is uint8, x_test is float32"),
        ((X * np.nan, Y, X / 2, Y), "not finite"),
        ((X * 1e300, Y, X / 2, Y), "not finite"),
        ((X, Y - np.inf, X, Y / 2), "finite"),
        ((X.astype(str), Y, X, Y), "array of numbers"),
        ((X, Y.astype(complex), X, Y), "integer labels"),
        (([[1], [1, 2]], [0, 1], X, Y), "rectangular"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, words):
    with pytest.raises(DataError, match=words):
        Dataset.from_arrays(*arrays)


def test_a_dataset_refuses_other_types_and_names():
    good = {"name": "d", "x_train": X, "y_train": Y, "x_test": X, "y_test": Y, "classes": 3}
    Dataset(**good)
    for wrong, words in (
        ({"x_train": X.astype(float)}, "uint8 or float32"),
        ({"y_train": Y.astype(np.int32)}, "int64"),
        ({"classes": 2}, r"\[0, 1\]"),
        ({"classes": None}, "float32"),
        ({"classes": 0}, "at least 1"),
        ({"class_names": ("a", "b")}, "2 class names for 3"),
        ({"scale": float("nan")}, "finite"),
    ):
        with pytest.raises(DataError, match=words):
            Dataset(**{**good, **wrong})


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        ((), "no client"),
        ((np.arange(2), np.arange(0)), "client 1 holds no sample"),
        ((np.array([4]),), r"\[0, 3\]"),
        ((np.array([-1]),), r"\[0, 3\]"),
        ((np.array([0.0]),), "int64"),
    ],
)
def test_a_federation_refuses_shards_that_do_not_fit(shards, words):
    with pytest.raises(DataError, match=words):
        Federation(Dataset.from_arrays(X, Y, X, Y), shards, {})


def test_a_federation_counts_its_clients_and_their_samples():
    federation = Federation(Dataset.from_arrays(X, Y, X, Y), (np.arange(3), np.arange(1)), {})
    assert federation.clients == 2
    assert federation.sizes.tolist() == [3, 1]
