"""Reading a checkpoint: every file compared with its checksum, and every client of every run found once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from dspodfl.engine import Piece
from dspodfl.errors import DataError, bounded
from dspodfl.network import Events
from dspodfl.study.store.files import Entry, entry_of
from dspodfl.study.store.layout import CHECKPOINTS
from dspodfl.study.store.manifest import DamagedError
from dspodfl.study.tables import read_parquet
from dspodfl.study.waves import Plan

FOLDER, MANIFEST, METRICS = CHECKPOINTS, "manifest.json", "metrics.parquet"
ACCURACIES, EVENTS = "accuracies.safetensors", "events.safetensors"
KIND = "checkpoint"
FORMAT = 3
"""What a manifest is written in; a later one is refused. 1: the rows were one file. 3: some runs are ``behind``, at an
iteration of their own; where none is, 2 is written."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError)

Entries = dict[str, Entry]
"""File -> its size, its SHA-256 and, of a shard, the runs and how many of their clients are in it."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a study after an evaluation or a pause.

    Attributes:
        plan: The waves of runs, finished and left.
        iteration: Of the wave that advances, the first of those left.
        metrics: The rows measured until then.
        pieces: Returns the state of the runs that advance, by their numbers in the study.
        finished: Run of a finished wave -> its final models, (clients, p).
        accuracies: Run -> each client's accuracy when it was last evaluated, (clients,).
        about: What else the manifest says: configuration, names of the runs, versions, seconds, options.
        events: Run -> what fired until then, where events are recorded and cannot be drawn again.
    """

    plan: Plan
    iteration: int
    metrics: pd.DataFrame
    pieces: Callable[[], Iterable[Piece]]
    finished: Mapping[int, Tensor] = field(default_factory=dict)
    accuracies: Mapping[int, Tensor] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    events: Mapping[int, Events] = field(default_factory=dict)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint, and compare every file with its checksum.

    Args:
        path: The folder of the checkpoint.

    Returns:
        The checkpoint; its tensors are mapped from the files.

    Raises:
        DamagedError: A file is missing or damaged.
        DataError: It is of a later format.
    """
    content = manifest(path)
    try:
        files: Entries = content.pop("files")
        for name, entry in files.items():
            if not (path / name).is_file():
                raise DamagedError(f"{path}: {name} is missing")
            if entry_of(path / name) != {key: entry[key] for key in ("bytes", "sha256")}:
                raise DamagedError(f"{path}: {name} is not what was written (its SHA-256 differs)")
        pieces = [piece for name, entry in files.items() if "runs" in entry for piece in _pieces(path / name)]
        own = safetensors.torch.load((path / ACCURACIES).read_bytes())
        events = _events(path / EVENTS) if EVENTS in files else {}
        plan = content.pop("plan")
        plan = Plan(**plan | {"done": tuple(plan["done"]), "left": tuple(plan["left"])})
        names = sorted(name for name in files if name.endswith(".parquet"))  # metrics.parquet is before its numbers
        names = [name for name in (METRICS, *names) if name in files]
        metrics = pd.concat([read_parquet((path / n).read_bytes()) for n in dict.fromkeys(names)], ignore_index=True)
        iteration = int(content.pop("iteration"))
    except _UNREADABLE as error:
        raise DamagedError(f"{path}: cannot be read ({error})") from error
    _check_whole(path, pieces, files)
    going = [piece for piece in pieces if "spent" in piece.clients]
    ended: dict[int, list[Tensor]] = {}
    for piece in pieces:
        if "spent" not in piece.clients:
            ended.setdefault(piece.run, []).append(piece.clients["theta"])
    finished = {run: torch.cat(models) for run, models in ended.items()}
    accuracies = {int(run): values for run, values in own.items()}
    return Checkpoint(plan, iteration, metrics, lambda: going, finished, accuracies, content, events)


def manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint, and compare it with its own checksum.

    Args:
        path: The folder of the checkpoint.

    Returns:
        What it says.

    Raises:
        DamagedError: It is missing or damaged.
        DataError: It is of a later format.
    """
    try:
        raw = (path / MANIFEST).read_bytes()
        content = bounded.parse_json(raw)
        kind, later = content.get("kind", KIND), int(content["format"]) > FORMAT  # 0.1 wrote no kind
        content.pop("sha256")
    except _UNREADABLE as error:
        raise DamagedError(f"{path}: {MANIFEST} cannot be read ({error})") from error
    if kind != KIND:
        raise DamagedError(f"{path}: {MANIFEST} is of kind {kind!r}, not of a checkpoint")
    if later:
        raise DataError(f"{path}: written by a later version of dspodfl (format {content['format']}, here {FORMAT})")
    if raw != signed(content):
        raise DamagedError(f"{path}: {MANIFEST} is not what was written (its SHA-256 differs)")
    return dict(content)


def _check_whole(path: Path, pieces: Sequence[Piece], files: Entries) -> None:
    """Every client that the manifest names is there, once."""
    wanted: dict[int, int] = {}
    for entry in files.values():
        for run, clients in entry.get("runs", {}).items():
            wanted[int(run)] = wanted.get(int(run), 0) + clients
    held: dict[int, list[int]] = {}
    for piece in pieces:
        held.setdefault(piece.run, []).extend(piece.client.tolist())
    for run, clients in wanted.items():
        if sorted(held.get(run, [])) != list(range(clients)):
            raise DamagedError(f"{path}: run {run} does not have each of its {clients} clients once")


def signed(content: Mapping[str, Any]) -> bytes:
    """Return a manifest with its own SHA-256.

    Args:
        content: What it says.

    Returns:
        The content of manifest.json.
    """
    plain = json.loads(json.dumps(content))
    return (json.dumps(plain | {"sha256": _digest(plain)}, indent=1) + "\n").encode()


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _events(path: Path) -> dict[int, Events]:
    """What fired, from bits: ``<run>/v``, ``<run>/v_hat``, and how many there are of each a row, ``<run>/counts``."""
    bits = safetensors.numpy.load(path.read_bytes())
    out = {}
    for name in bits:
        run, _, part = name.partition("/")
        if part == "counts":
            columns = zip(("v", "v_hat"), bits[name].tolist(), strict=True)
            found = (np.unpackbits(bits[f"{run}/{key}"], axis=1, count=count) for key, count in columns)
            out[int(run)] = Events(*(rows.astype(bool) for rows in found))
    return out


def _pieces(path: Path) -> Iterator[Piece]:
    """The pieces of a shard, mapped from its file: a tensor that is not used takes no memory."""
    made: dict[tuple[int, int], dict[str, dict[str, Tensor]]] = {}
    for key, values in safetensors.torch.load_file(path).items():
        number, n, table, *name = key.split("/")
        made.setdefault((int(number), int(n)), {}).setdefault(table, {})["/".join(name)] = values
    for (run, _), tables in sorted(made.items()):
        client, link = tables["client"][""], tables["link"][""]
        yield Piece(run, client, link, *(tables.get(name, {}) for name in ("clients", "links", "whole", "ends")))
