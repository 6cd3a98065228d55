"""What a node reads of the data of its study: all labels, and the samples of its own shard."""

import gzip
import struct

import numpy as np
import pytest
from tests.nodes.harness import config

from dspodfl import Config
from dspodfl.errors import DataError, InputError
from dspodfl.nodes.process import NodeOptions, prepare, restricted
from dspodfl.problem.data import StoredRows
from dspodfl.study import build

DRAWN = np.random.default_rng(0)
SAMPLES = 60


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist(folder):
    (folder / "mnist").mkdir()
    for part, samples in (("train", SAMPLES), ("t10k", 10)):
        images = DRAWN.integers(0, 256, (samples, 28, 28), dtype=np.uint8)
        labels = np.arange(samples, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            (folder / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    return {"data": {"name": "mnist", "partition": {"kind": "labels", "per_client": 3}}}


def npz(folder):
    for name in ("0", "1", "2", "3", "test"):
        x, y = DRAWN.normal(size=(SAMPLES // 4, 6, 6)), np.arange(SAMPLES // 4) % 3
        np.savez(folder / f"{name}.npz", x=x, y=y)
    return {"data": {"name": "npz", "path": str(folder)}, "model": {"name": "logistic", "l2": 0.1}}


def described(kind, folder):
    given = config(iterations=5, seeds=2).model_dump(exclude_unset=True)
    return Config(**{**given, **kind(folder)})


@pytest.fixture
def read(monkeypatch, tmp_path):
    """The numbers of the rows that were read, whatever file they were in."""
    monkeypatch.setenv("DSPODFL_DATA", str(tmp_path))
    rows, take = [], StoredRows.__getitem__
    monkeypatch.setattr(StoredRows, "__getitem__", lambda self, index: rows.append(index) or take(self, index))
    return rows


@pytest.mark.parametrize("kind", [mnist, npz])
def test_a_node_reads_the_samples_of_its_shards_alone(kind, tmp_path, read):
    given = described(kind, tmp_path)
    resolved, whole = build(given)
    assert read == []
    found = prepare(given, NodeOptions(2, tmp_path / "out"))[1]
    (rows,) = read
    held = np.unique(np.concatenate([setting.data.shards[2] for setting in whole.settings]))
    assert np.array_equal(rows, held) and len(rows) < SAMPLES
    for one, other in zip(found.settings, restricted(resolved, whole, 2).settings, strict=True):
        assert one.data.dataset.x_train.dtype == other.data.dataset.x_train.dtype
        assert np.array_equal(one.data.dataset.x_train, other.data.dataset.x_train)
        assert np.array_equal(one.data.dataset.y_train, other.data.dataset.y_train)
        assert all(map(np.array_equal, one.data.shards, other.data.shards))
    assert found.model.parameters == whole.model.parameters
    if kind is npz:  # θ* would take the samples of all, and serves evaluation alone
        assert whole.settings[0].data.optimum is not None and found.settings[0].data.optimum is None


def test_a_file_that_is_damaged_is_named(tmp_path, read):
    given = described(mnist, tmp_path)
    file = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match="train-images"):
        prepare(given, NodeOptions(0, tmp_path / "out"))


def test_an_attack_on_labels_is_refused_as_ever(tmp_path, read):
    given = described(mnist, tmp_path)
    attacked = Config(**given.model_dump(exclude_unset=True), attack={"clients": [1], "kind": "label_flip"})
    with pytest.raises(InputError, match="under attack"):
        prepare(attacked, NodeOptions(0, tmp_path / "out"))
