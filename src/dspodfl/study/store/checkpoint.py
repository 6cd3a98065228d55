"""Checkpoints: the state of a study on disk, from which it is resumed with the same results.

    checkpoints/00000007/
        manifest.json                    configuration, versions, plan, iteration; size and SHA-256 of every other file
        state-000.safetensors            models, delays, the rule's state of the runs that advance, by run and client
        wave-000-000.safetensors         final models of a wave that is finished
        metrics.parquet, metrics-001.parquet, …   what was measured until then; hard links where nothing has changed
        accuracies.safetensors           each client's accuracy when it was last evaluated, by run
        events.safetensors               what fired, as bits, of recorded runs whose models decide it

A checkpoint is written to a temporary directory, forced onto the device and renamed: at any instant the folder holds a
complete one. Shards name the runs and clients that are in them. The process that holds clients writes their shards
(`shards`), and rank 0 commits the checkpoint (`CheckpointStore.commit`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from dspodfl.engine import LocalTransport, Piece, Transport
from dspodfl.errors import DataError
from dspodfl.network import Events
from dspodfl.study.store.checkpoint_reader import (
    ACCURACIES,
    EVENTS,
    FOLDER,
    FORMAT,
    KIND,
    MANIFEST,
    METRICS,
    Checkpoint,
    Entries,
    load,
    manifest,
    signed,
)
from dspodfl.study.store.files import UNCOMMITTED, entry_of, sync, write
from dspodfl.study.store.folder import Folder, remove_checkpoint_files
from dspodfl.study.store.manifest import DamagedError
from dspodfl.study.tables import parquet

__all__ = ["FOLDER", "MANIFEST", "Checkpoint", "CheckpointStore", "load", "manifest", "shards", "signed"]

_MAX_NUMBERS_IN_A_SHARD = 2**26


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
        write(temporary / ACCURACIES, safetensors.torch.save(own))
        entries = entries | {ACCURACIES: entry_of(temporary / ACCURACIES)}
        if made.events:
            write(temporary / EVENTS, _bits(made.events))
            entries = entries | {EVENTS: entry_of(temporary / EVENTS)}
        content = {
            "kind": KIND,
            "format": FORMAT if made.about.get("behind") else 2,
            "iteration": made.iteration,
            "plan": asdict(made.plan),
            **made.about,
            "files": entries,
        }
        write(temporary / MANIFEST, signed(content))
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
    for table in ("clients", "links", "whole", "ends"):
        flat |= {f"{table}/{name}": values for name, values in getattr(piece, table).items()}
    return {f"{piece.run}/{n}/{name}": values.contiguous() for name, values in flat.items()}


def _bits(events: Mapping[int, Events]) -> bytes:
    """What fired in some runs, as the content of a file of bits."""
    out = {}
    for run, found in events.items():
        out[f"{run}/v"], out[f"{run}/v_hat"] = (np.packbits(rows, axis=1) for rows in (found.v, found.v_hat))
        out[f"{run}/counts"] = np.array([found.v.shape[1], found.v_hat.shape[1]])
    return safetensors.numpy.save(out)


def _models(run: int, models: Tensor) -> Piece:
    """The final models of a run, (clients, p), as a piece."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return Piece(run, torch.arange(len(models)), nothing, {"theta": models}, {}, {})
