"""What the folders hold: which can be shown, which are skipped and why, and their files, read with bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dspodfl.errors import DataError, bounded
from dspodfl.experiments import RESULT, is_theory
from dspodfl.study.store import COMPLETE, INTERRUPTED, MANIFEST, Folder, Manifest, metrics_log

SUMMARY, GRID = "summary.json", "grid.json"
LARGEST = 64 * 2**20
"""Bytes: a text or a picture that is larger is none of ours."""
_THEORY = "a result of the theory, which has no section here"


@dataclass
class Found:
    """The folders of runs, sweeps and reproductions, each once; and why others are skipped."""

    folders: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def collect(folders: Sequence[Path]) -> Found:
    """Search folders, and their sub-folders where they are no results themselves.

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
            return _state_of(folder, manifest)
        if (folder / RESULT).is_file():
            return _THEORY + _without(folder) if _is_theory(folder) else "finished"
        if metrics_log.path_in(folder).is_file():
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
        return None  # damaged: reported where its files are read


def _without(folder: Path) -> str:
    """What is wrong with the manifest of a folder that has none which can be read."""
    return f"; its {MANIFEST} is {'damaged' if (folder / MANIFEST).exists() else 'missing'}"


def _state_of(folder: Path, manifest: Manifest) -> str | None:
    """Return the state of a folder that has a manifest."""
    if manifest.kind.startswith("theory"):
        return _THEORY
    if manifest.kind not in ("run", "experiment"):
        return None
    if manifest.state == COMPLETE or (manifest.kind == "run" and manifest.state == INTERRUPTED):
        return "finished"
    hint = f"continue it with: dspodfl run --resume {folder}" if manifest.kind == "run" else "its command continues it"
    return f"not finished; {hint}"


def _is_theory(folder: Path) -> bool:
    try:
        return is_theory(bounded.read_json(folder / RESULT))
    except DataError:
        return False  # damaged: reported when it is loaded


def read(folder: Path, name: str) -> bytes:
    """Read a file of a folder.

    Raises:
        DataError: it is missing, no regular file, too large, or cannot be read.
    """
    return Folder(folder).read(name, LARGEST)
