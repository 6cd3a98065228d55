"""The reading half of a folder: its manifest, its files compared with it, and which files are those of dspodfl."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from dspodfl.errors import DataError, bounded
from dspodfl.study.store import metrics_log
from dspodfl.study.store.files import Entry, entry, entry_of, recognised
from dspodfl.study.store.layout import CLAIMED, MANIFEST, METRICS_LOGS, PICTURES, SIGNS_OF_0_1, UNFINISHED
from dspodfl.study.store.manifest import DamagedError, ForeignFileError, Manifest


class FolderReader:
    """Read the files of a folder.

    Args:
        path: The folder.
        kind: What the folder is written as.
    """

    def __init__(self, path: Path, kind: str = "run") -> None:
        self.path, self.kind = Path(path), kind

    def manifest(self) -> Manifest | None:
        """Read the manifest of the folder.

        Returns:
            What the folder says of itself; None where it has no manifest (version 0.1, or a folder of others).

        Raises:
            DamagedError: The manifest is not what was written.
            DataError: It cannot be read, or is of a later format.
        """
        path = self.path / MANIFEST
        try:
            content = bounded.read_bytes(path, bounded.JSON)
        except bounded.MissingFileError:
            return None
        except DataError as error:
            raise DataError(f"{self.path}: {MANIFEST} {_problem(path, error)}") from None
        return Manifest.parse(content, path)

    def holds(self, name: str) -> bool:
        """Return whether the folder should hold a file of dspodfl.

        Args:
            name: The file.

        Returns:
            Whether the manifest names it; without a manifest, whether it is there.
        """
        manifest = self.manifest()
        return (self.path / name).is_file() if manifest is None else name in manifest.names

    def read(self, name: str, limit: int = bounded.DATA) -> bytes:
        """Read a regular file and compare it with the manifest, if there is one.

        Args:
            name: The file.
            limit: The largest size allowed, in bytes.

        Returns:
            The content of the file.

        Raises:
            DamagedError: It is missing, no regular file, larger than allowed, or not what was written.
        """
        path = self.path / name
        for attempt in range(5):
            manifest = self.manifest()
            try:
                content = bounded.read_bytes(path, limit)
            except bounded.MissingFileError:
                content, problem = None, "is missing"
            except DataError as error:
                content, problem = None, _problem(path, error)
            if content is not None:
                if manifest is None or name not in manifest.names or entry(content) in manifest.entries(name):
                    return content
                problem = "is damaged: it is not what was written (its SHA-256 differs)"
            if self.manifest() == manifest:  # else another process has changed the folder in between
                break
            time.sleep(0.02 * (attempt + 1))
        raise DamagedError(f"{self.path}: {name} {problem}")

    def problem(self, name: str, manifest: Manifest) -> str | None:
        """Compare a file with the manifest.

        Args:
            name: A file that the manifest names.
            manifest: The manifest of the folder.

        Returns:
            What is wrong with the file; None where it is what was written.
        """
        path = self.path / name
        try:
            if not path.is_file():
                return "is missing"
            if entry_of(path) not in manifest.entries(name):
                return "is damaged: it is not what was written (its SHA-256 differs)"
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"
        return None

    # --- files of dspodfl, and files of others -------------------------------------------------------------------

    def known(self) -> dict[str, Entry]:
        """Return the files of dspodfl that are what was written; those of version 0.1 are known by their content.

        Returns:
            File -> its size and SHA-256.
        """
        manifest = self.manifest()
        if manifest is None:
            return {name: entry_of(self.path / name) for name in self._recognised()}
        names = dict.fromkeys([*manifest.names, *manifest.replaced])
        return {name: entry_of(self.path / name) for name in names if self._ours(name, manifest)}

    def _recognised(self) -> list[str]:
        """The files of a folder of version 0.1, if it is one."""
        sign = SIGNS_OF_0_1[self.kind]
        if not all(any(looks_ours(self.path / name, name) for name in some) for some in sign):
            return []
        paths = self._inside() + self._inside("models")
        names = [path.relative_to(self.path).as_posix() for path in paths]
        return [name for name in names if name not in METRICS_LOGS and looks_ours(self.path / name, name)]

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
        """Refuse to overwrite files of others.

        Args:
            names: The files that are about to be written.
            field_: The option that an error names.

        Raises:
            ForeignFileError: A file of others has one of these names; it names the first.
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
            if name in METRICS_LOGS and looks_ours(path, name):
                continue
            if PICTURES.fullmatch(name) and looks_ours(path, name):
                continue
            if legacy is not None and name in legacy:
                continue
            if manifest and (name in (*manifest.names, *manifest.replaced)) and self._ours(name, manifest):
                continue
            if manifest and name in METRICS_LOGS and manifest.state in (UNFINISHED, CLAIMED) and path.is_file():
                continue
            raise ForeignFileError(path, field_)


def _problem(path: Path, error: DataError) -> str:
    """What an error says of a file, without the name of the file."""
    return str(error).removeprefix(f"{bounded.name_of(path)}: ")


def looks_ours(path: Path, name: str) -> bool:
    """Return whether a file looks like the one that dspodfl writes under this name.

    Args:
        path: The file.
        name: Its name within the folder of a run.

    Returns:
        Whether its content is of the kind that dspodfl writes.
    """
    if name in METRICS_LOGS:
        return path.is_file() and not path.is_symlink() and metrics_log.header(path) is not None
    return recognised(path, name)


def recognised_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest of dspodfl that is not damaged.

    Args:
        folder: The folder.

    Returns:
        False where it has none, or one that is damaged.
    """
    try:
        return FolderReader(folder).manifest() is not None
    except DataError:
        return False


def has_metrics_log(folder: Path, manifest: Manifest) -> bool:
    """Return whether the log of metrics in a folder is that of its run.

    Args:
        folder: The folder of the run.
        manifest: Its manifest.

    Returns:
        Whether the first line has the same ``id``; where that line is damaged, whether the run is not finished.
    """
    path = metrics_log.path_in(folder)
    found = metrics_log.header(path)
    if found is None:
        return manifest.state == UNFINISHED and path.is_file()
    return bool(found.get("id", "") == manifest.id)
