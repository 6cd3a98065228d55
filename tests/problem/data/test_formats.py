"""File formats: what is written is read, and whatever is wrong is said with the file's name."""

import gzip
import os
import pickle
import struct
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspodfl.errors import DataError
from dspodfl.problem.data.formats import read_cifar_binary, read_cifar_python, read_idx

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
PIXELS = (np.arange(4 * 3072) % 251).astype(np.uint8).reshape(4, 3072)
LABELS = [3, 0, 9, 3]
INTO_TMP = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def binary_batch():
    return b"".join(bytes([label]) + pixels.tobytes() for label, pixels in zip(LABELS, PIXELS, strict=True))


def python2_batch(order="C"):
    """A batch as Python 2 and its NumPy wrote it: protocol 2, byte strings, the old module name."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    raw = PIXELS.tobytes(order)
    flag = b"\x89" if order == "C" else b"\x88"
    state = b"(K\x01K\x04M\x00\x0c\x86" + dtype + flag + b"T" + struct.pack("<I", len(raw)) + raw + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in LABELS) + b"e"
    return b"\x80\x02}(U\x04data" + array + state + b"U\x06labels" + labels + b"u."


def python3_batch(content=None, protocol=2):
    return pickle.dumps({b"data": PIXELS, b"labels": LABELS} if content is None else content, protocol=protocol)


def written(folder, content, name="some-file"):
    file = folder / name
    file.write_bytes(content)
    return file


def refused(read, file, *words):
    with pytest.raises(DataError) as caught:
        read(file)
    assert str(file) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@contextmanager
def suppress_named(name):
    """Lets pass a data error that names the file, and nothing else."""
    try:
        yield
    except DataError as error:
        if name not in str(error):
            raise


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("array", [IMAGES, IMAGES.ravel()], ids=["images", "labels"])
def test_an_idx_file_is_read_as_it_was_written(tmp_path, array, pack):
    found = read_idx(written(tmp_path, pack(idx(array))), array.ndim)
    assert found.dtype == np.uint8
    assert found.flags.writeable
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["nothing", "00 00 08 03"]),
        (b"\x00\x00\x08", ["00 00 08 03"]),
        (idx(IMAGES.ravel()), ["00 00 08 01", "00 00 08 03"]),
        (b"\x00\x00\x0d\x03" + idx(IMAGES)[4:], ["00 00 0d 03"]),
        (idx(IMAGES)[:10], ["10 bytes", "16"]),
        (idx(IMAGES)[:-1], ["75 bytes", "expected 76", "3 × 4 × 5"]),
        (idx(IMAGES) + b"\x00", ["77 bytes", "expected 76"]),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, ["4294967295"]),
        (gzip.compress(idx(IMAGES), mtime=0)[:-9], ["gzip"]),
        (gzip.compress(idx(IMAGES), mtime=0)[:12], ["gzip"]),
        (gzip.compress(idx(IMAGES), mtime=0)[:10] + b"\xff" * 40, ["gzip"]),
        (gzip.compress(idx(IMAGES), mtime=0)[:-8] + b"\x00" * 8, ["gzip"]),
        (b"<html>not found</html>", ["3c 68 74 6d"]),
    ],
)
def test_a_wrong_idx_file_is_refused_with_what_was_found_and_expected(tmp_path, content, words):
    refused(lambda file: read_idx(file, 3), written(tmp_path, content), *words)


@pytest.mark.parametrize("read", [read_cifar_binary, read_cifar_python, lambda file: read_idx(file, 1)])
def test_what_cannot_be_opened_is_refused(tmp_path, read):
    refused(read, tmp_path / "absent", "no such file")
    refused(read, tmp_path, "cannot be read")


def test_a_gzip_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dspodfl.problem.data.formats._MOST_BYTES", 1000)
    refused(
        lambda file: read_idx(file, 1), written(tmp_path, gzip.compress(bytes(5000), mtime=0)), "more than 1000 bytes"
    )


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_cifar_binary, binary_batch()),
        (read_cifar_python, python2_batch()),
        (read_cifar_python, python2_batch("F")),
        (read_cifar_python, python3_batch()),
        (read_cifar_python, python3_batch().replace(b"numpy._core.", b"numpy.core.")),
        (read_cifar_python, python3_batch({"data": PIXELS, "labels": LABELS, "batch_label": "one"})),
        (read_cifar_python, python3_batch(protocol=4)),
    ],
    ids=["binary", "python2", "python2-columns", "python3", "old-numpy", "text-keys", "protocol-4"],
)
def test_a_cifar_batch_is_read_as_it_was_written(tmp_path, read, content):
    x, y = read(written(tmp_path, content))
    assert x.shape == (4, 3, 32, 32)
    assert x.dtype == np.uint8
    assert x.flags.writeable
    assert np.array_equal(x.reshape(4, 3072), PIXELS)
    assert y.dtype == np.int64
    assert y.tolist() == LABELS


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["0 bytes", "3073"]),
        (binary_batch()[:-1], ["12291 bytes", "multiple of 3073"]),
        (b"\x0a" + binary_batch()[1:], ["labels in [0, 10]", "[0, 9]"]),
    ],
)
def test_a_wrong_binary_batch_is_refused(tmp_path, content, words):
    refused(read_cifar_binary, written(tmp_path, content), *words)


class Calls:
    """Pickles as a call of any function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


