"""A federation from a folder of .npz files."""

import numpy as np
import pytest

from dspodfl.errors import DataError
from dspodfl.errors.bounded import Npz
from dspodfl.problem.data import load_npz, restrict_to_clients, samples_on_demand


def client(number, samples=2, dtype=np.float32, labels=True):
    y = np.full(samples, number % 3)
    return {"x": np.full((samples, 4), number, dtype=dtype), "y": y if labels else y.astype(np.float64)}


@pytest.fixture
def folder(tmp_path):
    for number in (0, 1, 2, 10):
        np.savez(tmp_path / f"client{number}.npz", **client(number, samples=number + 1))
    np.savez_compressed(tmp_path / "test.npz", **client(1, samples=3))
    (tmp_path / "readme.txt").write_text("not a shard")
    return tmp_path


def refused(folder, *words):
    with pytest.raises(DataError) as caught:
        load_npz(folder)
    for word in words:
        assert word in str(caught.value)


def test_clients_come_in_the_natural_order_of_their_names(folder):
    federation = load_npz(folder)
    assert federation.report["files"] == ("client0.npz", "client1.npz", "client2.npz", "client10.npz")
    assert federation.sizes.tolist() == [1, 2, 3, 11]
    data = federation.dataset
    assert [set(data.x_train[shard].ravel()) for shard in federation.shards] == [{0}, {1}, {2}, {10}]
    assert data.classes == 3
    assert len(data.x_test) == 3
    assert federation.optimum is None


def test_a_folder_may_be_named_by_text(folder):
    assert load_npz(str(folder)).clients == 4


def test_bytes_are_scaled_and_floating_targets_make_a_regression(tmp_path):
    for name in ("a", "test"):
        np.savez(tmp_path / f"{name}.npz", **client(255, dtype=np.uint8, labels=False))
    data = load_npz(tmp_path).dataset
    assert data.classes is None
    assert data.y_train.dtype == np.float32
    assert data.normalized(data.x_train).max() == pytest.approx(1)


def test_a_missing_folder_shard_or_test_file_is_named(tmp_path):
    refused(tmp_path / "absent", "absent", "no such folder")
    refused(tmp_path, str(tmp_path), "no .npz file")
    np.savez(tmp_path / "a.npz", **client(0))
    refused(tmp_path, "test.npz", "missing")
    (tmp_path / "a.npz").rename(tmp_path / "test.npz")
    refused(tmp_path, "no .npz file of a client")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((2, 4), np.float32)}, ["no array y", "found x"]),
        ({"z": np.zeros(1)}, ["no array x and y"]),
        ({**client(0), "x": np.zeros((2, 5), np.float32)}, ["(5,)", "(4,)", "client0.npz"]),
        ({**client(0), "x": np.zeros((3, 4), np.float32)}, ["(3, 4)", "(2,)"]),
        ({**client(0), "x": np.zeros(2, np.float32)}, ["(samples, *shape)"]),
        (client(0, samples=0), ["not empty"]),
        (client(0, dtype=np.uint8), ["x is uint8", "expected float32"]),
        (client(0, labels=False), ["y is float64", "expected int64"]),
        ({**client(0), "x": np.array([[{}] * 4] * 2)}, ["plain arrays"]),
    ],
)
@pytest.mark.parametrize("name", ["client1.npz", "test.npz"])
def test_a_file_that_does_not_fit_is_named(folder, name, arrays, words):
    np.savez(folder / name, **arrays)
    refused(folder, name, *words)


def test_a_damaged_file_is_named(folder):
    whole = (folder / "client2.npz").read_bytes()
    for content in (b"", b"nonsense", whole[: len(whole) // 2], whole[:60] + b"\x00" * 40 + whole[100:]):
        (folder / "client2.npz").write_bytes(content)
        refused(folder, "client2.npz", "cannot be read")
    with (folder / "client2.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    refused(folder, "client2.npz", "not an .npz archive")


def test_values_that_are_not_finite_are_refused(folder):
    np.savez(folder / "client1.npz", **{**client(0), "x": np.full((2, 4), np.nan, np.float32)})
    refused(folder, "not finite")


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, ">f4", np.int16])
@pytest.mark.parametrize("labels", [True, False])
def test_on_demand_rows_are_those_of_the_whole_load(tmp_path, dtype, labels):
    for number in (0, 1, 2):
        np.savez(tmp_path / f"client{number}.npz", **client(number, 3, dtype, labels))
    np.savez_compressed(tmp_path / "test.npz", **client(1, 2, dtype, labels))
    whole = load_npz(tmp_path)
    with samples_on_demand():
        lazy = load_npz(tmp_path)
    one, other = lazy.dataset, whole.dataset
    assert one.on_demand and (one.classes, one.scale, one.input_shape) == (
        other.classes,
        other.scale,
        other.input_shape,
    )
    assert np.array_equal(one.y_train, other.y_train) and one.y_train.dtype == other.y_train.dtype
    for rows in (*whole.shards, np.array([1, 5, 8])):
        assert one.x_train[rows].dtype == other.x_train.dtype
        assert np.array_equal(one.x_train[rows], other.x_train[rows])
    assert np.array_equal(np.asarray(one.x_test), other.x_test)


def test_on_demand_the_samples_of_a_client_alone_are_read(folder, monkeypatch):
    read = []
    whole = Npz.__getitem__
    monkeypatch.setattr(Npz, "__getitem__", lambda self, name: read.append((self.path.name, name)) or whole(self, name))
    with samples_on_demand():
        federation = load_npz(folder)
    assert {name for _, name in read} == {"y"}
    read.clear()
    restrict_to_clients([federation], [np.array([2])])
    assert read == [("client2.npz", "x")]


def test_on_demand_what_is_wrong_with_the_samples_of_a_client_is_named(folder):
    with samples_on_demand():
        federation = load_npz(folder)
    np.savez(folder / "client1.npz", **{**client(0), "x": np.full((2, 4), np.nan, np.float32)})
    with pytest.raises(DataError, match="not finite"):
        restrict_to_clients([federation], [np.array([1])])
    np.savez(folder / "client1.npz", **client(1, samples=5))
    with pytest.raises(DataError, match=r"client1\.npz: was changed"):
        restrict_to_clients([federation], [np.array([1])])
    (folder / "client1.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"client1\.npz: cannot be read"):
        restrict_to_clients([federation], [np.array([1])])


@pytest.mark.parametrize("name", ["client1.npz", "test.npz"])
def test_on_demand_a_file_that_does_not_fit_is_named(folder, name):
    for wrong in ({"x": np.zeros((2, 5), np.float32)}, {"y": np.zeros(2)}, {"x": np.zeros((2, 4), np.uint8)}):
        np.savez(folder / name, **{**client(0), **wrong})
        with samples_on_demand():
            refused(folder, name)
