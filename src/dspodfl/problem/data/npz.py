"""A federation given as a folder of files: one .npz a client, and ``test.npz`` for all."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dspodfl.errors import DataError, bounded
from dspodfl.problem.data.dataset import Dataset, Federation

TEST = "test.npz"


def load_npz(folder: str | Path) -> Federation:
    """Load the data of clients from a folder with one .npz file a client, and ``test.npz``.

    Each file holds arrays ``x`` (samples, *shape) and ``y`` (samples,). Clients are numbered in the natural order of
    the names, client2.npz before client10.npz. Integer y are labels, floating y targets of a regression; bytes in x are
    scaled by 1/255. All files must agree in both.

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
    _check_whole(folder, [*files, folder / TEST])
    parts = [_read(file) for file in files]
    x_test, y_test = _read(folder / TEST)
    for file, (x, y) in zip([*files, folder / TEST], [*parts, (x_test, y_test)], strict=True):
        _check_alike(file, x, y, files[0], *parts[0])
    ends = np.cumsum([len(x) for x, _ in parts])
    shards = tuple(np.split(np.arange(ends[-1]), ends[:-1]))
    x_train, y_train = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    dataset = Dataset.from_arrays(x_train, y_train, x_test, y_test, name=str(folder))
    return Federation(dataset, shards, {"files": tuple(file.name for file in files)})


def _natural(file: Path) -> tuple[list[tuple[int, str]], str]:
    """Runs of digits compare as numbers, the rest as text, equal ones by the whole name."""
    pieces = re.findall(r"\d+|\D+", file.stem)
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces], file.name


def _read(file: Path) -> tuple[np.ndarray, np.ndarray]:
    with bounded.open_npz(file) as archive:
        return archive["x"], archive["y"]


def _check_whole(folder: Path, files: list[Path]) -> None:
    """Check the headers of all files, and that all samples fit into memory together, before any is unpacked."""
    total = 0
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
        total += x.size + y.size
    bounded.fits(folder, 2 * total, "all its samples, once apart and once together,")


def _check_alike(
    file: Path, x: np.ndarray, y: np.ndarray, first: Path, first_x: np.ndarray, first_y: np.ndarray
) -> None:
    if x.shape[1:] != first_x.shape[1:]:
        raise DataError(f"{file}: samples of shape {x.shape[1:]}; expected {first_x.shape[1:]}, as in {first.name}")
    for name, found, expected in (("x", x.dtype, first_x.dtype), ("y", y.dtype, first_y.dtype)):
        if found != expected:
            raise DataError(f"{file}: {name} is {found}; expected {expected}, as in {first.name}")