HOSTILE = {
    "system": Calls(os.system, "touch hostile-pickle-ran"),
    "eval": Calls(eval, "open('hostile-pickle-ran', 'w')"),
    "nested": {b"data": PIXELS, b"labels": [Calls(os.getcwd)]},
    "load": Calls(np.load, "some.npy"),
}


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_and_never_run(tmp_path, monkeypatch, name, protocol):
    monkeypatch.chdir(tmp_path)
    refused(read_cifar_python, written(tmp_path, pickle.dumps(HOSTILE[name], protocol=protocol)), "refused")
    assert not (tmp_path / "hostile-pickle-ran").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["pickle"]),
        (python2_batch()[:-40], ["pickle"]),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.", ["codec"]),
        (b"\x80\x02c_codecs\nencode\nN}U\x0c__defaults__)s\x86b.", ["pickle"]),
        (python3_batch([1, 2]), ["of type list", "dictionary"]),
        (python3_batch({b"data": PIXELS}), ["labels is missing"]),
        (python3_batch({b"labels": LABELS}), ["data is missing"]),
        (python3_batch({b"data": PIXELS[:, :-1], b"labels": LABELS}), ["(4, 3071)", "(samples, 3072)"]),
        (python3_batch({b"data": PIXELS.astype(np.int64), b"labels": LABELS}), ["data is an array of another"]),
        (python3_batch({b"data": PIXELS, b"labels": LABELS[:-1]}), ["4 images and 3 labels"]),
        (python3_batch({b"data": PIXELS, b"labels": [3, 0, 10, 3]}), ["labels in [0, 10]"]),
        (python3_batch({b"data": PIXELS, b"labels": [3, 0, -1, 3]}), ["labels in [-1, 3]"]),
        (python3_batch({b"data": PIXELS, b"labels": [3, 0, 1.5, 3]}), ["list of integers"]),
        (python3_batch({b"data": PIXELS[:1], b"labels": []}), ["1 images and 0 labels"]),
        (python2_batch().replace(b"K\x04M\x00\x0c\x86", b"K\x05M\x00\x0c\x86"), ["data is an array of another"]),
    ],
)
def test_a_wrong_python_batch_is_refused(tmp_path, content, words):
    refused(read_cifar_python, written(tmp_path, content), *words)


@INTO_TMP
@given(place=st.integers(0, 150), value=st.integers(0, 255), cut=st.integers(0, 200))
def test_damaged_bytes_raise_nothing_but_data_errors(tmp_path, place, value, cut):
    for content, read in (
        (python2_batch(), read_cifar_python),
        (gzip.compress(idx(IMAGES), mtime=0), lambda file: read_idx(file, 3)),
    ):
        damaged = bytearray(content[: len(content) - cut])
        if place < len(damaged):
            damaged[place] = value
        with suppress_named("some-file"):
            read(written(tmp_path, bytes(damaged)))
