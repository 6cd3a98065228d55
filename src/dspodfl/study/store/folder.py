"""The one place that opens, writes, verifies and deletes the files of a folder.

Every folder that is written (of a run, of a sweep or experiment, of finished cells, of the theory) has a
``manifest.json``. It says what the folder is (``kind``, ``format``, ``state``) and has the size and SHA-256 of every
file of ours, and its own. What follows from it:

- a file that is read is compared with it: one flipped bit is found;
- only files that it names, and that are what was written, are replaced or deleted: files of others are left alone, and
  where one has a name that must be written, that is an error and nothing is changed;
- a change of several files is one `Change`: temporary files first, then a manifest that has the old and the new
  checksums, then the renaming, then the manifest of what is there. A process that is killed at any instant leaves files
  that are whole, each the old or the new one.

Folders of version 0.1 have no manifest. They are read without being verified; their files are known by their content.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspodfl.errors import DataError, bounded
from dspodfl.study.store import lock
from dspodfl.study.store import metrics_log as journal
from dspodfl.study.store.change import Change
from dspodfl.study.store.files import ASIDE, Entry, entry, entry_of, is_temporary, recognised, sync, write
from dspodfl.study.store.layout import (
    CHECKPOINT_FILES,
    CHECKPOINTS,
    CLAIMED,
    COMPLETE,
    MANIFEST,
    PICTURES,
    SIGNS_OF_0_1,
    UNFINISHED,
)
from dspodfl.study.store.manifest import DamagedError, ForeignFileError, Manifest
from dspodfl.study.store.metrics_log import JOURNAL

_LOCK_SECONDS = 30.0


def _told(path: Path, error: DataError) -> str:
    """What an error says of a file, without the name of the file."""
    return str(error).removeprefix(f"{bounded.name_of(path)}: ")


class Folder:
    """A folder of dspodfl's: of the kind that it is written as."""

    def __init__(self, path: Path, kind: str = "run") -> None:
        self.path, self.kind = Path(path), kind
        self._lock: lock.Lock | None = None

    # --- the lock -----------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Take the lock until `release`; raises `lock.Held` where another process has it."""
        held = lock.Lock(self.path)
        held.take()
        self._lock = held

    def moved(self, path: Path) -> None:
        """The folder has another name now."""
        self.path = path
        if self._lock is not None:
            self._lock.moved(path)

    def release(self) -> None:
        """Release the lock, if it was taken."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def locked(self, seconds: float = _LOCK_SECONDS) -> Iterator[None]:
        """Hold the lock for a while; wait at most some seconds for it."""
        if self._lock is not None:
            yield
            return
        until = time.monotonic() + seconds
        while True:
            try:
                self.take()
                break
            except lock.Held as error:
                if time.monotonic() >= until:
                    raise OSError(errno.EAGAIN, f"process {error.args[0] or '?'} is writing to it") from None
                time.sleep(0.05)
        try:
            yield
        finally:
            self.release()

    # --- reading ------------------------------------------------------------------------------------------------

    def manifest(self) -> Manifest | None:
        """What the folder says of itself; None where it has no manifest (version 0.1, or none of ours).

        Raises:
            DamagedError: the manifest is not what was written, or of another kind than expected.
        """
        path = self.path / MANIFEST
        try:
            content = bounded.read_bytes(path, bounded.JSON)
        except bounded.MissingFileError:
            return None
        except DataError as error:
            raise DataError(f"{self.path}: {MANIFEST} {_told(path, error)}") from None
        return Manifest.parse(content, path)

    def holds(self, name: str) -> bool:
        """Whether a file of ours of this name should be there."""
        manifest = self.manifest()
        return (self.path / name).is_file() if manifest is None else name in manifest.names

    def read(self, name: str, limit: int = bounded.DATA) -> bytes:
        """Read a regular file and compare it with the manifest, if there is one.

        Args:
            name: the file.
            limit: the largest size allowed, in bytes.

        Raises:
            DamagedError: it is missing, no regular file, larger than allowed, or not what was written.
        """
        path = self.path / name
        for attempt in range(5):
            manifest = self.manifest()
            try:
                content = bounded.read_bytes(path, limit)
            except bounded.MissingFileError:
                content, problem = None, "is missing"
            except DataError as error:
                content, problem = None, _told(path, error)
            if content is not None:
                if manifest is None or name not in manifest.names or entry(content) in manifest.entries(name):
                    return content
                problem = "is damaged: it is not what was written (its SHA-256 differs)"
            if self.manifest() == manifest:  # else another process has changed the folder in between
                break
            time.sleep(0.02 * (attempt + 1))
        raise DamagedError(f"{self.path}: {name} {problem}")

    def problem(self, name: str, manifest: Manifest) -> str | None:
        """What is wrong with a file that the manifest names; None where it is what was written."""
        path = self.path / name
        try:
            if not path.is_file():
                return "is missing"
            if entry_of(path) not in manifest.entries(name):
                return "is damaged: it is not what was written (its SHA-256 differs)"
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"
        return None

    # --- what is ours -------------------------------------------------------------------------------------------

    def known(self) -> dict[str, Entry]:
        """The files that are ours and what was written; those of version 0.1 are known by their content."""
        manifest = self.manifest()
        if manifest is None:
            return {name: entry_of(self.path / name) for name in self._recognised()}
        names = dict.fromkeys([*manifest.names, *manifest.replaced])
        return {name: entry_of(self.path / name) for name in names if self._ours(name, manifest)}

    def _recognised(self) -> list[str]:
        """The files of a folder of version 0.1, if it is one as a whole."""
        sign = SIGNS_OF_0_1[self.kind]
        if not all(any(looks_ours(self.path / name, name) for name in some) for some in sign):
            return []
        paths = self._inside() + self._inside("models")
        names = [path.relative_to(self.path).as_posix() for path in paths]
        return [name for name in names if name != JOURNAL and looks_ours(self.path / name, name)]

    def _inside(self, folder: str = ".") -> list[Path]:
        try:
            return sorted((self.path / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _ours(self, name: str, manifest: Manifest) -> bool:
        path = self.path / name
        if path.is_symlink() or not path.is_file():
            return False
        found = entry_of(path)
        return found in (*manifest.entries(name), manifest.replaced.get(name)) or looks_ours(path, name)

    def guard(self, names: Iterable[str], field_: str = "out") -> None:
        """Refuse to go on where something that is not ours has one of these names.

        Raises:
            ForeignFileError: names the first.
        """
        manifest = self.manifest() if recognised_manifest(self.path) else None
        if manifest is None and os.path.lexists(self.path / MANIFEST):
            raise ForeignFileError(self.path / MANIFEST, field_)
        legacy = None if manifest else set(self._recognised())
        for name in names:
            path = self.path / name
            if not os.path.lexists(path):
                if "/" in name and os.path.lexists(path.parent) and not path.parent.is_dir():
                    raise ForeignFileError(path.parent, field_)
                continue
            if name == JOURNAL and looks_ours(path, name):
                continue
            if PICTURES.fullmatch(name) and looks_ours(path, name):
                continue
            if legacy is not None and name in legacy:
                continue
            if manifest and (name in (*manifest.names, *manifest.replaced)) and self._ours(name, manifest):
                continue
            if manifest and name == JOURNAL and manifest.state in (UNFINISHED, CLAIMED) and path.is_file():
                continue
            raise ForeignFileError(path, field_)

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
            state: of the folder afterwards; as it was, if left out.
            id: of the run.
            about: what the run was started with.
            only: what else is ours in the folder is deleted.
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
        """With what a change that was cut short had come to."""
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
        """Change what the manifest says, and no file; a folder without a manifest stays without one."""
        with self.locked():
            manifest = self.manifest()
            if manifest is not None:
                self.put(replace(manifest, **fields))

    def put(self, manifest: Manifest) -> None:
        """Write the manifest."""
        write(self.path / MANIFEST, manifest.serialized())
        sync(self.path)

    # --- deleting -----------------------------------------------------------------------------------------------

    def remove(self, entries: Mapping[str, Entry]) -> None:
        """Delete files that are what ``entries`` say, and checkpoints; what has changed since is left alone."""
        for name, old in entries.items():
            path = self.path / name
            if path.parent.name == CHECKPOINTS:
                self.remove_checkpoints([path.name])
            elif path.is_file() and not path.is_symlink() and entry_of(path) == old:
                path.unlink()
        if any(name.startswith("models/") for name in entries):
            with suppress(OSError):  # there is none, or files of others are in it
                (self.path / "models").rmdir()

    def remove_journal(self, manifest: Manifest | None) -> None:
        """Delete the journal of the run that a manifest is of."""
        path = self.path / JOURNAL
        found = journal.header(path)
        theirs = found is not None and manifest is not None and found.get("id", "") != manifest.id
        lost = found is None and (manifest is None or manifest.state != UNFINISHED)
        if path.is_file() and not path.is_symlink() and not theirs and not lost:
            path.unlink()

    def checkpoints(self) -> tuple[str, ...]:
        """The checkpoints there are, by name, the oldest first; without a manifest, what looks like one."""
        found = [path for path in self._inside(CHECKPOINTS) if path.name.isdecimal() and path.is_dir()]
        manifest = self.manifest() if recognised_manifest(self.path) else None
        ours = [p.name for p in found if (p.name in manifest.checkpoints if manifest else _is_checkpoint(p))]
        return tuple(sorted(ours, key=int))

    def remove_checkpoints(self, names: Collection[str]) -> None:
        """Delete checkpoints by name; what others have put there is left alone."""
        where = self.path / CHECKPOINTS
        if where.is_symlink() or not where.is_dir():
            return
        for name in names:
            path = where / name
            if path.is_dir() and not path.is_symlink():
                # Renamed first: half a checkpoint must not be taken for a damaged one.
                aside = where / f"{ASIDE}{name}"
                remove_checkpoint_files(aside)
                with suppress(OSError):
                    os.rename(path, aside)
                remove_checkpoint_files(aside)
        for path in where.glob(f"{ASIDE}*"):
            remove_checkpoint_files(path)
        with suppress(OSError):
            where.rmdir()

    def clean(self) -> None:
        """Delete what processes have left that have ended: temporary files, deleted files, unneeded checkpoints.

        The lock is held.
        """
        self.clean_temporaries()
        for path in (self.path / CHECKPOINTS).glob(f"{ASIDE}*"):
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
            self.remove_journal(manifest)
            self.remove_checkpoints(manifest.checkpoints)
        if manifest.checkpoints != self.checkpoints():
            self.put(replace(manifest, checkpoints=self.checkpoints()))

    def clean_temporaries(self) -> None:
        """Delete the temporary files of processes that have ended; the lock is held."""
        for path in (*self._inside(), *self._inside("models")):
            if is_temporary(path.name) and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)
        old = self.path / lock.OLD_LOCK
        if lock.is_dead(old):
            old.unlink(missing_ok=True)

    @property
    def left_over(self) -> bool:
        """Whether `clean` would delete anything, as far as names tell."""
        manifest = self.manifest()
        if manifest is None:
            return False
        over = manifest.kind == "run" and manifest.state == COMPLETE
        names = {path.name for path in (*self._inside(), *self._inside("models"))}
        old = journal.header(self.path / JOURNAL) if over else None
        return (
            any(map(is_temporary, names))
            or lock.LOCK in names
            or bool(manifest.replaced or manifest.writing)
            or (over and (bool(manifest.checkpoints) or (old is not None and old.get("id", "") == manifest.id)))
        )


def looks_ours(path: Path, name: str) -> bool:
    """Whether a file looks like the one that dspodfl writes under this name."""
    if name == JOURNAL:
        return path.is_file() and not path.is_symlink() and journal.header(path) is not None
    return recognised(path, name)


def recognised_manifest(folder: Path) -> bool:
    """Whether a folder has a manifest of ours that is sound."""
    try:
        return Folder(folder).manifest() is not None
    except DataError:
        return False


def _is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint, whole or damaged, and nothing else is in it."""
    if path.is_symlink():
        return False
    names = [file.name for file in path.iterdir()]
    return bool(names) and all(CHECKPOINT_FILES.fullmatch(name) for name in names)


def remove_checkpoint_files(path: Path) -> None:
    """Delete the files of a checkpoint, and its folder unless something else is in it."""
    if path.is_symlink() or not path.is_dir():
        return
    for file in path.iterdir():
        if (CHECKPOINT_FILES.fullmatch(file.name) or is_temporary(file.name)) and not file.is_symlink():
            with suppress(OSError):
                file.unlink()
    with suppress(OSError):
        path.rmdir()
