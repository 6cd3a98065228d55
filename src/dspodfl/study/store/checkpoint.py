"""Checkpoints: the state of a study on disk, from which it is resumed with the same results.

    checkpoints/00000007/
        manifest.json                    configuration, versions, plan, iteration; size and SHA-256 of every other file
        state-000.safetensors            models, delays, the rule's state of the runs that advance, by run and client
        wave-000-000.safetensors         final models of a wave that is finished
        metrics.parquet, metrics-001.parquet, …   what was measured until then; hard links where nothing has changed
        accuracies.safetensors           each client's accuracy when it was last evaluated, by run

A checkpoint is written to a temporary directory, forced onto the device and renamed: at any instant the folder holds a
complete one. Shards name the runs and clients that are in them. The process that holds clients writes their shards
(`shards`), and rank 0 commits the checkpoint (`CheckpointStore.commit`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors.torch
import torch
from torch import Tensor

from dspodfl.engine import LocalTransport, Piece, Transport
from dspodfl.errors import DataError, bounded
from dspodfl.study.store.files import UNCOMMITTED, Entry, entry_of, sync, write
from dspodfl.study.store.folder import Folder, remove_checkpoint_files
from dspodfl.study.store.layout import CHECKPOINTS
from dspodfl.study.store.manifest import DamagedError
from dspodfl.study.tables import parquet, read_parquet
from dspodfl.study.waves import Plan

FOLDER, MANIFEST, METRICS = CHECKPOINTS, "manifest.json", "metrics.parquet"
_ACCURACIES = "accuracies.safetensors"
KIND = "checkpoint"
FORMAT = 3
"""What a manifest is written in; a later one is refused. 1: the rows were one file. 3: some runs are ``behind``, at an
iteration of their own; where none is, 2 is written."""
_MAX_NUMBERS_IN_A_SHARD = 2**26
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
    """

    plan: Plan
    iteration: int
    metrics: pd.DataFrame
    pieces: Callable[[], Iterable[Piece]]
    finished: Mapping[int, Tensor] = field(default_factory=dict)
    accuracies: Mapping[int, Tensor] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)


class _FirstError:
    """Keep the first error of the file system, so that a rank that cannot write still communicates with the others."""

    def __init__(self) -> None:
        self.error: OSError | None = None

    def __enter__(self) -> _FirstError:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, OSError):
            self.error = self.error or error
        return isinstance(error, OSError)


