"""events.npz: which clients stepped and which links were used at each iteration, as bits."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from dspodfl.algorithms import Replay
from dspodfl.errors import DataError, InputError
from dspodfl.network import Events
from dspodfl.study.store.folder_reader import FolderReader

EVENTS = "events.npz"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error)

RunEvents = tuple[Events, np.ndarray]
"""The events of a run, and the links that they are of, (links, 2)."""


def packed(events: Mapping[tuple[str, int], RunEvents]) -> dict[str, np.ndarray]:
    """Return events as bits.

    Args:
        events: The events of each run, by algorithm and seed.

    Returns:
        ``algorithm/seed/v``, ``…/v_hat``, with the graph's ``…/edges`` and the ``…/shape``; of a directed graph also
        ``…/back``.
    """
    out = {}
    for (algorithm, seed), (e, edges) in events.items():
        key = f"{algorithm}/{seed}"
        out[f"{key}/v"], out[f"{key}/v_hat"] = np.packbits(e.v, axis=1), np.packbits(e.v_hat, axis=1)
        if e.back is not None:
            out[f"{key}/back"] = np.packbits(e.back, axis=1)
        out[f"{key}/edges"] = edges
        out[f"{key}/shape"] = np.array([*e.v.shape, e.v_hat.shape[1]])
    return out


def read(files: FolderReader) -> dict[tuple[str, int], RunEvents]:
    """Read the events of a run.

    Args:
        files: The folder of the run.

    Returns:
        The events of each recorded run, by algorithm and seed; empty where events were not recorded.

    Raises:
        DataError: The file is missing or damaged.
    """
    if not files.holds(EVENTS):
        return {}
    out = {}
    with np.load(io.BytesIO(files.read(EVENTS)), allow_pickle=False) as archive:
        for name in archive.files:
            key, _, part = name.rpartition("/")
            if part == "shape":
                algorithm, _, seed = key.rpartition("/")
                out[algorithm, int(seed)] = _unpacked(archive, key)
    return out


def replay(path: str | Path, algorithm: str, seed: int) -> Replay:
    """Return the recorded events of one run as a schedule.

    Args:
        path: The ``events.npz`` that ``--record-events`` writes.
        algorithm: The label of the algorithm of the run.
        seed: The seed of the run.

    Returns:
        A schedule with the same events.

    Raises:
        InputError: This run was not recorded.
        DataError: The file is missing or damaged.
    """
    path = Path(path)
    try:
        content = FolderReader(path.parent).read(path.name)
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            key = f"{algorithm}/{seed}"
            if f"{key}/v" not in archive:
                runs = sorted({name.rsplit("/", 1)[0] for name in archive.files})
                raise InputError("replay", key, f"one of the recorded runs: {', '.join(runs)}")
            return Replay(*_unpacked(archive, key))
    except InputError:
        raise
    except _UNREADABLE as error:
        raise DataError(f"{path}: not a record of events ({error})") from error


def _unpacked(archive: Mapping[str, np.ndarray], key: str) -> tuple[Events, np.ndarray]:
    _, n, links = archive[f"{key}/shape"].tolist()
    directed = f"{key}/back" in archive
    events = (
        np.unpackbits(archive[f"{key}/{part}"], axis=1, count=count).astype(bool)
        for part, count in (("v", n), ("v_hat", links), *([("back", links)] if directed else []))
    )
    return Events(*events), archive[f"{key}/edges"]
