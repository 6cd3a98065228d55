"""Checkpoints of a node on disk: one file each, written whole or not at all; the last few are kept.

A file is a line of JSON (what the arrays are, and the SHA-256 of their bytes) and the arrays. Files are numbered in the
order in which they were written: two may be of one iteration.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dspodfl.errors import DataError
from dspodfl.protocol import Checkpoint
from dspodfl.study.store import write

_KIND, _FORMAT = "checkpoint of a node", 1
_PREFIX, _SUFFIX = "checkpoint-", ".bin"
_MAX_HEADER = 1 << 24


@dataclass(frozen=True)
class Found:
    """What the files of a folder hold.

    Args:
        checkpoint: The newest that is intact; its value and payloads are arrays. None: there is none.
        saved: The iterations of the intact ones, oldest first.
        notes: What is wrong with the others, a sentence each.
    """

    checkpoint: Checkpoint | None
    saved: list[int]
    notes: list[str]


class CheckpointFiles:
    """The checkpoints of one node in one run.

    Args:
        folder: Where they are; it is made when the first is written.
        about: What must be the same in every file: the run, the node. Others are refused.
        keep: How many of the newest are kept.
    """

    def __init__(self, folder: Path, about: dict[str, Any], keep: int) -> None:
        self.folder, self._about, self._keep = folder, about, keep
        self._next = 1 + max((self._number(path) for path in self._paths()), default=0)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove those that are not kept any more.

        Args:
            checkpoint: Its value is a dictionary of arrays, its payloads are bytes.

        Raises:
            OSError: It cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self.folder / f"{_PREFIX}{self._next:08d}{_SUFFIX}", _serialized(checkpoint, self._about))
        self._next += 1
        for path in self._paths()[: -self._keep]:
            path.unlink(missing_ok=True)

    def load(self) -> Found:
        """Read what is there.

        Returns:
            The newest checkpoint that is intact, and what is wrong with others. Those are set aside (``.damaged``), so
            that they are not counted among those that are kept.

        Raises:
            DataError: A file is of another run or node, or all are damaged and neighbours may have been told of them.
        """
        saved, damaged, newest = [], dict[Path, str](), None
        for path in self._paths():
            try:
                newest = _parsed(path, self._about)
                saved.append(newest.k)
            except _DamagedError as error:
                damaged[path] = f"{path} is damaged ({error})"
        notes = list(damaged.values())
        if newest is None and len(damaged) >= self._keep:
            lost = "no checkpoint is intact, and neighbours no longer keep what a start from iteration 0 needs"
            raise DataError(f"{'; '.join(notes)}: {lost}; the run cannot be resumed")
        if damaged:
            taken = f"the checkpoint of iteration {newest.k} is taken" if newest else "it begins at iteration 0"
            notes.append(taken)
            for path in damaged:
                with suppress(OSError):
                    path.replace(path.with_suffix(".damaged"))
        return Found(newest, saved, notes)

    def _paths(self) -> list[Path]:
        found = self.folder.glob(f"{_PREFIX}*{_SUFFIX}") if self.folder.is_dir() else []
        return sorted((path for path in found if self._number(path)), key=self._number)

    @staticmethod
    def _number(path: Path) -> int:
        text = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        return int(text) if text.isascii() and text.isdigit() else 0


class _DamagedError(Exception):
    """A file that is not what was written."""


def _serialized(checkpoint: Checkpoint, about: dict[str, Any]) -> list[Any]:
    """Return the pieces of a file; a payload that several neighbours were sent is in it once."""
    arrays = {name: np.asarray(array, order="C") for name, array in checkpoint.value.items()}
    kept = [
        (peer, *position, memoryview(payload).cast("B"))
        for peer, of_peer in checkpoint.kept.items()
        for position, payload in of_peer.items()
    ]
    pieces: list[Any] = [array.tobytes() for array in arrays.values()]
    start = sum(map(len, pieces))
    places: dict[int, int] = {}
    originals = [payload for of_peer in checkpoint.kept.values() for payload in of_peer.values()]
    for original, (*_, payload) in zip(originals, kept, strict=True):
        if id(original) not in places:
            places[id(original)] = start
            pieces.append(payload)
            start += len(payload)
    body = hashlib.sha256()
    for piece in pieces:
        body.update(piece)
    head = {
        "kind": _KIND,
        "format": _FORMAT,
        "about": about,
        "k": checkpoint.k,
        "end": checkpoint.end,
        "durable": sorted(checkpoint.durable.items()),
        "arrays": [(name, array.dtype.str, array.shape) for name, array in arrays.items()],
        "kept": [
            (peer, k, phase, places[id(original)], len(payload))
            for original, (peer, k, phase, payload) in zip(originals, kept, strict=True)
        ],
        "bytes": start,
        "sha256": body.hexdigest(),
    }
    text = json.dumps(head, sort_keys=True).encode()
    return [hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n", *pieces]


def _parsed(path: Path, about: dict[str, Any]) -> Checkpoint:
    try:
        with path.open("rb") as file:
            line = file.readline(_MAX_HEADER)
            digest, _, text = line.removesuffix(b"\n").partition(b" ")
            if hashlib.sha256(text).hexdigest().encode() != digest:
                raise _DamagedError("its first line is not what was written")
            head = json.loads(text)
            if path.stat().st_size - len(line) != head["bytes"]:
                raise _DamagedError("it is cut off")
            body = file.read()
    except (OSError, ValueError) as error:
        raise _DamagedError(str(getattr(error, "strerror", None) or error)) from None
    if head.get("kind") != _KIND or head.get("format") != _FORMAT:
        raise DataError(f"{path}: a checkpoint of another version of dspodfl")
    if head["about"] != json.loads(json.dumps(about)):
        key = next(key for key in {**about, **head["about"]} if head["about"].get(key) != about.get(key))
        there, here = head["about"].get(key), about.get(key)
        raise DataError(f"{path}: of another run: {key} is {there!r:.100} there and {here!r:.100} here")
    if hashlib.sha256(body).hexdigest() != head["sha256"]:
        raise _DamagedError("its checksum is wrong")
    return _from_parts(head, body)


def _from_parts(head: dict[str, Any], body: bytes) -> Checkpoint:
    value, start = {}, 0
    for name, dtype, shape in head["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        value[name] = np.frombuffer(body, np.dtype(dtype), count, start).reshape(shape).copy()
        start += value[name].nbytes
    kept: dict[int, dict[tuple[int, int], Any]] = {}
    known: dict[tuple[int, int], bytes] = {}
    for peer, k, phase, first, size in head["kept"]:
        if (first, size) not in known:
            known[first, size] = body[first : first + size]
        kept.setdefault(peer, {})[k, phase] = known[first, size]
    end = tuple(head["end"]) if head["end"] is not None else None
    return Checkpoint(head["k"], value, kept, dict(head["durable"]), end)
