"""Named datasets: where they are looked for, what is said when they are nowhere, and the set in the package."""

import gzip
import io
import pickle
import struct
import tarfile

import numpy as np
import pooch
import pytest

from dspodfl.errors import DataError, InputError
from dspodfl.problem.data import load
from dspodfl.problem.data import named as sources


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_set(folder, pixel, packed=True, skip=()):
    """A tiny set whose every pixel tells the folder it came from."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.array([0, 9, 4], dtype=np.uint8)
    images = np.full((3, 28, 28), pixel, dtype=np.uint8)
    for name, array in zip(sources._IDX, (images, labels, images, labels), strict=True):
        if name not in skip:
            name, content = (name, gzip.compress(idx(array), mtime=0)) if packed else (name[:-3], idx(array))
            (folder / name).write_bytes(content)


def binary_batch(pixel):
    return bytes([7]) + bytes([pixel]) * 3072


def write_cifar(root, pixel, version="bin"):
    folder = root / f"cifar-10-batches-{version}"
    folder.mkdir(parents=True)
    for name in sources._BATCHES:
        if version == "bin":
            (folder / f"{name}.bin").write_bytes(binary_batch(pixel))
        else:
            batch = {b"data": np.full((1, 3072), pixel, dtype=np.uint8), b"labels": [7]}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """A home, a data folder and a system folder of the test's own, and no network."""

    def offline(*args, **kwargs):
        raise ConnectionError("the network is unreachable")

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSPODFL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sources, "_DEBIAN_FMNIST", tmp_path / "system")
    monkeypatch.setattr(pooch, "retrieve", offline)
    return {
        "data": tmp_path / "data",
        "cache": tmp_path / "home" / ".cache" / "dspodfl",
        "system": tmp_path / "system",
    }


def pixel_of(name, **arguments):
    return int(load(name, **arguments).x_train.max())


def test_folders_are_searched_in_order(places, monkeypatch, tmp_path):
    write_idx_set(places["system"], 3)
    assert pixel_of("fmnist") == 3
    write_idx_set(places["cache"] / "fashion-mnist", 2)
    assert pixel_of("fmnist") == 2
    write_idx_set(places["data"] / "fashion-mnist", 1)
    assert pixel_of("fmnist") == 1
    write_idx_set(tmp_path / "given" / "fashion-mnist", 4)
    assert pixel_of("fmnist", root=tmp_path / "given") == 4
    monkeypatch.delenv("DSPODFL_DATA")
    assert pixel_of("fmnist") == 2


def test_a_set_with_a_missing_file_is_not_used(places):
    write_idx_set(places["data"] / "fashion-mnist", 1, skip=(sources._IDX[3],))
    write_idx_set(places["cache"] / "fashion-mnist", 2)
    assert pixel_of("fmnist") == 2


def test_plain_and_packed_files_are_read_alike(places):
    write_idx_set(places["data"] / "mnist", 1, packed=False)
    data = load("mnist")
    assert data.name == "mnist"
    assert data.input_shape == (1, 28, 28)
    assert data.y_train.tolist() == [0, 9, 4]
    assert data.class_names == tuple("0123456789")


def test_mnist_does_not_take_the_files_of_fashion_mnist(places):
    write_idx_set(places["system"], 3)
    with pytest.raises(DataError, match="MNIST is not on this machine"):
        load("mnist")


def test_a_damaged_file_is_an_error_and_not_a_reason_to_look_elsewhere(places):
    write_idx_set(places["data"] / "fashion-mnist", 1)
    write_idx_set(places["cache"] / "fashion-mnist", 2)
    broken = places["data"] / "fashion-mnist" / sources._IDX[0]
    broken.write_bytes(broken.read_bytes()[:-9])
    with pytest.raises(DataError, match="gzip") as caught:
        load("fmnist")
    assert str(broken) in str(caught.value)


def test_files_that_do_not_fit_each_other_are_refused_with_their_folder(places):
    folder = places["data"] / "fashion-mnist"
    write_idx_set(folder, 1)
    (folder / sources._IDX[1]).write_bytes(idx(np.zeros(2, dtype=np.uint8)))
    with pytest.raises(DataError, match="3 samples") as caught:
        load("fmnist")
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["fmnist", "mnist"])
def test_offline_the_error_names_files_folder_and_addresses(places, name):
    with pytest.raises(DataError) as caught:
        load(name)
    text, source = str(caught.value), {"fmnist": sources._FMNIST, "mnist": sources._MNIST}[name]
    assert "the network is unreachable" in text
    assert str(places["data"] / source.folder) in text
    assert "DSPODFL_DATA" in text
    for file in sources._IDX:
        assert f"{file}  from http" in text


