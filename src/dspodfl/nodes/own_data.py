"""Data that a node brings itself: a folder with ``train.npz`` and, if it has a test set of its own, ``test.npz``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspodfl.errors import DataError, bounded
from dspodfl.problem.data import Dataset, Federation

if TYPE_CHECKING:
    from dspodfl.nodes.job import Job

TRAIN, TEST = "train.npz", "test.npz"


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
    x, y = _read(folder / TRAIN)
    x_test, y_test = _read(folder / TEST) if (folder / TEST).exists() else (x[:1], y[:1])
    dataset = Dataset.from_arrays(x, y, x_test, y_test, name=str(folder))
    own, one = np.arange(len(x)), np.zeros(1, dtype=np.int64)
    return Federation(dataset, tuple(own if i == id else one for i in range(clients)), {"files": (TRAIN,)})


def _read(file: Path) -> tuple[np.ndarray, np.ndarray]:
    with bounded.open_npz(file) as archive:
        if missing := {"x", "y"} - set(archive):
            raise DataError(f"{file}: no array {' and '.join(sorted(missing))}; expected x and y")
        return archive["x"], archive["y"]


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
