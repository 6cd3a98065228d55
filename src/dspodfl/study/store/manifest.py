"""What a folder says of itself: its kind and state, and the size and SHA-256 of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dspodfl.errors import DataError, InputError, bounded
from dspodfl.study.store.files import Entry
from dspodfl.study.store.layout import COMPLETE, FORMAT, KINDS


class DamagedError(DataError):
    """A file is not what was written."""


class ForeignFileError(InputError):
    """A file of others has a name that must be written.

    Args:
        path: The file.
        field_: The option that the message names.
    """

    def __init__(self, path: Path, field_: str = "out") -> None:
        super().__init__(
            field_,
            str(path.parent),
            f"a folder without a foreign {path.name}: it is not what dspodfl wrote there; move it away",
        )


@dataclass(frozen=True)
class Manifest:
    """What a folder says of itself: kind, state, and the size and SHA-256 of every file."""

    kind: str
    state: str = COMPLETE
    id: str = ""
    """Of a run: its log of metrics has the same one."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What a run was started with: ``config`` (TOML), ``options``."""
    files: Mapping[str, Entry] = field(default_factory=dict)
    writing: Mapping[str, Entry] = field(default_factory=dict)
    """The files that are being replaced: what they are, or are about to be."""
    replaced: Mapping[str, Entry] = field(default_factory=dict)
    """What is about to be deleted: files that a former run has left, and its checkpoints."""
    checkpoints: tuple[str, ...] = ()
    """The checkpoints that were written, by name."""

    @staticmethod
    def parse(content: bytes, path: Path) -> Manifest:
        """Read a manifest, and compare it with its own checksum.

        Args:
            content: The content of the file.
            path: The file, for messages.

        Returns:
            What it says.

        Raises:
            DamagedError: It is not what was written.
            DataError: It is of a later format.
        """
        try:
            found = bounded.parse_json(content)
            kind, later = found["kind"], int(found["format"]) > FORMAT
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(_unsound(path, f"cannot be read ({error})")) from None
        if kind not in KINDS:
            raise DamagedError(_unsound(path, f"is of kind {kind!r}, which dspodfl does not write"))
        if later:
            raise DataError(f"{path}: written by a later version of dspodfl (format {found['format']}, here {FORMAT})")
        try:
            same = content == _serialized({key: value for key, value in found.items() if key != "sha256"})
            fields = {key: value for key, value in found.items() if key not in ("sha256", "format")}
            manifest = Manifest(**fields | {"checkpoints": tuple(fields.get("checkpoints", ()))})
        except (ValueError, TypeError) as error:
            raise DamagedError(_unsound(path, f"cannot be read ({error})")) from None
        if not same:
            raise DamagedError(_unsound(path, "is not what was written (its SHA-256 differs)"))
        return manifest

    def serialized(self) -> bytes:
        """Return the manifest as a file.

        Returns:
            The content of manifest.json.
        """
        return _serialized({"format": FORMAT, **asdict(self)})

    def entries(self, name: str) -> list[Entry]:
        """Return what a file may be: the old or the new one, where it is being replaced.

        Args:
            name: The file.

        Returns:
            Size and SHA-256 of each.
        """
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
