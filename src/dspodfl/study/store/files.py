"""Single files: written whole or not at all, hashed, and recognised as files that dspodfl writes."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import secrets
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEMPORARY = ".dspodfl-"
"""Temporary files begin with this: their length does not depend on the name they stand in for."""
UNCOMMITTED = ".aside-"
"""Checkpoints that are being written, or removed, begin with this."""
_OLD_TEMPORARY = re.compile(
    r"\.(config\.toml|(metrics|clients|[0-9a-f]{16})\.parquet|(setting|events)\.npz|(summary|grid|result|manifest)\.json"
    r"|table\.csv|curves\.csv|(figure|accuracy_vs_delay)\.(png|svg)|network\.png|.+-seed-?\d+\.safetensors)\.[a-z0-9_]{8}"
    r"|\.metrics\.journal\.aside"
)
"""Temporary files of version 0.1."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, zipfile.BadZipFile)

Entry = dict[str, Any]
"""Size (``bytes``) and ``sha256`` of a file."""


def write(path: Path, content: bytes, *, new: bool = False) -> None:
    """Write a file whole or not at all: a temporary file next to it, forced onto the device, then renamed.

    Args:
        path: the file; a symbolic link is followed. Anything but a regular file is refused.
        content: what it holds afterwards.
        new: refuse a file that exists.

    Raises:
        FileExistsError: ``new``, and the file exists.
        OSError: it cannot be written; what was there before is as it was.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    if new and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    name = temporary(path, content)
    try:
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def temporary(path: Path, content: bytes) -> Path:
    """Write what a file is to hold next to it, and force it onto the device; gives the temporary file."""
    name = path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}")
    try:
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    return name


def sync(folder: Path) -> None:
    """Force the names in a folder onto the device: what was renamed there stays renamed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path; at one that no folder can have, there is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def entry(content: bytes) -> Entry:
    """Size and SHA-256 of bytes."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def entry_of(path: Path) -> Entry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.seek(0, io.SEEK_END), "sha256": digest}


def is_temporary(name: str) -> bool:
    """Whether a file of this name is a temporary one of ours; of a process that has ended, where nobody has the lock.

    >>> is_temporary(".dspodfl-0123abcd"), is_temporary(".metrics.parquet.x7k_2abq"), is_temporary(".summary.json.swp")
    (True, True, False)
    """
    return re.fullmatch(rf"{re.escape(TEMPORARY)}[0-9a-f]{{8}}", name) is not None or (
        _OLD_TEMPORARY.fullmatch(name) is not None
    )


def recognised(path: Path, name: str) -> bool:
    """Whether a file looks like the one that dspodfl writes under this name (of a folder without a manifest)."""
    if path.is_symlink() or not path.is_file():
        return False
    for pattern, looks_so in _SIGNS.items():
        if re.fullmatch(pattern, name):
            try:
                return looks_so(path)
            except _UNREADABLE:
                return False
    return False


def safetensors_about(path: Path) -> Any:
    """What the header of a file of models says of its run; nothing else is read."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > 100_000_000:
            raise ValueError("not a safetensors file")
        return json.loads(json.loads(file.read(size))["__metadata__"]["run"])


def _config(path: Path) -> bool:
    """A resolved configuration: every table, in our order, and no comment."""
    text = path.read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    known = {"seed", "seeds", "algorithms", "clients", "graph", "rates", "data", "model", "train", "eval"}
    return known <= tables.keys() and text.startswith("seed = ") and not re.search(r"^\s*#", text, re.MULTILINE)


def _parquet(*columns: str) -> Callable[[Path], bool]:
    def looks_so(path: Path) -> bool:
        from pyarrow import parquet

        with path.open("rb") as file:
            return set(columns) <= set(parquet.read_schema(file).names)

    return looks_so


def _npz(pattern: str) -> Callable[[Path], bool]:
    def looks_so(path: Path) -> bool:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            return all(re.fullmatch(pattern, name) for name in archive.namelist())

    return looks_so


def _json(*keys: set[str]) -> Callable[[Path], bool]:
    def looks_so(path: Path) -> bool:
        content = json.loads(path.read_bytes())
        return isinstance(content, dict) and any(some <= content.keys() for some in keys)

    return looks_so


def _begins_with(magic: bytes, word: bytes) -> Callable[[Path], bool]:
    def looks_so(path: Path) -> bool:
        with path.open("rb") as file:
            head = file.read(4096)
        return head.startswith(magic) and word in head.lower()

    return looks_so


def _csv(path: Path) -> bool:
    with path.open("rb") as file:
        return b"algorithm" in file.readline(100_000).split(b",")


def _models(path: Path) -> bool:
    about = safetensors_about(path)
    return {"algorithm", "seed", "layout"} <= about.keys()


_METRICS = _parquet("algorithm", "seed", "iteration", "consensus_error", "delay_total")
_SIGNS: dict[str, Callable[[Path], bool]] = {
    r"config\.toml": _config,
    r"(metrics|[0-9a-f]{16})\.parquet": _METRICS,
    r"clients\.parquet": _parquet("algorithm", "seed", "client", "degree", "samples"),
    r"setting\.npz": _npz(r"-?\d+/\w+\.npy"),
    r"events\.npz": _npz(r".*/-?\d+/(v|v_hat|edges|shape)\.npy"),
    r"summary\.json": _json({"study", "algorithms"}),
    r"result\.json": _json({"name", "axes", "verdicts"}, {"axes", "rows"}, {"guaranteed", "constants", "algorithms"}),
    r"grid\.json": _json({"name", "axes", "read", "cells"}),
    r"(table|curves)\.csv": _csv,
    r"[\w-]+\.png": _begins_with(b"\x89PNG\r\n\x1a\n", b"matplotlib"),
    r"[\w-]+\.svg": _begins_with(b"<?xml", b"matplotlib"),
    r"models/.+\.safetensors": _models,
}
"""Name -> how a file of that name is recognised."""
