"""Named datasets on demand: the rows of the whole load, little memory, and the same refusals."""

import gzip
import pickle
import struct
import tracemalloc

import numpy as np
import pytest

from dspodfl.errors import DataError
from dspodfl.problem.data import load, samples_on_demand
from dspodfl.problem.data import named as sources
from dspodfl.problem.data.formats import read_cifar_binary, read_cifar_python, read_idx
from dspodfl.problem.data.stored_files import binary_batch, cifar_rows, idx_rows, python_batch

DRAWN = np.random.default_rng(0)
ROWS = np.array([0, 3, 7, 8, 19])
BATCH = 4
"""Samples of a batch of CIFAR-10."""


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = DRAWN.integers(0, 256, (20, 28, 28), dtype=np.uint8)


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSPODFL_DATA", str(tmp_path))
    monkeypatch.setattr(sources, "_DEBIAN_FMNIST", tmp_path / "system")


def write_idx(root, packed):
    folder = root / "mnist"
    folder.mkdir()
    labels = np.arange(20, dtype=np.uint8) % 10
    for name, array in zip(sources._IDX, (IMAGES, labels, IMAGES[:5], labels[:5]), strict=True):
        content = gzip.compress(idx(array)) if packed else idx(array)
        (folder / (name if packed else name[:-3])).write_bytes(content)
    return folder


def write_cifar(root, version):
    folder = root / f"cifar-10-batches-{version}"
    folder.mkdir()
    for name in sources._BATCHES:
        pixels = DRAWN.integers(0, 256, (BATCH, 3072), dtype=np.uint8)
        labels = DRAWN.integers(0, 10, BATCH, dtype=np.uint8)
        if version == "bin":
            (folder / f"{name}.bin").write_bytes(np.concatenate([labels[:, None], pixels], axis=1).tobytes())
        else:
            batch = {b"data": pixels, b"labels": labels.tolist()}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


KINDS = {
    "gzip": ("mnist", lambda root: write_idx(root, True)),
    "plain": ("mnist", lambda root: write_idx(root, False)),
    "binary": ("cifar10", lambda root: write_cifar(root, "bin")),
    "python": ("cifar10", lambda root: write_cifar(root, "py")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 2000, 2**20])
def test_rows_are_those_of_the_whole_load(kind, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr("dspodfl.problem.data.stored_files.CHUNK", chunk)
    name, write = KINDS[kind]
    write(tmp_path)
    whole = load(name)
    with samples_on_demand():
        lazy = load(name)
    assert lazy.on_demand and lazy.input_shape == whole.input_shape and lazy.x_train.dtype == whole.x_train.dtype
    assert np.array_equal(lazy.y_train, whole.y_train) and np.array_equal(lazy.y_test, whole.y_test)
    for rows in (ROWS, ROWS[-1:], np.arange(20)):
        assert np.array_equal(lazy.x_train[rows], whole.x_train[rows])
    assert np.array_equal(np.asarray(lazy.x_test), whole.x_test)
    assert (lazy.scale, lazy.shift, lazy.classes, lazy.class_names) == (
        whole.scale,
        whole.shift,
        whole.classes,
        whole.class_names,
    )


@pytest.mark.parametrize("packed", [True, False])
def test_the_memory_is_that_of_the_shard(packed, tmp_path):
    images = np.arange(20_000 * 28 * 28, dtype=np.uint8).reshape(20_000, 28, 28)
    file = tmp_path / "images"
    file.write_bytes(gzip.compress(idx(images), compresslevel=1) if packed else idx(images))
    rows = np.arange(0, 20_000, 100)
    tracemalloc.start()
    try:
        found = idx_rows(file, 3)[rows]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(found, images[rows])
    assert peak < images.nbytes / 8


def test_the_memory_is_that_of_the_shard_of_binary_batches(tmp_path):
    records = np.zeros((3000, 3073), dtype=np.uint8)
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(records.tobytes())
    tracemalloc.start()
    try:
        x, y = cifar_rows(files, binary_batch)
        found = x[np.array([1, 5000])]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(y) == 6000 and len(found) == 2
    assert peak < 2 * records.nbytes / 8


def refusal(read, file):
    with pytest.raises(DataError) as caught:
        read(file)
    assert str(file) in str(caught.value)
    return str(caught.value)


PACKED = gzip.compress(idx(IMAGES), mtime=0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00\x08",
        idx(IMAGES.ravel()),
        idx(IMAGES)[:10],
        idx(IMAGES)[:-1],
        idx(IMAGES) + b"\x00",
        b"\x00\x00\x08\x03" + b"\xff" * 12,
        gzip.compress(b"\x00\x00\x08\x03" + b"\xff" * 12, mtime=0),
        gzip.compress(idx(IMAGES)[:-1], mtime=0),
        gzip.compress(idx(IMAGES)[:2000], mtime=0),
        gzip.compress(idx(IMAGES) + b"\x00", mtime=0),
        b"<html>not found</html>",
    ],
    ids=lambda content: f"{len(content)}-bytes",
)
def test_a_wrong_idx_file_is_refused_in_the_words_of_the_whole_read(content, tmp_path):
    file = tmp_path / "some-file"
    file.write_bytes(content)
    expected = refusal(lambda file: read_idx(file, 3), file)
    assert refusal(lambda file: idx_rows(file, 3)[ROWS], file) == expected


