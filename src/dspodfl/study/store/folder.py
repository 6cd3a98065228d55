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
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dspodfl.errors import DataError, InputError, bounded
from dspodfl.study.store import lock
from dspodfl.study.store import metrics_log as journal
from dspodfl.study.store.files import ASIDE, Entry, entry, entry_of, is_temporary, recognised, sync, temporary, write
from dspodfl.study.store.metrics_log import JOURNAL

MANIFEST = "manifest.json"
"""The file that lists every file of a folder with its checksum."""
FORMAT = 1
"""What manifests are written in; a later one is refused."""
KINDS = ("run", "experiment", "cells", "theory")
NEW = "a folder that does not exist yet (or use --overwrite, from Python overwrite=True)"
"""What is allowed where a folder is there already."""
CLAIMED, UNFINISHED, INTERRUPTED, COMPLETE = "claimed", "unfinished", "interrupted", "complete"
"""States: nothing was measured; something is being measured; a result of what was measured so far; the whole result."""
PICTURES = re.compile(r"[\w-]+\.(png|svg)")
"""Drawn again at any time: ours where they look so, whether or not the manifest names them."""
CHECKPOINTS = "checkpoints"
"""The folder of checkpoints within the folder of a run."""
_IN_A_CHECKPOINT = re.compile(
    r"manifest\.json|metrics(-\d+)?\.parquet|accuracies\.safetensors|(state|wave)-[\d-]+\.safetensors"
)
_LOCK_SECONDS = 30.0


class DamagedError(DataError):
    """A file is not what was written."""


class ForeignFileError(InputError):
    """A file that is not ours is in the way."""

    def __init__(self, path: Path, field_: str = "out") -> None:
        super().__init__(
            field_,
            str(path.parent),
            f"a folder without a foreign {path.name}: it is not what dspodfl wrote there; move it away",
        )


@dataclass(frozen=True)
class Manifest:
    """What a folder holds."""

    kind: str
    state: str = COMPLETE
    id: str = ""
    """Of a run: its journal has the same one."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What a run was started with: ``config`` (TOML), ``options``."""
    files: Mapping[str, Entry] = field(default_factory=dict)
    writing: Mapping[str, Entry] = field(default_factory=dict)
    """What files are, or are about to be."""
    replaced: Mapping[str, Entry] = field(default_factory=dict)
    """What is about to be deleted: files that a former run has left, and its checkpoints."""
    checkpoints: tuple[str, ...] = ()
    """The checkpoints that were written, by name."""

    @staticmethod
    def parse(content: bytes, path: Path) -> Manifest:
        """Read a manifest, once its own checksum is found to be right.

        Raises:
            DamagedError: it is not what was written.
            DataError: it is of a later format.
        """
        try:
            found = bounded.parse_json(content)
            kind, later = found["kind"], int(found["format"]) > FORMAT
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(_unsound(path, f"cannot be read ({error})")) from None
        if kind not in KINDS:
            raise DamagedError(_unsound(path, f"is of kind {kind!r}, which is none of ours"))
        if later:
            raise DataError(f"{path}: written by a later version of dspodfl (format {found['format']}, here {FORMAT})")
        try:
            sound = content == _serialized({key: value for key, value in found.items() if key != "sha256"})
            fields = {key: value for key, value in found.items() if key not in ("sha256", "format")}
            manifest = Manifest(**fields | {"checkpoints": tuple(fields.get("checkpoints", ()))})
        except (ValueError, TypeError) as error:
            raise DamagedError(_unsound(path, f"cannot be read ({error})")) from None
        if not sound:
            raise DamagedError(_unsound(path, "is not what was written (its SHA-256 differs)"))
        return manifest

    def serialized(self) -> bytes:
        """As the bytes of manifest.json."""
        return _serialized({"format": FORMAT, **asdict(self)})

    def entries(self, name: str) -> list[Entry]:
        """What a file may be: the old or the new one, where it is being replaced."""
        return [table[name] for table in (self.files, self.writing) if name in table]

    @property
    def names(self) -> list[str]:
        """The files that the folder should hold; what is about to be deleted is left out."""
        return list(dict.fromkeys([*self.files, *self.writing]))


def _serialized(content: Mapping[str, Any]) -> bytes:
    plain = json.loads(json.dumps(content))
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return (json.dumps(plain | {"sha256": digest}, indent=1, sort_keys=True) + "\n").encode()


def _unsound(path: Path, what: str) -> str:
    return f"{path.parent}: {path.name} {what}; without it the other files can be read, but not verified"


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
        sign = {
            "run": [["config.toml"], ["summary.json", "metrics.parquet", JOURNAL]],
            "experiment": [["grid.json"]],
            "theory": [["result.json"]],
            "cells": [],
        }[self.kind]
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


