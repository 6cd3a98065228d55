"""The models that a node has written at evaluated iterations: one append-only file for each algorithm and seed.

A file is a header and rows of one size. The header is `_MAGIC`, its length (uint32), JSON, and the CRC-32 of the length
and the JSON. A row is the iteration (uint64), flags (uint32), loss and accuracy on a test set of the node's own
(float64 each, NaN without one), the vectors, and the CRC-32 of all that. All numbers are little-endian.

The vectors of a row are the model that is evaluated and, for rules that average other rows (push-sum), the row that is
averaged. A process that is killed at any byte leaves whole rows and a part of one: the part is dropped, and its row
written again. A damaged row is named, and its model is missing.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from dspodfl.errors import DataError, bounded
from dspodfl.study.store import write

CAP = 10**9
"""Bytes of models that a node keeps, by default; beyond them only the last model is kept."""
ROWS, LAST = ".rows", ".last"
"""Endings of the file of all rows, and of that of the last row beyond the cap."""
_MAGIC = b"dspodflm"
_LENGTH = struct.Struct("<I")
_ROW = struct.Struct("<QIdd")
_MAX_HEADER = 2**16
_DIVERGED = 1
"""The flag of a row that says where a model was no longer finite; its vectors are zeros."""
_TYPES = ("float32", "float64")


@dataclass(frozen=True)
class Header:
    """What the rows of a file are.

    Args:
        id: The id of the node.
        run_id: The run id of the study.
        algorithm: The label of the algorithm.
        seed: The seed.
        parameters: p, the number of parameters of a model.
        vectors: The vectors of a row: 1, or 2 where the rule averages other rows than the models that are evaluated.
        dtype: float32 or float64.
    """

    id: int
    run_id: str
    algorithm: str
    seed: int
    parameters: int
    vectors: int = 1
    dtype: str = "float32"

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return _ROW.size + self.vectors * self.parameters * np.dtype(self.dtype).itemsize + _LENGTH.size

    def serialized(self) -> bytes:
        """Return the header as the first bytes of a file."""
        text = json.dumps({"kind": "models", "format": 1, **asdict(self)}, sort_keys=True).encode()
        content = _LENGTH.pack(len(text)) + text
        return _MAGIC + content + _LENGTH.pack(zlib.crc32(content))

    @staticmethod
    def parse(content: bytes) -> tuple[Header, int]:
        """Read the header from the first bytes of a file.

        Args:
            content: The first bytes.

        Returns:
            The header, and its size.

        Raises:
            ValueError: It is truncated, damaged, or of a later format.
        """
        if content[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it does not begin like a file of models")
        first = len(_MAGIC) + _LENGTH.size
        length = _LENGTH.unpack(content[len(_MAGIC) : first])[0] if len(content) >= first else _MAX_HEADER + 1
        end = first + length + _LENGTH.size
        if length > _MAX_HEADER or len(content) < end:
            raise ValueError("its header is truncated or damaged")
        if _LENGTH.unpack(content[end - _LENGTH.size : end])[0] != zlib.crc32(
            content[len(_MAGIC) : end - _LENGTH.size]
        ):
            raise ValueError("its header is damaged (its CRC-32 differs)")
        found = json.loads(content[first : end - _LENGTH.size])
        if found.pop("kind", None) != "models" or found.pop("format", None) != 1:
            raise ValueError("it is of another kind, or of a later format")
        try:
            header = Header(**found)
            fine = header.dtype in _TYPES and header.vectors in (1, 2) and header.parameters > 0
            fine = fine and all(isinstance(n, int) for n in (header.id, header.seed, header.parameters))
        except TypeError:
            fine = False
        if not fine:
            raise ValueError("its header says nothing that can be read")
        return header, end

    @property
    def name(self) -> str:
        """The name of the file of all rows, without its ending."""
        label = quote(self.algorithm, safe=" ")
        if len(label) > 150:
            label = f"{label[:100]}-{zlib.crc32(self.algorithm.encode()):08x}"
        return f"{label}-seed{self.seed}"


@dataclass(frozen=True, eq=False)
class StoredModel:
    """The model of a node at an iteration.

    Attributes:
        model: The model that is evaluated, (p,).
        averaged: The row that is averaged, (p,); None: the model.
        score: Loss and accuracy on a test set of the node's own; None: it has none.
    """

    model: np.ndarray
    averaged: np.ndarray | None = None
    score: tuple[float, float] | None = None


# --- writing --------------------------------------------------------------------------------------------------


class ModelsWriter:
    """Appends the models of one algorithm and seed to the file of a node.

    A row that is there already is not written again: a node that replays from its checkpoint comes to the same models.

    Args:
        folder: The folder of models of the node; it is made.
        header: What the rows are.
        cap: Bytes that all files of the folder may have together.

    Raises:
        DataError: A file of another run has this name, or it cannot be written.
    """

    def __init__(self, folder: Path, header: Header, cap: int = CAP) -> None:
        self.header, self._cap = header, cap
        self._path, self._last_path = (folder / f"{header.name}{ending}" for ending in (ROWS, LAST))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DataError(f"{self._path}: cannot be written ({error.strerror})") from None
        try:
            self._begin()
        except BaseException:
            os.close(self._file)
            raise
        others = [path for path in folder.iterdir() if path not in (self._path, self._last_path)]
        self._others = sum(path.stat().st_size for path in others if path.suffix in (ROWS, LAST))
        self._last, self._said = -1, False
        with suppress(DataError):  # none was written, or it is damaged: the next one takes its place
            self._last = max(StoredModels.read(self._last_path).iterations, default=-1)

    def _begin(self) -> None:
        """Write the header, unless it is there, and drop what a killed process has left of a row."""
        own, size = self.header.serialized(), os.fstat(self._file).st_size
        first = os.pread(self._file, len(own), 0)
        if first != own and size >= len(own):
            try:
                other, _ = Header.parse(os.pread(self._file, _MAX_HEADER, 0))
            except ValueError:
                other = self.header  # it is damaged: rows have checksums of their own
            if other != self.header:
                raise DataError(f"{self._path}: holds the models of another run ({_difference(other, self.header)})")
        if first != own:
            os.ftruncate(self._file, 0 if size < len(own) else size)
            _write(self._file, own, 0)
            size = max(size, len(own))
        rows = (size - len(own)) // self.header.row_bytes
        self._end = len(own) + rows * self.header.row_bytes
        os.ftruncate(self._file, self._end)
        self._known = set(StoredModels.read(self._path).iterations)

    def append(self, iteration: int, stored: StoredModel) -> str | None:
        """Append the model of an iteration, unless it is there.

        Args:
            iteration: The number of updates made.
            stored: The model; its ``averaged`` where the header says two vectors.

        Returns:
            A line for the log where the cap is reached for the first time, else None.

        Raises:
            DataError: The row could not be written; the file is as it was.
            ValueError: The vectors are not those of the header.
        """
        vectors = [stored.model, *([] if stored.averaged is None else [stored.averaged])]
        shape = (self.header.parameters,)
        if len(vectors) != self.header.vectors or any(vector.shape != shape for vector in vectors):
            raise ValueError(f"{len(vectors)} vectors of shape {stored.model.shape} are not those of {self.header}")
        flat = np.concatenate(vectors).astype(np.dtype(self.header.dtype).newbyteorder("<"), copy=False)
        return self._append(iteration, 0, stored.score or (math.nan, math.nan), flat.tobytes())

    def diverged(self, iteration: int) -> str | None:
        """Note that a model was no longer finite after some updates; no model follows.

        Args:
            iteration: The number of updates made.

        Returns:
            As `append`.
        """
        payload = self.header.row_bytes - _ROW.size - _LENGTH.size
        return self._append(iteration, _DIVERGED, (math.nan, math.nan), bytes(payload))

    def _append(self, iteration: int, flags: int, score: tuple[float, float], payload: bytes) -> str | None:
        if iteration in self._known or iteration <= self._last:
            return None
        content = _ROW.pack(iteration, flags, *score) + payload
        content += _LENGTH.pack(zlib.crc32(content))
        try:
            if self._end + len(content) + self._others <= self._cap:
                try:
                    _write(self._file, content, self._end)
                except OSError:
                    os.ftruncate(self._file, self._end)
                    raise
                self._end += len(content)
                self._known.add(iteration)
                return None
            write(self._last_path, self.header.serialized() + content)
        except OSError as error:
            raise DataError(f"{self._path}: a model could not be written ({error.strerror})") from None
        self._last, said, self._said = iteration, self._said, True
        line = f"{self._path}: {self._cap:,} bytes of models are kept; from iteration {iteration:,} on only the last"
        return None if said else line

    def sync(self) -> None:
        """Force all rows onto the device; call it before a checkpoint is durable: a replay begins after its rows."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _write(file: int, content: bytes, offset: int) -> None:
    """Write all of some bytes."""
    view = memoryview(content)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done


