"""A federation given as a folder of files: one .npz a client, and ``test.npz`` for all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from dspodfl.errors import DataError, bounded
from dspodfl.problem.data.dataset import Dataset, Federation, features
from dspodfl.problem.data.stored_rows import StoredRows, on_demand

TEST = "test.npz"
_Headers = tuple[bounded.Header, bounded.Header]
"""What x and y of a file are."""


def load_npz(folder: str | Path) -> Federation:
    """Load the data of clients from a folder with one .npz file a client, and ``test.npz``.

    Each file holds arrays ``x`` (samples, *shape) and ``y`` (samples,). Clients are numbered in the natural order of
    the names, client2.npz before client10.npz. Integer y are labels, floating y targets of a regression; bytes in x are
    scaled by 1/255. All files must agree in both. Inside `samples_on_demand` headers and ``y`` are read, and ``x`` of a
    client when it is taken.

    Args:
        folder: The folder.

    Returns:
        The data of the clients.

    Raises:
        DataError: A file is missing, damaged, or unlike the others.
    """
    folder = Path(folder)
    if not bounded.is_folder(folder):
        raise DataError(f"{bounded.name_of(folder)}: no such folder")
    files = sorted((file for file in folder.glob("*.npz") if file.name != TEST), key=_natural)
    if not files:
        raise DataError(f"{folder}: no .npz file of a client; expected one a client, with arrays x and y")
    if not (folder / TEST).exists():
        raise DataError(f"{folder / TEST}: missing; expected the test samples, with arrays x and y")
    headers = _headers([*files, folder / TEST])
    for file, header in zip([*files, folder / TEST], headers, strict=True):
        _check_alike(file, *header, files[0], *headers[0])
    ends = np.cumsum([x.shape[0] for x, _ in headers[:-1]])
    shards = tuple(np.split(np.arange(ends[-1]), ends[:-1]))
    x, y, x_test, y_test = (_stored if on_demand() else _whole)(folder, files, headers)
    dataset = Dataset.from_arrays(x, y, x_test, y_test, name=str(folder))
    return Federation(dataset, shards, {"files": tuple(file.name for file in files)})


def _natural(file: Path) -> tuple[list[tuple[int, str]], str]:
    """Runs of digits compare as numbers, the rest as text, equal ones by the whole name."""
    pieces = re.findall(r"\d+|\D+", file.stem)
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces], file.name


def _whole(folder: Path, files: list[Path], headers: list[_Headers]) -> tuple[Any, Any, Any, Any]:
    """Read x and y of all clients, and those of the test, if all samples fit into memory together."""
    total = sum(x.size + y.size for x, y in headers)
    bounded.fits(folder, 2 * total, "all its samples, once apart and once together,")
    parts = [_read(file, "x", "y") for file in files]
    x_test, y_test = _read(folder / TEST, "x", "y")
    x, y = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    return x, y, x_test, y_test


def _stored(folder: Path, files: list[Path], headers: list[_Headers]) -> tuple[Any, Any, Any, Any]:
    """Read y of all clients and of the test; x stay in their files."""
    bounded.fits(folder, 2 * sum(y.size for _, y in headers), "all its labels, once apart and once together,")
    *ys, y_test = (_read(file, "y")[0] for file in [*files, folder / TEST])
    train = _rows(files, [x for x, _ in headers[:-1]], f"{folder}: x_train")
    return train, np.concatenate(ys), _rows([folder / TEST], [headers[-1][0]], f"{folder}: x_test"), y_test


def _rows(files: list[Path], headers: list[bounded.Header], what: str) -> StoredRows:
    """The samples of files one after the other, each file read when rows of it are taken."""
    ends, shape = np.cumsum([header.shape[0] for header in headers]).tolist(), headers[0].shape[1:]
    dtype = features(np.zeros((0, *shape), headers[0].dtype), what).dtype

    def read(rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), *shape), dtype)
        for file, header, end in zip(files, headers, ends, strict=True):
            a, b = np.searchsorted(rows, [end - header.shape[0], end])
            if a < b:
                (x,) = _read(file, "x")
                if x.shape != header.shape or x.dtype != header.dtype:
                    raise DataError(f"{file}: was changed while it was in use")
                out[a:b] = features(x[rows[a:b] - (end - header.shape[0])], what)
        return out

    return StoredRows((ends[-1], *shape), dtype, read)


def _read(file: Path, *names: str) -> list[np.ndarray]:
    with bounded.open_npz(file) as archive:
        if set(names) - set(archive):
            raise DataError(f"{file}: was changed while it was in use")
        return [archive[name] for name in names]


def _headers(files: list[Path]) -> list[_Headers]:
    """What x and y of each file are, before any is unpacked."""
    out = []
    for file in files:
        with bounded.open_npz(file) as archive:
            if missing := {"x", "y"} - set(archive):
                wanted, found = " and ".join(sorted(missing)), ", ".join(archive) or "none"
                raise DataError(f"{file}: no array {wanted}; found {found}, expected x and y")
            x, y = archive.headers["x"], archive.headers["y"]
        if len(x.shape) < 2 or y.shape != x.shape[:1] or x.size == 0:
            raise DataError(
                f"{file}: x has shape {x.shape} and y {y.shape}; expected (samples, *shape) and (samples,), not empty"
            )
        out.append((x, y))
    return out


def _check_alike(
    file: Path,
    x: bounded.Header,
    y: bounded.Header,
    first: Path,
    first_x: bounded.Header,
    first_y: bounded.Header,
) -> None:
    if x.shape[1:] != first_x.shape[1:]:
        raise DataError(f"{file}: samples of shape {x.shape[1:]}; expected {first_x.shape[1:]}, as in {first.name}")
    for name, found, expected in (("x", x.dtype, first_x.dtype), ("y", y.dtype, first_y.dtype)):
        if found != expected:
            raise DataError(f"{file}: {name} is {found}; expected {expected}, as in {first.name}")