class Loose:
    """Writes files of a folder whose lock another process has: its manifest stays as it is."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all, unless something that is not ours has this name."""
        self._folder.guard([name])
        write(self._folder.path / name, content)


class Change:
    """Files that are written together."""

    def __init__(self, folder: Folder, before: Manifest, target: Manifest, only: bool) -> None:
        self._folder, self._before, self._target, self._only = folder, before, target, only
        self._temporaries: dict[str, Path] = {}
        self._entries: dict[str, Entry] = {}

    def write(self, name: str, content: bytes) -> None:
        """Write what a file is to hold to a temporary one.

        Raises:
            ForeignFileError: something that is not ours has this name.
        """
        self._folder.guard([name])
        path = self._folder.path / name
        path.parent.mkdir(exist_ok=True)
        self._temporaries[name], self._entries[name] = temporary(path, content), entry(content)

    @property
    def names(self) -> set[str]:
        """What was written so far."""
        return set(self._temporaries)

    def commit(self) -> None:
        """Let the new files take the place of the old ones."""
        folder, before, new = self._folder, self._before, self._entries
        same = (self._target.kind, self._target.id) == (before.kind, before.id)
        stay, gone = dict(before.files), dict(before.replaced)
        if self._only:
            gone |= folder.known()
            stay = {name: old for name, old in stay.items() if same and name in new}
        if not same:
            gone |= {f"{CHECKPOINTS}/{name}": {} for name in before.checkpoints}
        # What another run left under a name that is written now is the old file until it is replaced.
        gone = {name: old for name, old in gone.items() if name not in new or not same}
        if not (new or gone) and self._target == before:
            return
        # The state is that of what is there: it is complete once all files are.
        state = before.state if same else UNFINISHED if self._target.state == UNFINISHED else CLAIMED
        folder.put(replace(self._target, state=state, files=stay, writing=new, replaced=gone))
        for name, path in list(self._temporaries.items()):
            os.replace(path, folder.path / name)
            del self._temporaries[name]
        for parent in {(folder.path / name).parent for name in new}:
            sync(parent)
        if not same:
            folder.remove_journal(before)
        folder.remove({name: old for name, old in gone.items() if name not in new})
        folder.put(replace(self._target, files=stay | new, writing={}, replaced={}))

    def discard(self) -> None:
        """Delete the temporary files that took no place."""
        for path in self._temporaries.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._temporaries = {}


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
    return bool(names) and all(_IN_A_CHECKPOINT.fullmatch(name) for name in names)


def remove_checkpoint_files(path: Path) -> None:
    """Delete the files of a checkpoint, and its folder unless something else is in it."""
    if path.is_symlink() or not path.is_dir():
        return
    for file in path.iterdir():
        if (_IN_A_CHECKPOINT.fullmatch(file.name) or is_temporary(file.name)) and not file.is_symlink():
            with suppress(OSError):
                file.unlink()
    with suppress(OSError):
        path.rmdir()


def claim(folder: Path, *, overwrite: bool, names: Iterable[str] = (), kind: str = "run") -> None:
    """Refuse a folder that cannot or must not be written, before anything is computed.

    Args:
        folder: where files are to be written.
        overwrite: whether it may exist.
        names: the files that are to be written: where something that is not ours has one of them, that is an error.
        kind: what the folder is written as.

    Raises:
        InputError: says what is wrong.
    """
    try:
        os.path.abspath(folder).encode()
    except UnicodeEncodeError:
        raise InputError("out", ascii(str(folder)), "a path in UTF-8") from None
    try:
        if folder.is_dir() and not overwrite and not abandoned(folder):
            raise InputError("out", str(folder), NEW)
        if os.path.lexists(folder) and not folder.is_dir():
            raise InputError("out", str(folder), "a folder; there is a file of that name")
        where = folder
        while not where.exists():
            where = where.parent
        with tempfile.TemporaryFile(dir=where):  # it has no name: nothing is left of it, whatever happens
            pass
        if folder.is_dir():
            Folder(folder, kind).guard(names)
    except OSError as error:
        raise InputError("out", str(folder), f"a folder that can be written ({error.strerror or error})") from None


def abandoned(folder: Path) -> bool:
    """Whether all that a folder holds was left by a process that ended before it had written anything."""
    paths = list(folder.iterdir())
    return bool(paths) and all(lock.is_dead(path) or is_temporary(path.name) for path in paths)
