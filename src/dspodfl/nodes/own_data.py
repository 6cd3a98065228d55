"""Data that a node brings itself: a folder with ``train.npz`` and, if it has a test set of its own, ``test.npz``.

``train.npz`` has arrays x, (samples, *shape), and y, (samples,). Where a node does not hold every class it says how
many there are: ``classes``, a number. The samples never leave the node; their shape and the number of each label are
written to ``data.json`` in the node's folder, for ``dspodfl nodes collect``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspodfl.errors import DataError, bounded
from dspodfl.problem.data import Dataset, Federation
from dspodfl.study.store import write

if TYPE_CHECKING:
    from dspodfl.nodes.job import Job

TRAIN, TEST = "train.npz", "test.npz"
DESCRIPTION = "data.json"
"""In the folder of a node: the shape of its samples, and how many there are."""
_MOST_LABELS = 10**9


def own_federation(folder: Path, id: int, clients: int) -> Federation:
    """Read the samples of a node.

    Args:
        folder: Holds train.npz with arrays x (samples, *shape) and y (samples,), and test.npz if there is one.
        id: The client that they belong to.
        clients: The number of clients; the others are taken to hold one sample each, which is never looked at.

    Returns:
        The federation.

    Raises:
        DataError: A file is missing or cannot be read.
    """
    if not bounded.is_folder(folder):
        raise DataError(f"{bounded.name_of(folder)}: no such folder")
    x, y, classes = _read(folder / TRAIN)
    x_test, y_test, _ = _read(folder / TEST) if (folder / TEST).exists() else (x[:1], y[:1], None)
    dataset = Dataset.from_arrays(x, y, x_test, y_test, name=str(folder))
    if classes is not None:
        dataset = replace(dataset, classes=classes)
    own, one = np.arange(len(x)), np.zeros(1, dtype=np.int64)
    return Federation(dataset, tuple(own if i == id else one for i in range(clients)), {"files": (TRAIN,)})


def _read(file: Path) -> tuple[np.ndarray, np.ndarray, int | None]:
    with bounded.open_npz(file) as archive:
        if missing := {"x", "y"} - set(archive):
            raise DataError(f"{file}: no array {' and '.join(sorted(missing))}; expected x and y")
        given = archive["classes"] if "classes" in set(archive) else None
        if given is not None and (given.size != 1 or given.dtype.kind not in "iu"):
            raise DataError(f"{file}: classes must be one integer")
        return archive["x"], archive["y"], None if given is None else int(given.reshape(-1)[0])


def write_description(folder: Path, dataset: Dataset) -> None:
    """Write what the data of a node are like, without any of them.

    Args:
        folder: The folder of the node.
        dataset: Its samples.

    Raises:
        DataError: It cannot be written.
    """
    labels = None if dataset.classes is None else np.bincount(dataset.y_train, minlength=dataset.classes).tolist()
    about = {"shape": dataset.input_shape, "classes": dataset.classes, "samples": len(dataset.x_train)}
    try:
        write(folder / DESCRIPTION, (json.dumps({**about, "labels": labels}) + "\n").encode())
    except OSError as error:
        raise DataError(f"{folder / DESCRIPTION}: cannot be written ({error.strerror})") from None


def stand_in(folders: Mapping[int, Path], clients: int) -> Federation | None:
    """Return data of the shape that those of nodes have: every sample is 0. Nothing can be evaluated on them.

    Args:
        folders: Node -> its folder.
        clients: The number of clients; one without a folder is taken to hold one sample.

    Returns:
        The federation, with the number of samples of each label of each client; None where no node says what its data
        are like.

    Raises:
        DataError: What a node says is damaged, or of another shape than what the others say.
    """
    found = {id: _description(path / DESCRIPTION) for id, path in folders.items() if (path / DESCRIPTION).exists()}
    if not found:
        return None
    shape, classes = next(iter(found.values()))[:2]
    for id, one in found.items():
        if one[:2] != (shape, classes):
            raise DataError(f"{folders[id] / DESCRIPTION}: samples or classes are not those of the other nodes")
    ys = [found[i][2] if i in found else np.zeros(1, np.int64 if classes else np.float32) for i in range(clients)]
    y, ends = np.concatenate(ys), np.cumsum([len(labels) for labels in ys])
    x = np.zeros((len(y), *shape), np.uint8)
    dataset = Dataset("data of the nodes", x, y, x[:1], y[:1], classes, about={"stand_in": True})
    shards = tuple(np.arange(end - len(labels), end) for labels, end in zip(ys, ends, strict=True))
    return Federation(dataset, shards, {"files": (TRAIN,)})


def _description(file: Path) -> tuple[tuple[int, ...], int | None, np.ndarray]:
    """Shape of a sample, number of classes, labels or targets of the samples."""
    about = bounded.read_json(file, 2**24)
    try:
        shape, classes, labels = tuple(map(int, about["shape"])), about["classes"], about["labels"]
        count = int(about["samples"]) if labels is None else sum(labels)
        if not 0 < count <= _MOST_LABELS or min(shape, default=0) < 1 or (labels is None) is not (classes is None):
            raise ValueError
        y = np.zeros(count, np.float32) if labels is None else np.repeat(np.arange(len(labels)), labels)
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{file}: damaged") from None
    return shape, classes, y


def own_score(folder: Path, job: Job) -> Callable[[np.ndarray], tuple[float, float]]:
    """Return what evaluates a model on the test set of a node.

    Args:
        folder: The node's data.
        job: The run.

    Returns:
        A function: a model, (p,), to the loss and the accuracy; the accuracy is NaN for a regression.
    """
    data = job.run.data.dataset
    x = torch.from_numpy(data.normalized(data.x_test)).to(job.client.dtype)
    y = torch.from_numpy(data.y_test)
    model = job.client.model

    def score(theta: np.ndarray) -> tuple[float, float]:
        point = torch.from_numpy(np.ascontiguousarray(theta)).to(job.client.dtype)
        with torch.no_grad():
            target = y.to(job.client.dtype) if y.is_floating_point() else y
            loss = float(model.objective(point, x, target))
            if y.is_floating_point():
                return loss, float("nan")
            found = model.scores(point, x).argmax(dim=-1)
            return loss, float((found == y).double().mean())

    return score