@pytest.mark.parametrize(
    "content",
    [PACKED[:-9], PACKED[:12], PACKED[:10] + b"\xff" * 40, PACKED[:-8] + b"\x00" * 8, PACKED[:4000]],
    ids=lambda content: f"{len(content)}-bytes",
)
def test_a_damaged_gzip_file_is_refused_whatever_rows_are_taken(content, tmp_path):
    file = tmp_path / "some-file"
    file.write_bytes(content)
    for rows in (ROWS, ROWS[:1]):
        assert "damaged gzip file" in refusal(lambda file, rows=rows: idx_rows(file, 3)[rows], file)


def test_a_gzip_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dspodfl.problem.data.formats._MOST_BYTES", 20_000)
    monkeypatch.setattr("dspodfl.problem.data.formats.CHUNK", 1000)
    for content in (idx(IMAGES[:5]) + bytes(50_000), bytes([0, 0, 8, 3]) + b"\x7f" * 12 + bytes(50_000)):
        file = tmp_path / "some-file"
        file.write_bytes(gzip.compress(content))
        assert "more than 20000 bytes" in refusal(lambda file: idx_rows(file, 3)[ROWS[:2]], file)


def test_what_does_not_fit_into_memory_is_refused_before_it_is_allocated(tmp_path, monkeypatch):
    file = tmp_path / "some-file"
    file.write_bytes(PACKED)
    rows = idx_rows(file, 3)
    monkeypatch.setattr("dspodfl.errors.memory.available", lambda: 1000)
    with pytest.raises(DataError, match="the samples of the shard takes"):
        rows[ROWS]


@pytest.mark.parametrize("read", [binary_batch, python_batch, lambda file: idx_rows(file, 3)])
def test_what_cannot_be_opened_is_refused(tmp_path, read):
    assert "no such file" in refusal(read, tmp_path / "absent")
    assert "cannot be read" in refusal(read, tmp_path)


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3074), b"\x0a" + bytes(3072)])
def test_a_wrong_binary_batch_is_refused_in_the_words_of_the_whole_read(content, tmp_path):
    file = tmp_path / "some-file"
    file.write_bytes(content)
    assert refusal(binary_batch, file) == refusal(read_cifar_binary, file)


def test_a_wrong_python_batch_is_refused_in_the_words_of_the_whole_read(tmp_path):
    file = tmp_path / "some-file"
    file.write_bytes(pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}))
    assert refusal(python_batch, file) == refusal(read_cifar_python, file)


@pytest.mark.parametrize("part", [0, 1, 2, 3])
@pytest.mark.parametrize("packed", [True, False])
def test_damage_in_any_file_of_a_set_is_named(part, packed, tmp_path):
    name = sources._IDX[part] if packed else sources._IDX[part][:-3]
    file = write_idx(tmp_path, packed) / name
    file.write_bytes(file.read_bytes()[:-9])

    def taken(_):
        with samples_on_demand():
            load("mnist").x_train[ROWS]

    refusal(taken, file)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_changed_since_is_named(kind, tmp_path):
    name, write = KINDS[kind]
    folder = write(tmp_path)
    with samples_on_demand():
        lazy = load(name)
    file = next(file for file in folder.iterdir() if "train-images" in file.name or "data_batch_1" in file.name)
    if kind == "python":
        content = pickle.dumps({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1, 2, 3]})
    else:
        content = idx(IMAGES[:19]) if name == "mnist" else bytes(3073 * 3)
    file.write_bytes(content)
    assert "was changed" in refusal(lambda file: lazy.x_train[ROWS], file)


def test_labels_that_do_not_fit_are_refused_with_their_folder(tmp_path):
    folder = write_idx(tmp_path, True)
    (folder / sources._IDX[1]).write_bytes(idx(np.zeros(2, dtype=np.uint8)))
    with pytest.raises(DataError, match="20 samples") as caught, samples_on_demand():
        load("mnist")
    assert str(folder) in str(caught.value)
