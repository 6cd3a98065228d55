"""What the folders hold: which can be shown, which are skipped and why, and their files, read with bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspodfl.errors import DataError
from dspodfl.folder import COMPLETE, INTERRUPTED, Folder, Manifest
from dspodfl.journal import JOURNAL
from dspodfl.outcome import RESULT

SUMMARY, GRID = "summary.json", "grid.json"
LARGEST = 64 * 2**20
"""Bytes: a text or a picture that is larger is none of ours."""
_THEORY = ({"guaranteed"}, {"axes", "rows"})
"""Keys of the result.json of a bound, and of a sweep of bounds."""


@dataclass
class Found:
    """The folders of runs, sweeps and reproductions, each once; and why others are skipped."""

    folders: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def collect(folders: Sequence[Path]) -> Found:
    """Look through folders, and through their sub-folders where they are no results themselves.

    Raises:
        DataError: one of them is no folder.
    """
    found = Found()
    known: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: not a folder; must be that of a run, a sweep or a reproduction, or hold such")
        inside = [folder]
        if _state(folder) is None:
            try:
                inside = sorted(path for path in folder.iterdir() if path.is_dir() and _state(path) is not None)
            except OSError as error:
                found.skipped.append(f"{folder}: cannot be read ({error.strerror})")
                continue
            if not inside:
                found.skipped.append(
                    f"{folder}: holds no run ({SUMMARY}), sweep or reproduction ({RESULT}), nor do its sub-folders"
                )
        for path in inside:
            state = _state(path)
            if path.resolve() in known:
                continue
            known.add(path.resolve())
            if state == "finished":
                found.folders.append(path)
            else:
                found.skipped.append(f"{path}: {state}")
    return found


def _state(folder: Path) -> str | None:
    """Return ``finished``, why a folder is skipped, or None where it holds nothing of ours."""
    try:
        manifest = _manifest(folder)
        if manifest is not None:
            return _told(folder, manifest)
        if (folder / RESULT).is_file():
            return "a result of the theory, which has no section here" if _is_theory(folder) else "finished"
        if (folder / JOURNAL).is_file():
            return f"not finished; continue it with: dspodfl run --resume {folder}"
        if (folder / SUMMARY).is_file():
            return "finished"
        if (folder / GRID).is_file():
            return "not finished; the command that began it continues it"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def _manifest(folder: Path) -> Manifest | None:
    try:
        return Folder(folder).manifest()
    except DataError:
        return None  # damaged: that is said where its files are read


def _told(folder: Path, manifest: Manifest) -> str | None:
    """What the manifest says of a folder."""
    if manifest.kind.startswith("theory"):
        return "a result of the theory, which has no section here"
    if manifest.kind not in ("run", "experiment"):
        return None
    if manifest.state == COMPLETE or (manifest.kind == "run" and manifest.state == INTERRUPTED):
        return "finished"
    how = f"continue it with: dspodfl run --resume {folder}" if manifest.kind == "run" else "its command continues it"
    return f"not finished; {how}"


def _is_theory(folder: Path) -> bool:
    try:
        record = json.loads(read(folder, RESULT))
    except (DataError, ValueError, RecursionError):
        return False  # damaged: what it is said to be is found out when it is loaded
    return isinstance(record, dict) and "kind" not in record and any(keys <= record.keys() for keys in _THEORY)


def read(folder: Path, name: str) -> bytes:
    """Read a file of a folder.

    Raises:
        DataError: it is missing, no regular file, too large, or cannot be read.
    """
    path = folder / name
    try:
        if not path.is_file():
            raise DataError(f"{folder}: {name} is missing")
        if path.stat().st_size > LARGEST:
            raise DataError(f"{folder}: {name} is larger than {LARGEST // 2**20} MB")
        return Folder(folder).read(name)
    except OSError as error:
        raise DataError(f"{folder}: {name} cannot be read ({error.strerror})") from error


def record(folder: Path, name: str) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        DataError: it does not.
    """
    try:
        found = json.loads(read(folder, name))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{folder}: {name} is damaged ({type(error).__name__})") from error
    if not isinstance(found, dict):
        raise DataError(f"{folder}: {name} is damaged (no table in it)")
    return found
