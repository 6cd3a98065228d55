"""The folder of a node: what it is of, its configuration, and the models that it has written.

| file | content |
|---|---|
| `node.json` | `kind` (`node`), `format`, `id`, `run_id`, `config` (a SHA-256), `own_test`, `versions` |
| `config.toml` | the resolved configuration |
| `models/` | the models at evaluated iterations (`dspodfl.nodes.models_file`) |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspodfl.config import FREE
from dspodfl.errors import DataError, InputError, bounded
from dspodfl.nodes.models_file import CAP, LAST, ROWS, Header, ModelsWriter, StoredModels
from dspodfl.study.store import write

NODE = "node.json"
"""The file that says which node the folder is of."""
CONFIG = "config.toml"
"""The file of the resolved configuration of a node."""
MODELS = "models"
"""The folder of the models of a node."""
_KIND, _FORMAT = "node", 1
_OF_MACHINES = (*FREE, "nodes")
"""Tables that do not change what is trained: they may differ from node to node."""


@dataclass(frozen=True, eq=False)
class NodeFolder:
    """The folder of a node.

    Args:
        path: The folder.
        id: The id of the node, and of its client.
        run_id: The run id of the study.
        config: The resolved configuration, as TOML.
        own_test: Whether it evaluates on a test set of its own.
    """

    path: Path
    id: int
    run_id: str
    config: str
    own_test: bool = False

    @property
    def tables(self) -> dict[str, Any]:
        """What of the configuration decides what is trained."""
        return {key: value for key, value in bounded.parse_toml(self.config).items() if key not in _OF_MACHINES}

    def open(self, versions: Mapping[str, str] | None = None) -> None:
        """Make the folder of a node, or take that of the same node of the same run.

        Args:
            versions: Package -> its version, for people.

        Raises:
            InputError: It is the folder of another node, run or configuration; nothing is changed.
            DataError: It is damaged, or cannot be written.
        """
        if (self.path / NODE).exists():
            check_same(NodeFolder.read(self.path), self)
            return
        about = {"kind": _KIND, "format": _FORMAT, "id": self.id, "run_id": self.run_id, "own_test": self.own_test}
        about |= {"config": digest(self.tables), "versions": dict(versions or {})}
        try:
            if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / CONFIG).exists():
                raise InputError("out", str(self.path), "an empty folder, or that of the same node and run")
            (self.path / MODELS).mkdir(parents=True, exist_ok=True)
            write(self.path / CONFIG, self.config.encode())
            write(
                self.path / NODE, (json.dumps(about, indent=2) + "\n").encode()
            )  # the last: it says that all is there
        except OSError as error:
            raise DataError(f"{self.path}: cannot be written ({error.strerror})") from None

    @staticmethod
    def read(path: Path) -> NodeFolder:
        """Read the folder of a node.

        Args:
            path: The folder.

        Returns:
            What it is of.

        Raises:
            DataError: It is not the folder of a node, or it is damaged.
        """
        try:
            about = bounded.read_json(path / NODE, 2**20)
        except bounded.MissingFileError:
            raise DataError(f"{path}: not the folder of a node (no {NODE} in it)") from None
        if not isinstance(about, dict) or about.get("kind") != _KIND or about.get("format") != _FORMAT:
            raise DataError(f"{path}: {NODE} is not that of a node, or of a later format")
        id_, run_id, own = (about.get(key) for key in ("id", "run_id", "own_test"))
        typed = isinstance(id_, int) and not isinstance(id_, bool) and isinstance(run_id, str) and isinstance(own, bool)
        if not typed:
            raise DataError(f"{path}: {NODE} is damaged (id, run_id or own_test is not what a node writes)")
        found = NodeFolder(path, int(str(id_)), str(run_id), bounded.read_text(path / CONFIG, bounded.TOML), bool(own))
        try:
            same = digest(found.tables) == about.get("config")
        except (DataError, ValueError):
            same = False
        if not same:
            raise DataError(f"{path}: {CONFIG} is damaged: it is not what the node was started with")
        return found

    def writer(self, header: Header, cap: int = CAP) -> ModelsWriter:
        """Return what appends the models of an algorithm and seed.

        Args:
            header: What the rows are.
            cap: Bytes of models that are kept.
        """
        return ModelsWriter(self.path / MODELS, header, cap)

    def models(self) -> tuple[dict[tuple[str, int], list[StoredModels]], list[str]]:
        """Read which models there are.

        Returns:
            (label, seed) -> the file of all rows, then that of the last row beyond the cap; and a line for each file or
            row that is damaged, or not of this node.
        """
        found: dict[tuple[str, int], list[StoredModels]] = {}
        notes: list[str] = []
        where = self.path / MODELS
        paths = [path for path in sorted(where.iterdir()) if path.suffix in (ROWS, LAST)] if where.is_dir() else []
        for path in sorted(paths, key=lambda path: path.suffix == LAST):
            try:
                stored = StoredModels.read(path)
            except DataError as error:
                notes.append(f"{error}; its models are missing")
                continue
            if (stored.header.id, stored.header.run_id) != (self.id, self.run_id):
                notes.append(f"{path}: of another node or run; it is left out")
                continue
            found.setdefault((stored.header.algorithm, stored.header.seed), []).append(stored)
            notes += stored.damage
            if path.suffix == LAST:
                notes.append(f"{path}: only the last model was kept beyond the limit of the node; others are missing")
        return found, notes


def digest(tables: Mapping[str, Any]) -> str:
    """Return the SHA-256 of tables, which does not depend on the order of their keys.

    Args:
        tables: Plain values.

    Returns:
        64 hexadecimal digits.

    >>> digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def check_same(found: NodeFolder, wanted: NodeFolder, *, id: bool = True) -> None:
    """Refuse a folder of another node, run or configuration.

    Args:
        found: The folder.
        wanted: What it should be of.
        id: Whether it must be of the same node.

    Raises:
        InputError: It differs; the first key that differs is named.
    """
    there = str(found.path)
    if id and found.id != wanted.id:
        raise InputError("folder", there, f"that of node {wanted.id}; it is that of node {found.id}")
    if found.run_id != wanted.run_id:
        raise InputError("folder", there, f"of the run {wanted.run_id!r}; it is of the run {found.run_id!r}")
    key = first_difference(wanted.tables, found.tables)
    if key is not None:
        raise InputError("folder", there, f"of the same configuration as {wanted.path}: {key} differs")


def first_difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return the first key, dotted, at which two tables differ.

    Args:
        one: Plain values.
        other: Plain values.
        path: The key of both.

    Returns:
        The key; None where they are equal.

    >>> first_difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
    'b.c'
    """
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return None if one == other else path
    for key in dict.fromkeys([*one, *other]):
        inner = f"{path}.{key}" if path else str(key)
        found = first_difference(one.get(key), other.get(key), inner)
        if found is not None:
            return found
    return None