class CheckpointStore:
    """The checkpoints in the folder of a run or of a grid.

    Args:
        folder: The folder of the run.
        keep: The number of checkpoints that are kept; older ones are deleted.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder / FOLDER, keep
        self.files = Folder(folder)
        self._known: tuple[Path, Entries] | None = None
        self._segments: list[int] = []  # the rows of each file of the last checkpoint

    def save(self, made: Checkpoint, team: Transport | None = None) -> Path:
        """Write a checkpoint; an error leaves those that are there as they are.

        Each rank writes the shards of its clients; rank 0 commits the checkpoint once all have. All ranks call it.

        Args:
            made: The checkpoint.
            team: The ranks; default: this process alone.

        Returns:
            The folder of the checkpoint.

        Raises:
            OSError: A rank could not write its files.
        """
        team = team or LocalTransport()
        first, temporary, entries, here = team.rank == 0, None, Entries(), _FirstError()
        try:
            with here:
                temporary = self.temporary() if first else None
                entries |= self._finished(temporary, made) if temporary else {}
            temporary = team.broadcast(temporary)
            name = "state" if team.ranks == 1 else f"state-{team.rank:04d}"
            with here:
                entries |= shards(temporary, name, made.pieces()) if temporary else {}
            gathered = team.gather((entries, here.error))
            path = None
            with here:
                for written, error in gathered or ():
                    if error:
                        raise error
                    entries |= written
                path = self.commit(temporary, made, entries) if first and temporary else None
            path, lost = team.broadcast((path, here.error))
            if lost:
                raise lost
            return Path(path)
        except BaseException:
            if first and temporary is not None:
                remove_checkpoint_files(temporary)
            raise

    def temporary(self) -> Path:
        """Make a temporary directory for the files of the next checkpoint.

        Returns:
            The directory.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        taken = [int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()]
        path = self.folder / f"{UNCOMMITTED}{max(taken, default=0) + 1:08d}"
        remove_checkpoint_files(path)
        path.mkdir()
        return path

    def commit(self, temporary: Path, made: Checkpoint, entries: Entries) -> Path:
        """Commit a checkpoint: write tables and manifest, rename the temporary directory, delete the oldest.

        Args:
            temporary: The temporary directory, with the shards of all ranks.
            made: The checkpoint.
            entries: What the manifest says of the shards.

        Returns:
            The folder of the checkpoint.
        """
        entries = entries | self._metrics(temporary, made.metrics)
        own = {str(run): values.contiguous() for run, values in made.accuracies.items()}
        write(temporary / _ACCURACIES, safetensors.torch.save(own))
        entries = entries | {_ACCURACIES: entry_of(temporary / _ACCURACIES)}
        content = {
            "kind": KIND,
            "format": FORMAT if made.about.get("behind") else 2,
            "iteration": made.iteration,
            "plan": asdict(made.plan),
            **made.about,
            "files": entries,
        }
        write(temporary / MANIFEST, _signed(content))
        sync(temporary)
        path = self.folder / temporary.name.removeprefix(UNCOMMITTED)
        if self.files.manifest() is not None:
            self.files.note(checkpoints=(*self.files.checkpoints(), path.name))
        os.rename(temporary, path)
        sync(self.folder)
        self._known = path, entries
        self.tidy()
        return path

    def _finished(self, temporary: Path, made: Checkpoint) -> Entries:
        """The shards of finished waves: they never change, and are linked from the last checkpoint that has them."""
        entries: Entries = {}
        before, known = self._known or (temporary, {})
        for n, wave in enumerate(made.plan.done):
            name = f"wave-{n:03d}"
            same = {file: entry for file, entry in known.items() if file.startswith(f"{name}-")}
            if same and _linked(before, temporary, same):
                entries |= same
            else:
                entries |= shards(temporary, name, (_models(r, made.finished[r]) for r in wave if r in made.finished))
        return entries

    def _metrics(self, temporary: Path, metrics: pd.DataFrame) -> Entries:
        """The rows, in files of which each has more than the next: most are linked from the last checkpoint.

        Rows are only ever appended. Each is written a number of times that grows with the logarithm of theirs.
        """
        segments, before = list(self._segments), self._known
        while segments and segments[-1] <= len(metrics) - sum(segments):
            segments.pop()  # the last file has no more rows than those that are written now
        kept = [_segment(n) for n in range(len(segments))]
        entries: Entries = {}
        if before and all(name in before[1] for name in kept) and _linked(before[0], temporary, kept):
            entries = {name: before[1][name] for name in kept}
        else:
            segments = []
        rest = metrics.iloc[sum(segments) :]
        if len(rest) or not segments:
            name = _segment(len(segments))
            write(temporary / name, parquet(rest.reset_index(drop=True)))
            entries[name] = entry_of(temporary / name)
            segments.append(len(rest))
        self._segments = segments
        return entries

    def committed(self) -> list[Path]:
        """Return the checkpoints that are committed.

        Returns:
            Their folders, the newest first; those that the manifest of the run names, if it has one.
        """
        return [self.folder / name for name in reversed(self.files.checkpoints())]

    def tidy(self, keep: int | None = None) -> None:
        """Delete old checkpoints, and the temporary directories of processes that died.

        Args:
            keep: The number that are kept; default: that of the store.
        """
        old = self.committed()[self.keep if keep is None else keep :]
        self.files.remove_checkpoints([path.name for path in old])

    def read_manifest(self, path: Path) -> dict[str, Any]:
        """Read the manifest of a checkpoint; its other files are not read.

        Args:
            path: The folder of the checkpoint.

        Returns:
            What it says.

        Raises:
            DamagedError: It is missing or damaged.
            DataError: It is of a later format.
        """
        return manifest(path)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Read the newest checkpoint that is not damaged.

        Returns:
            The checkpoint (None where there is none), and a line for each newer one that is damaged.

        Raises:
            DataError: All are damaged, or one is of a later format.
        """
        lines: list[str] = []
        for path in self.committed():
            try:
                return load(path), lines
            except DamagedError as error:
                lines.append(str(error))
        if lines:
            raise DataError("\n".join([*lines, f"{self.folder}: no whole checkpoint is left"]))
        return None, lines

    def newest_iteration(self) -> tuple[int | None, list[str]]:
        """Read the iteration of the newest checkpoint whose manifest is not damaged.

        Returns:
            The iteration (None where there is none), and a line for each newer checkpoint.
        """
        lines: list[str] = []
        for path in self.committed():
            try:
                return int(manifest(path)["iteration"]), lines
            except DataError as error:
                lines.append(str(error))
        return None, lines


def shards(folder: Path, name: str, pieces: Iterable[Piece]) -> Entries:
    """Write pieces as ``<name>-000.safetensors``, …, none of them large.

    Args:
        folder: The temporary directory of a checkpoint.
        name: What the names of the files begin with.
        pieces: The state of some clients of a run each.

    Returns:
        What the manifest says of the files.
    """
    entries: Entries = {}
    number = count()

    def put(tensors: dict[str, Tensor], runs: dict[str, int]) -> None:
        path = folder / f"{name}-{next(number):03d}.safetensors"
        write(path, safetensors.torch.save(tensors))
        entries[path.name] = entry_of(path) | {"runs": runs}

    tensors: dict[str, Tensor] = {}
    runs: dict[str, int] = {}
    size = 0
    for n, piece in enumerate(pieces):
        if tensors and size + piece.clients["theta"].numel() > _MAX_NUMBERS_IN_A_SHARD:
            put(tensors, runs)
            tensors, runs, size = {}, {}, 0
        tensors |= _flat(piece, n)
        runs[str(piece.run)] = runs.get(str(piece.run), 0) + len(piece.client)
        size += piece.clients["theta"].numel()
    if tensors:
        put(tensors, runs)
    return entries


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
        own = safetensors.torch.load((path / _ACCURACIES).read_bytes())
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
    return Checkpoint(plan, iteration, metrics, lambda: going, finished, accuracies, content)


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
    if raw != _signed(content):
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


def _signed(content: Mapping[str, Any]) -> bytes:
    plain = json.loads(json.dumps(content))
    return (json.dumps(plain | {"sha256": _digest(plain)}, indent=1) + "\n").encode()


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _segment(n: int) -> str:
    return METRICS if n == 0 else f"metrics-{n:03d}.parquet"


def _linked(before: Path, temporary: Path, files: Iterable[str]) -> bool:
    try:
        for name in files:
            os.link(before / name, temporary / name)
    except OSError:  # the last checkpoint is gone, or the file system has no links
        for name in files:
            (temporary / name).unlink(missing_ok=True)
        return False
    return True


def _flat(piece: Piece, n: int) -> dict[str, Tensor]:
    """``<run>/<n>/client``, ``…/link``, ``…/clients/theta``, …: the names of a piece's tensors in a shard."""
    flat = {"client": piece.client, "link": piece.link}
    for table in ("clients", "links", "whole"):
        flat |= {f"{table}/{name}": values for name, values in getattr(piece, table).items()}
    return {f"{piece.run}/{n}/{name}": values.contiguous() for name, values in flat.items()}


def _pieces(path: Path) -> Iterator[Piece]:
    """The pieces of a shard, mapped from its file: a tensor that is not used takes no memory."""
    made: dict[tuple[int, int], dict[str, dict[str, Tensor]]] = {}
    for key, values in safetensors.torch.load_file(path).items():
        number, n, table, *name = key.split("/")
        made.setdefault((int(number), int(n)), {}).setdefault(table, {})["/".join(name)] = values
    for (run, _), tables in sorted(made.items()):
        client, link = tables["client"][""], tables["link"][""]
        yield Piece(run, client, link, *(tables.get(name, {}) for name in ("clients", "links", "whole")))


def _models(run: int, models: Tensor) -> Piece:
    """The final models of a run, (clients, p), as a piece."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return Piece(run, torch.arange(len(models)), nothing, {"theta": models}, {}, {})
