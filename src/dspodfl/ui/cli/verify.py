"""Verify the files of folders: every file that the manifest of a folder names, its checkpoints, its log of metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dspodfl.errors import DataError
from dspodfl.experiments import RESULT, Outcome, is_outcome
from dspodfl.study import Result
from dspodfl.study.store import (
    CHECKPOINTS,
    COMPLETE,
    MANIFEST,
    METRICS_LOGS,
    Folder,
    Manifest,
    checkpoint,
    entry_of,
    has_metrics_log,
    is_folder,
    is_temporary,
    lock,
    metrics_log,
)


@dataclass
class Verified:
    """What was found in one folder."""

    folder: Path
    kind: str
    files: int = 0
    damage: list[str] = field(default_factory=list)
    """A line for each file that is missing or damaged."""
    others: list[str] = field(default_factory=list)
    """Files that are not ours: nothing is known of them."""
    verified: bool = True
    """Whether there were checksums to compare with."""

    def __str__(self) -> str:
        count = f"{self.files} file{'' if self.files == 1 else 's'}"
        intact = "whole" if self.verified else "can be read, but have no checksums to compare with (version 0.1)"
        state = f"{len(self.damage)} damaged" if self.damage else intact
        others = f"; not ours: {', '.join(self.others)}" if self.others else ""
        return f"{self.folder}: {self.kind}, {count}, {state}{others}"


def verify(folder: Path) -> list[Verified]:
    """Verify a folder of dspodfl's, and those inside it.

    Args:
        folder: of a run, a sweep, an experiment, cells or the theory; or one that has such in it.

    Returns:
        What was found, folder by folder.

    Raises:
        DataError: there is no folder of dspodfl's.
    """
    if not is_folder(folder):
        raise DataError(f"{folder}: not a folder")
    try:
        found = list(_walk(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error})") from None
    if not found:
        raise DataError(f"{folder}: neither the folder of a run, a sweep or an experiment, nor one with such in it")
    return found


def _walk(folder: Path) -> Iterator[Verified]:
    found = _verify(folder)
    if found is not None:
        yield found
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name not in (CHECKPOINTS, "models"):
            yield from _walk(path)


def _verify(folder: Path) -> Verified | None:
    files = Folder(folder)
    try:
        manifest = files.manifest()
    except DataError as error:
        return Verified(folder, "unknown", 1, [str(error)])
    if manifest is None:
        return _without_manifest(folder)
    found = Verified(folder, manifest.kind, 1)  # the manifest itself is one
    for name in manifest.names:
        found.files += 1
        problem = files.problem(name, manifest)
        if problem and not _pending(files, name, manifest):
            found.damage.append(f"{folder}: {name} {problem}")
    if manifest.kind in ("run", "experiment"):
        _unfinished(found, manifest)
    ours = {*manifest.names, *manifest.replaced, MANIFEST, lock.LOCK, *METRICS_LOGS, CHECKPOINTS}
    paths = [path for path in (*folder.iterdir(), *_inside(folder / "models")) if not path.is_dir()]
    names = [path.relative_to(folder).as_posix() for path in paths if not is_temporary(path.name)]
    found.others = sorted(name for name in names if name not in ours)
    return found


def _pending(files: Folder, name: str, manifest: Manifest) -> bool:
    """Whether a file was about to be written when its process ended: it is not there yet, or is still the old one."""
    path = files.path / name
    if name in manifest.files:
        return False
    return not path.exists() or (path.is_file() and entry_of(path) == manifest.replaced.get(name))


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _unfinished(found: Verified, manifest: Manifest) -> None:
    """The log of metrics and the checkpoints of a run, the checkpoints of a grid."""
    folder = found.folder
    if manifest.kind == "run" and manifest.state != COMPLETE and has_metrics_log(folder, manifest):
        found.files += 1
        found.damage += _log(folder)
    for name in manifest.checkpoints if manifest.state != COMPLETE else ():
        path = folder / CHECKPOINTS / name
        if path.is_dir():
            found.files += 1
            try:
                checkpoint.load(path)
            except DataError as error:
                found.damage.append(str(error))


def _log(folder: Path) -> list[str]:
    path = metrics_log.path_in(folder)
    try:
        return [f"{folder}: {damage}" for damage in metrics_log.read(path).damage]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{folder}: {path.name} is damaged ({error})"]


def _without_manifest(folder: Path) -> Verified | None:
    """A folder of version 0.1, read as a whole."""
    if (folder / RESULT).is_file():
        if not is_outcome(folder):  # of the theory: it has been read to tell
            return Verified(folder, "theory", sum(path.is_file() for path in folder.iterdir()), verified=False)
        kind, load = "experiment", lambda: Outcome.load(folder)
    elif (folder / "config.toml").is_file() and any((folder / n).is_file() for n in ("summary.json", *METRICS_LOGS)):
        kind, load = "run", lambda: Result.load(folder)  # type: ignore[assignment,return-value]
    else:
        return None
    found = Verified(folder, kind, sum(path.is_file() for path in folder.iterdir()), verified=False)
    try:
        load()
    except DataError as error:
        found.damage.append(str(error))
    found.damage += _log(folder) if kind == "run" and metrics_log.path_in(folder).is_file() else []
    for path in checkpoint.CheckpointStore(folder).committed() if kind == "run" else ():
        try:
            checkpoint.load(path)
        except DataError as error:
            found.damage.append(str(error))
    return found
