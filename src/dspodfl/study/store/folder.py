"""The writing half of a folder: the one place that writes and deletes files, under the lock of the folder.

Every folder that is written (of a run, of a sweep or experiment, of finished cells, of the theory) has a
``manifest.json``. It says what the folder is (``kind``, ``format``, ``state``) and has the size and SHA-256 of every
file of dspodfl, and its own. What follows from it:

- a file that is read is compared with it: one flipped bit is found;
- only files that it names, and that are what was written, are replaced or deleted: files of others are left alone, and
  where one has a name that must be written, that is an error and nothing is changed;
- a change of several files is one `Change`: temporary files first, then a manifest that has the old and the new
  checksums, then the renaming, then the manifest of what is there. A process that is killed at any instant leaves
  complete files, each the old or the new one.

Folders of version 0.1 have no manifest. They are read without being verified; their files are known by their content.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspodfl.errors import DataError
from dspodfl.study.store import lock, metrics_log
from dspodfl.study.store.change import Change
from dspodfl.study.store.files import UNCOMMITTED, Entry, entry_of, is_temporary, sync, write
from dspodfl.study.store.folder_reader import FolderReader, recognised_manifest
from dspodfl.study.store.layout import (
    CHECKPOINT_FILES,
    CHECKPOINTS,
    CLAIMED,
    COMPLETE,
    MANIFEST,
    METRICS_LOGS,
    UNFINISHED,
)
from dspodfl.study.store.manifest import Manifest

_LOCK_SECONDS = 30.0


class Folder(FolderReader):
    """Read, write and delete the files of a folder.

    Args:
        path: The folder.
        kind: What the folder is written as.
    """

    def __init__(self, path: Path, kind: str = "run") -> None:
        super().__init__(path, kind)
        self._lock: lock.Lock | None = None

    # --- the lock -----------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Take the lock until `release`.

        Raises:
            LockHeldError: Another process has it.
        """
        held = lock.Lock(self.path)
        held.take()
        self._lock = held

    def rename(self, path: Path) -> None:
        """Give the folder another name; a lock that is held stays held.

        Args:
            path: The new name.

        Raises:
            OSError: It cannot be renamed.
        """
        if self._lock is not None:
            with self._lock.moving(path):
                os.rename(self.path, path)
        else:
            os.rename(self.path, path)
        self.path = path

    def release(self) -> None:
        """Release the lock, if it was taken."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def locked(self, seconds: float = _LOCK_SECONDS) -> Iterator[None]:
        """Hold the lock within a ``with`` statement.

        Args:
            seconds: How long to wait for it, at most.

        Yields:
            Nothing.

        Raises:
            OSError: Another process has held it for all that time.
        """
        if self._lock is not None:
            yield
            return
        until = time.monotonic() + seconds
        while True:
            try:
                self.take()
                break
            except lock.LockHeldError as error:
                if time.monotonic() >= until:
                    raise OSError(errno.EAGAIN, f"process {error.process or '?'} is writing to it") from None
                time.sleep(0.05)
        try:
            yield
        finally:
            self.release()

    # --- writing ------------------------------------------------------------------------------------------------

    @contextmanager
    def change(
        self,
        *,
        state: str | None = None,
        id: str | None = None,
        about: Mapping[str, Any] | None = None,
        only: bool = False,
    ) -> Iterator[Change]:
        """Write files, and say so in the manifest; all of them, or (as far as names tell) none.

        Args:
            state: Of the folder afterwards; as it was, if left out.
            id: Of the run.
            about: What the run was started with.
            only: Whether other files of dspodfl in the folder are deleted.

        Yields:
            Takes the files; they appear when the ``with`` statement ends without an error.

        Raises:
            DataError: The folder is of another kind.
            OSError: A file cannot be written.
        """
        with self.locked():
            self.clean_temporaries()
            before = self.manifest()
            base = before or Manifest(self.kind, CLAIMED, files=self.known(), checkpoints=self.checkpoints())
            if before is not None and before.kind != self.kind and not only:
                raise DataError(f"{self.path}: the folder of a {before.kind}, not of a {self.kind}")
            settled = self._settled(base)
            target = replace(
                settled,
                kind=self.kind,
                state=settled.state if state is None else state,
                id=settled.id if id is None else id,
                about=settled.about if about is None else about,
            )
            target = target if target.id == settled.id else replace(target, checkpoints=())
            change = Change(self, settled, target, only)
            try:
                yield change
                change.commit()
            finally:
                change.discard()

    def _settled(self, manifest: Manifest) -> Manifest:
        """The manifest after a change that a killed process had begun: with the files that had been renamed."""
        if not manifest.writing and not manifest.replaced:
            return manifest
        files = dict(manifest.files)
        for name, new in manifest.writing.items():
            path = self.path / name
            if path.is_file() and entry_of(path) == new:
                files[name] = new
        left = {name: old for name, old in manifest.replaced.items() if name not in files}
        return replace(manifest, files=files, writing={}, replaced=left)

    def note(self, **fields: Any) -> None:
        """Change the manifest, and no other file; a folder without a manifest stays without one.

        Args:
            fields: Fields of `Manifest`, with their new values.
        """
        with self.locked():
            manifest = self.manifest()
            if manifest is not None:
                self.put(replace(manifest, **fields))

    def put(self, manifest: Manifest) -> None:
        """Write the manifest.

        Args:
            manifest: What it says from now on.
        """
        write(self.path / MANIFEST, manifest.serialized())
        sync(self.path)

    # --- deleting -----------------------------------------------------------------------------------------------

    def remove(self, entries: Mapping[str, Entry]) -> None:
        """Delete files and checkpoints; a file that has changed since it was written stays.

        Args:
            entries: File -> its size and SHA-256 when it was written.
        """
        for name, old in entries.items():
            path = self.path / name
            if path.parent.name == CHECKPOINTS:
                self.remove_checkpoints([path.name])
            elif path.is_file() and not path.is_symlink() and entry_of(path) == old:
                path.unlink()
        if any(name.startswith("models/") for name in entries):
            with suppress(OSError):  # there is none, or files of others are in it
                (self.path / "models").rmdir()

    def remove_metrics_log(self, manifest: Manifest | None) -> None:
        """Delete the log of metrics of a run.

        Args:
            manifest: The manifest of the run; the log of another run stays.
        """
        for name in METRICS_LOGS:
            path = self.path / name
            found = metrics_log.header(path)
            foreign = found is not None and manifest is not None and found.get("id", "") != manifest.id
            damaged = found is None and (manifest is None or manifest.state != UNFINISHED)
            if path.is_file() and not path.is_symlink() and not foreign and not damaged:
                path.unlink()

    def checkpoints(self) -> tuple[str, ...]:
        """Return the checkpoints of the folder.

        Returns:
            Their names, the oldest first; without a manifest, those of folders that look like a checkpoint.
        """
        found = [path for path in self._inside(CHECKPOINTS) if path.name.isdecimal() and path.is_dir()]
        manifest = self.manifest() if recognised_manifest(self.path) else None
        names = [p.name for p in found if (p.name in manifest.checkpoints if manifest else _is_checkpoint(p))]
        return tuple(sorted(names, key=int))

    def remove_checkpoints(self, names: Collection[str]) -> None:
        """Delete checkpoints; files of others in them stay.

        Args:
            names: The checkpoints.
        """
        where = self.path / CHECKPOINTS
        if where.is_symlink() or not where.is_dir():
            return
        for name in names:
            path = where / name
            if path.is_dir() and not path.is_symlink():
                # Renamed first: half a checkpoint must not be taken for a damaged one.
                temporary = where / f"{UNCOMMITTED}{name}"
                remove_checkpoint_files(temporary)
                with suppress(OSError):
                    os.rename(path, temporary)
                remove_checkpoint_files(temporary)
        for path in where.glob(f"{UNCOMMITTED}*"):
            remove_checkpoint_files(path)
        with suppress(OSError):
            where.rmdir()

    def clean(self) -> None:
        """Delete what processes have left that have ended: temporary files, deleted files, unneeded checkpoints.

        The lock must be held.
        """
        self.clean_temporaries()
        for path in (self.path / CHECKPOINTS).glob(f"{UNCOMMITTED}*"):
            remove_checkpoint_files(path)
        manifest = self.manifest()
        if manifest is None:
            return
        if manifest.replaced or manifest.writing:
            manifest = self._settled(manifest)
            self.remove(manifest.replaced)
            manifest = replace(manifest, replaced={})
            self.put(manifest)
        if manifest.state == COMPLETE and manifest.kind == "run":
            self.remove_metrics_log(manifest)
            self.remove_checkpoints(manifest.checkpoints)
        if manifest.checkpoints != self.checkpoints():
            self.put(replace(manifest, checkpoints=self.checkpoints()))

    def clean_temporaries(self) -> None:
        """Delete the temporary files of processes that have ended; the lock must be held."""
        for path in (*self._inside(), *self._inside("models")):
            if is_temporary(path.name) and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)
        old = self.path / lock.OLD_LOCK
        if lock.is_dead(old):
            old.unlink(missing_ok=True)

    @property
    def left_over(self) -> bool:
        """Whether `clean` would delete anything, by the names of the files."""
        manifest = self.manifest()
        if manifest is None:
            return False
        over = manifest.kind == "run" and manifest.state == COMPLETE
        names = {path.name for path in (*self._inside(), *self._inside("models"))}
        old = metrics_log.header(metrics_log.path_in(self.path)) if over else None
        return (
            any(map(is_temporary, names))
            or lock.LOCK in names
            or bool(manifest.replaced or manifest.writing)
            or (over and (bool(manifest.checkpoints) or (old is not None and old.get("id", "") == manifest.id)))
        )


def _is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint, complete or damaged, without other files."""
    if path.is_symlink():
        return False
    names = [file.name for file in path.iterdir()]
    return bool(names) and all(CHECKPOINT_FILES.fullmatch(name) for name in names)


def remove_checkpoint_files(path: Path) -> None:
    """Delete the files of a checkpoint, and its folder unless files of others are in it.

    Args:
        path: The folder of the checkpoint.
    """
    if path.is_symlink() or not path.is_dir():
        return
    for file in path.iterdir():
        if (CHECKPOINT_FILES.fullmatch(file.name) or is_temporary(file.name)) and not file.is_symlink():
            with suppress(OSError):
                file.unlink()
    with suppress(OSError):
        path.rmdir()