def test_offline_the_error_for_cifar_names_archive_files_and_folder(places, monkeypatch):
    monkeypatch.delenv("DSPODFL_DATA")
    with pytest.raises(DataError) as caught:
        load("cifar10")
    for words in (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        f"into {places['cache']}",
        "cifar-10-batches-bin/",
        "data_batch_5.bin",
        "test_batch.bin",
    ):
        assert words in str(caught.value)


def test_both_versions_of_cifar_are_found_and_the_first_folder_wins(places):
    write_cifar(places["cache"], 4, "bin")
    assert pixel_of("cifar10") == 4
    write_cifar(places["data"], 5, "py")
    assert pixel_of("cifar10") == 5
    write_cifar(places["data"], 6, "bin")
    data = load("cifar10")
    assert data.x_train.shape == (5, 3, 32, 32)
    assert data.x_test.shape == (1, 3, 32, 32)
    assert data.y_train.tolist() == [7] * 5
    assert data.x_train.max() == 6
    assert data.class_names[7] == "horse"
    assert np.allclose(data.normalized(np.array([0, 255], dtype=np.uint8)), [-1, 1])


def test_downloads_go_into_the_data_folder_with_their_hashes(places, tmp_path, monkeypatch):
    write_idx_set(tmp_path / "server", 8)
    asked = []

    def retrieve(url, known_hash, fname, path, progressbar):
        asked.append((url, known_hash, progressbar))
        path.mkdir(parents=True, exist_ok=True)
        (path / fname).write_bytes((tmp_path / "server" / fname).read_bytes())
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert pixel_of("mnist", progress=False) == 8
    assert (places["data"] / "mnist" / sources._IDX[0]).is_file()
    assert [url.rpartition("/")[2] for url, _, _ in asked] == list(sources._IDX)
    assert asked[0][1:] == ("sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", False)
    assert pixel_of("mnist") == 8
    assert len(asked) == 4


def archive(path, extra=()):
    with tarfile.open(path, "w:gz") as tar:
        for name in (*(f"cifar-10-batches-bin/{batch}.bin" for batch in sources._BATCHES), *extra):
            member = tarfile.TarInfo(name)
            member.size = 3073
            tar.addfile(member, io.BytesIO(binary_batch(9)))
    return path


def test_the_archive_is_unpacked_without_what_else_it_holds(places, monkeypatch):
    def retrieve(url, known_hash, fname, path, progressbar):
        path.mkdir(parents=True, exist_ok=True)
        return str(archive(path / fname, extra=["../escaped", "/tmp/escaped-too", "cifar-10-batches-bin/other"]))

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert pixel_of("cifar10") == 9
    assert sorted(file.name for file in (places["data"]).rglob("*")) == [
        "cifar-10-batches-bin",
        *sorted(f"{batch}.bin" for batch in sources._BATCHES),
    ]


@pytest.mark.parametrize("fails", [False, True], ids=["other-content", "breaks-off"])
def test_a_download_that_is_not_whole_leaves_no_file(places, monkeypatch, fails):
    def downloader(url, output, _):
        with open(output, "wb") as file:
            file.write(b"half")
        if fails:
            raise ConnectionError("broke off")

    monkeypatch.undo()
    monkeypatch.setenv("DSPODFL_DATA", str(places["data"]))
    monkeypatch.setenv("HOME", str(places["cache"]))
    monkeypatch.setattr(pooch.core, "choose_downloader", lambda url, progressbar: downloader)
    with pytest.raises(DataError, match="could not be downloaded") as caught:
        load("mnist", progress=False)
    assert ("broke off" if fails else "hash") in str(caught.value)
    assert not [file for file in places["data"].rglob("*") if file.is_file()]


def test_a_users_file_is_never_replaced_by_a_download(places):
    folder = places["data"] / "mnist"
    write_idx_set(folder, 1, skip=(sources._IDX[2],))
    before = (folder / sources._IDX[0]).read_bytes()
    with pytest.raises(DataError, match="not the published file of MNIST"):
        load("mnist")
    assert (folder / sources._IDX[0]).read_bytes() == before


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'fmnist'") as caught:
        load("fmnits")
    assert caught.value.field == "data.name"


def test_the_mini_set_is_balanced_and_needs_no_file_or_network():
    data = load("fmnist-mini")
    assert data.x_train.shape == (6000, 1, 28, 28)
    assert data.x_test.shape == (1000, 1, 28, 28)
    assert data.x_train.dtype == np.uint8
    assert np.bincount(data.y_train).tolist() == [600] * 10
    assert np.bincount(data.y_test).tolist() == [100] * 10
    assert len({image.tobytes() for image in np.concatenate([data.x_train, data.x_test])}) >= 6990


def test_the_mini_set_is_normalized_as_in_the_experiments():
    data = load("fmnist-mini")
    inputs = data.normalized(data.x_test)
    assert inputs.dtype == np.float32
    assert np.allclose(inputs, (data.x_test / 255 - 0.1307) / 0.3081, atol=1e-6)