def _difference(one: Header, other: Header) -> str:
    """The first field in which two headers differ."""
    name = next(name for name, value in asdict(one).items() if value != getattr(other, name))
    return f"{name} is {getattr(one, name)!r}, not {getattr(other, name)!r}"


# --- reading --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoredModels:
    """The rows of a file that can be read.

    Attributes:
        path: The file.
        header: What its rows are.
        places: Iteration -> where its row is in the file.
        diverged: The iteration at which a model was no longer finite; None: all were.
        damage: A line for each damaged row.
    """

    path: Path
    header: Header
    places: dict[int, int] = field(default_factory=dict)
    diverged: int | None = None
    damage: list[str] = field(default_factory=list)

    @property
    def iterations(self) -> list[int]:
        """The iterations of which there is a row, ascending; that of divergence included."""
        return sorted({*self.places, *([] if self.diverged is None else [self.diverged])})

    @staticmethod
    def read(path: Path) -> StoredModels:
        """Read which rows a file has; the part of a row at its end is left out.

        Args:
            path: The file.

        Returns:
            Its rows.

        Raises:
            DataError: It is missing, no regular file, or its header is damaged.
        """
        with bounded.open_binary(path) as file:
            try:
                header, first = Header.parse(file.read(_MAX_HEADER + 64))
            except ValueError as error:
                raise DataError(f"{path}: {error}") from None
            found = StoredModels(path, header)
            places, damage, diverged = found.places, found.damage, None
            for number, (place, content) in enumerate(_rows(file, first, header.row_bytes)):
                iteration, flags = _checked(content)
                if iteration is None:
                    damage.append(f"{path}: row {number} is damaged (its CRC-32 differs); its model is missing")
                elif flags & _DIVERGED:
                    diverged = iteration if diverged is None else min(diverged, iteration)
                else:
                    places[iteration] = place
        return StoredModels(path, header, places, diverged, damage)

    def at(self, iteration: int) -> StoredModel | None:
        """Return the model of an iteration.

        Args:
            iteration: The number of updates made.

        Returns:
            The model; None where there is none, or its row is no longer what was read before.
        """
        place = self.places.get(iteration)
        if place is None:
            return None
        with bounded.open_binary(self.path) as file:
            file.seek(place)
            content = file.read(self.header.row_bytes)
        if len(content) < self.header.row_bytes or _checked(content)[0] != iteration:
            return None
        _, _, loss, accuracy = _ROW.unpack_from(content)
        dtype = np.dtype(self.header.dtype).newbyteorder("<")
        payload = content[_ROW.size : -_LENGTH.size]
        vectors = np.frombuffer(payload, dtype).astype(self.header.dtype).reshape(self.header.vectors, -1)
        score = None if math.isnan(loss) else (loss, accuracy)
        return StoredModel(vectors[0], vectors[1] if self.header.vectors == 2 else None, score)


def _rows(file: Any, first: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole rows of a file, and where each begins."""
    end = os.fstat(file.fileno()).st_size
    file.seek(first)
    for place in range(first, end - size + 1, size):  # nothing is allocated for a row that is not there
        content = file.read(size)
        if len(content) < size:
            return
        yield place, content


def _checked(content: bytes) -> tuple[int | None, int]:
    """Return iteration and flags of a row; no iteration where it is damaged."""
    if _LENGTH.unpack(content[-_LENGTH.size :])[0] != zlib.crc32(content[: -_LENGTH.size]):
        return None, 0
    iteration, flags, _, _ = _ROW.unpack_from(content)
    return iteration, flags
