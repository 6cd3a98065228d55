"""Named image datasets: found on this machine, else downloaded once and checked.

Searched in this order: ``$DSPODFL_DATA`` (or ``root``), ``~/.cache/dspodfl``, and for Fashion-MNIST the folder of
Debian's package. Files found are read whatever their hash; a set with a missing file is not used; a damaged file
is an error, never a reason to download another. ``fmnist-mini`` comes with the package.

To add a dataset, add a function here under ``@DATASETS.register()`` that returns a `Dataset`: its first docstring line
is what users read; its arguments are ``seed``, where it is drawn for each seed, and its parameters, each annotated with
its range and a `Doc`. Configuration, template, docs and ``dspodfl list`` follow.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dspodfl.errors import DataError, InputError, Registry, nearest
from dspodfl.problem.data.dataset import Dataset
from dspodfl.problem.data.downloads import downloading
from dspodfl.problem.data.formats import read_cifar_binary, read_cifar_python, read_idx
from dspodfl.problem.data.stored_files import binary_batch, check_idx, cifar_rows, idx_rows, python_batch
from dspodfl.problem.data.stored_rows import on_demand
from dspodfl.problem.data.synthetic import synthetic

DATASETS: Registry[Dataset] = Registry("data.name", context=("seed", "root", "progress"))
"""The named datasets. Context: ``seed``; ``root``, which takes the place of ``$DSPODFL_DATA``; ``progress``, whether a
download reports. Facts: ``size``, its samples, the numbers of a sample and the bytes of a number."""
MINI_FILE = "fmnist_mini.npz"
_DEBIAN_FMNIST = Path("/usr/share/datasets/fashion-mnist")
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_DIGITS = tuple("0123456789")
_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_GREY = (1 / (255 * 0.3081), -0.1307 / 0.3081)  # scale and shift of (x/255 − 0.1307) / 0.3081
_COLOUR = (1 / 127.5, -1.0)  # of (x/255 − 0.5) / 0.5

_IDX = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_BATCHES = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class _Source:
    """Where a dataset comes from: ``fetched`` are address -> hash, ``hashes`` those of the files in the folder."""

    title: str
    folder: str
    hashes: Mapping[str, str]
    fetched: Mapping[str, str]


def _idx_source(title: str, folder: str, address: str, hashes: tuple[str, ...]) -> _Source:
    of_file = dict(zip(_IDX, hashes, strict=True))
    return _Source(title, folder, of_file, {address + name: known for name, known in of_file.items()})


_FMNIST = _idx_source(
    "Fashion-MNIST",
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        "sha256:b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
        "sha256:0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
        "sha256:cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
        "sha256:8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    ),
)
_MNIST = _idx_source(
    "MNIST",
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
_CIFAR = _Source(
    "CIFAR-10",
    "cifar-10-batches-bin",
    {
        "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    {
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": (
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        )
    },
)


def load(name: str, root: Path | None = None, progress: bool = True) -> Dataset:
    """Load a dataset by name; images are (channels, height, width), bytes.

    Args:
        name: fmnist-mini, fmnist, mnist or cifar10.
        root: The folder to look in, in place of ``$DSPODFL_DATA``.
        progress: Whether `downloading` is called.

    Returns:
        The dataset.

    Raises:
        InputError: There is no such dataset.
        DataError: Its files are damaged, or could not be downloaded.

    >>> load("fmnist-mini").input_shape
    (1, 28, 28)
    """
    known = fixed_names()
    if name not in known:
        raise InputError("data.name", name, f"one of {', '.join(known)}{nearest(name, known)}")
    return DATASETS[name].make({"root": root, "progress": progress}, {})


def fixed_names() -> list[str]:
    """List the datasets that are the same whatever the seed."""
    return [name for name, entry in DATASETS.items() if not entry.takes("seed")]


@DATASETS.register("fmnist-mini", size=(7_000, 784, 1))
def fmnist_mini() -> Dataset:
    """6,000 + 1,000 images of Fashion-MNIST, inside the package."""
    file = resources.files("dspodfl.problem.data") / MINI_FILE
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        parts = [arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    return _grey_dataset("fmnist-mini", parts, _CLOTHES)


@DATASETS.register(size=(70_000, 784, 1))
def fmnist(root: Path | None, progress: bool) -> Dataset:
    """Fashion-MNIST, 60,000 + 10,000 images; found in $DSPODFL_DATA or a cache, else downloaded."""
    return _idx_dataset("fmnist", _locate(_FMNIST, root, progress, also=(_DEBIAN_FMNIST,)), _CLOTHES)


@DATASETS.register(size=(70_000, 784, 1))
def mnist(root: Path | None, progress: bool) -> Dataset:
    """MNIST, 60,000 + 10,000 images; found or downloaded."""
    return _idx_dataset("mnist", _locate(_MNIST, root, progress), _DIGITS)


@DATASETS.register(size=(60_000, 3072, 1))
def cifar10(root: Path | None, progress: bool) -> Dataset:
    """CIFAR-10, 50,000 + 10,000 colour images; found or downloaded."""
    files, read = _cifar_files(root, progress)
    if on_demand():
        batch = binary_batch if read is read_cifar_binary else python_batch
        rows: Any
        held_out: Any
        (rows, y_train), (held_out, y_test) = cifar_rows(files[:-1], batch), cifar_rows(files[-1:], batch)
        return Dataset("cifar10", rows, y_train, held_out, y_test, 10, *_COLOUR, _OBJECTS)
    batches = [read(file) for file in files]
    x_train, y_train = (np.concatenate([batch[side] for batch in batches[:-1]]) for side in (0, 1))
    x_test, y_test = batches[-1]
    return Dataset("cifar10", x_train, y_train, x_test, y_test, 10, *_COLOUR, _OBJECTS)


DATASETS.register()(synthetic)


def _idx_dataset(name: str, folder: Path, class_names: tuple[str, ...]) -> Dataset:
    packed = [folder / file for file in _IDX]
    files = [file if file.is_file() else file.with_suffix("") for file in packed]
    images: Callable[[Path, int], Any] = idx_rows if on_demand() else read_idx
    parts = [images(files[0], 3), read_idx(files[1], 1), images(files[2], 3), read_idx(files[3], 1)]
    if on_demand():
        check_idx(parts[2])  # training reads no test sample: damage would not be found
    try:
        return _grey_dataset(name, parts, class_names)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from None


def _grey_dataset(name: str, parts: list[np.ndarray], class_names: tuple[str, ...]) -> Dataset:
    x_train, y_train, x_test, y_test = parts
    y_train, y_test = y_train.astype(np.int64), y_test.astype(np.int64)
    x_train, x_test = (x.reshape(len(x), 1, *x.shape[1:]) for x in (x_train, x_test))
    return Dataset(name, x_train, y_train, x_test, y_test, 10, *_GREY, class_names)


def _cifar_files(
    root: Path | None, progress: bool
) -> tuple[list[Path], Callable[[Path], tuple[np.ndarray, np.ndarray]]]:
    for place in _roots(root):
        pickled = [place / "cifar-10-batches-py" / name for name in _BATCHES]
        if _complete(place / _CIFAR.folder, _CIFAR):
            break  # the first place wins, and in one place the binary version does
        if all(file.is_file() for file in pickled):
            return pickled, read_cifar_python
    folder = _locate(_CIFAR, root, progress)
    return [folder / name for name in _CIFAR.hashes], read_cifar_binary


def _roots(root: Path | None) -> list[Path]:
    given = root if root is not None else os.environ.get("DSPODFL_DATA")
    cache = Path.home() / ".cache" / "dspodfl"
    return [Path(given).expanduser(), cache] if given else [cache]


def _complete(folder: Path, source: _Source) -> bool:
    return all((folder / name).is_file() or (folder / name.removesuffix(".gz")).is_file() for name in source.hashes)


def _locate(source: _Source, root: Path | None, progress: bool, also: tuple[Path, ...] = ()) -> Path:
    """The first folder that holds every file of a source; if there is none, the one they are downloaded into."""
    folders = [*(place / source.folder for place in _roots(root)), *also]
    for folder in folders:
        if _complete(folder, source):
            return folder
    target = folders[0]
    try:
        for name, known in source.hashes.items():
            _refuse_other(target / name, known, source)
        _download(source, target, progress)
    except DataError:
        raise
    except Exception as error:  # offline, a full disk, a wrong hash, or whatever else prevents a download
        raise DataError(_how_to_get(source, target, folders, error)) from error
    return target


def _refuse_other(file: Path, known: str, source: _Source) -> None:
    """A file that is there but is not the published one belongs to the user: it is neither used nor replaced."""
    import pooch

    algorithm, _, value = known.partition(":")
    if file.is_file() and pooch.file_hash(str(file), alg=algorithm) != value:
        raise DataError(
            f"{file}: not the published file of {source.title} ({algorithm} differs), and other files of the set "
            f"are missing; add them, or remove this file and have the set downloaded"
        )


def _download(source: _Source, target: Path, progress: bool) -> None:
    import pooch

    for address, known in source.fetched.items():
        name = address.rpartition("/")[2]
        into = target if name in source.hashes else target.parent
        _refuse_other(into / name, known, source)
        already = (into / name).exists()
        # pooch writes to a temporary name, checks the hash, and only then renames
        bar = _Bar(name) if progress else False
        file = Path(pooch.retrieve(address, known, fname=name, path=into, progressbar=bar))
        if name not in source.hashes:
            _unpack(file, source, target)
            if not already:
                file.unlink()


class _Bar:
    """Progress in the form that pooch expects: passed to `downloading`, else a line on a terminal."""

    def __init__(self, name: str) -> None:
        self._name, self._size, self._line = name, 0, False
        self.total = 0

    def update(self, size: int) -> None:
        """Count ``size`` more bytes."""
        self._size += size
        share = min(1.0, self._size / self.total) if self.total else 0.0
        text = f"downloading {self._name}, {self._size / 1e6:,.1f} of {self.total / 1e6:,.1f} MB"
        report = downloading.get()
        if report is not None:
            report(text, share)
        elif sys.stderr is not None and sys.stderr.isatty():
            self._line = True
            sys.stderr.write(f"\r{share:4.0%}  {text}")
            sys.stderr.flush()

    def reset(self) -> None:
        """Start again at 0; pooch then adds the whole size once more."""
        self._size = 0

    def close(self) -> None:
        """End the line."""
        if self._line:
            sys.stderr.write("\n")


def _unpack(archive: Path, source: _Source, target: Path) -> None:
    """The files of a source out of an archive; no name or link in it decides where anything is written."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=target) as unpacked:
        for name in source.hashes:
            member = tar.extractfile(f"{source.folder}/{name}")
            if member is None:
                raise DataError(f"{archive}: {source.folder}/{name} is no plain file")
            (Path(unpacked) / name).write_bytes(member.read())
        for name in source.hashes:
            os.replace(Path(unpacked) / name, target / name)


def _how_to_get(source: _Source, target: Path, folders: list[Path], error: Exception) -> str:
    within = target if len(source.fetched) > 1 else target.parent
    lines = [
        f"{source.title} is not on this machine and could not be downloaded ({type(error).__name__}: {error}).",
        f"Put {'these files' if len(source.fetched) > 1 else 'this file'} into {within}:",
        *(f"  {address.rpartition('/')[2]}  from {address}" for address in source.fetched),
        f"or set DSPODFL_DATA to the folder that holds {source.folder}/ with {', '.join(source.hashes)}.",
        f"Looked in: {', '.join(map(str, folders))}.",
    ]
    return "\n".join(lines)
