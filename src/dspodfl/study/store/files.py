"""Single files: written completely or not at all, hashed, and recognised as files that dspodfl writes."""

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TEMPORARY = ".dspodfl-"
"""Temporary files begin with this: their length does not depend on the name of the file that they replace."""
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


def write(path: Path, content: bytes | Sequence[bytes | memoryview], *, new: bool = False) -> None:
    """Write a file completely or not at all: a temporary file next to it, forced onto the device, then renamed.

    Args:
        path: The file; a symbolic link is followed. Anything but a regular file is refused.
        content: What it holds afterwards; bytes, or pieces that are written one after the other.
        new: Refuse a file that exists.

    Raises:
        FileExistsError: With ``new``: the file exists.
        OSError: It cannot be written; the old file stays as it was.
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


def temporary(path: Path, content: bytes | Sequence[bytes | memoryview]) -> Path:
    """Write the new content of a file to a temporary file next to it, and force it onto the device.

    Args:
        path: The file.
        content: What it is to hold; bytes, or pieces of it.

    Returns:
        The temporary file.

    Raises:
        OSError: It cannot be written.
    """
    name = path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}")
    try:
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    return name


def sync(folder: Path) -> None:
    """Force the names in a folder onto the device: what was renamed there stays renamed.

    Args:
        folder: The folder; Windows has no such call, and nothing is done there.
    """
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_folder(path: Path) -> bool:
    """Return whether there is a folder at a path.

    Args:
        path: The path; it may be one that no folder can have.

    Returns:
        Whether there is one.
    """
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def entry(content: bytes) -> Entry:
    """Return size and SHA-256 of bytes.

    Args:
        content: The bytes.

    Returns:
        ``bytes`` and ``sha256``.
    """
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def entry_of(path: Path) -> Entry:
    """Return size and SHA-256 of a file.

    Args:
        path: The file.

    Returns:
        ``bytes`` and ``sha256``.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.seek(0, io.SEEK_END), "sha256": digest}


def is_temporary(name: str) -> bool:
    """Return whether a name is that of a temporary file of dspodfl.

    Where no process has the lock of the folder, the process that wrote it has ended.

    >>> is_temporary(".dspodfl-0123abcd"), is_temporary(".metrics.parquet.x7k_2abq"), is_temporary(".summary.json.swp")
    (True, True, False)

    Args:
        name: The name of the file.

    Returns:
        Whether this or an earlier version of dspodfl gives such names to temporary files.
    """
    return re.fullmatch(rf"{re.escape(TEMPORARY)}[0-9a-f]{{8}}", name) is not None or (
        _OLD_TEMPORARY.fullmatch(name) is not None
    )


def recognised(path: Path, name: str) -> bool:
    """Return whether a file looks like the one that dspodfl writes under this name.

    Args:
        path: The file; its folder has no manifest.
        name: Its name within the folder.

    Returns:
        Whether its content is of the kind that dspodfl writes.
    """
    if path.is_symlink() or not path.is_file():
        return False
    for pattern, is_recognised in _SIGNS.items():
        if re.fullmatch(pattern, name):
            try:
                return is_recognised(path)
            except _UNREADABLE:
                return False
    return False


def safetensors_about(path: Path) -> Any:
    """Return what the header of a file of models says of its run; the tensors are not read.

    Args:
        path: The file.

    Returns:
        ``algorithm``, ``seed`` and ``layout``.

    Raises:
        ValueError: It is not such a file.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > 100_000_000:
            raise ValueError("not a safetensors file")
        return json.loads(json.loads(file.read(size))["__metadata__"]["run"])


def _config(path: Path) -> bool:
    """A resolved configuration: every table, in the order that dspodfl writes, and no comment."""
    text = path.read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    known = {"seed", "seeds", "algorithms", "clients", "graph", "rates", "data", "model", "train", "eval"}
    return known <= tables.keys() and text.startswith("seed = ") and not re.search(r"^\s*#", text, re.MULTILINE)


def _parquet(*columns: str) -> Callable[[Path], bool]:
    def is_recognised(path: Path) -> bool:
        from pyarrow import parquet

        with path.open("rb") as file:
            return set(columns) <= set(parquet.read_schema(file).names)

    return is_recognised


def _npz(pattern: str) -> Callable[[Path], bool]:
    def is_recognised(path: Path) -> bool:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            return all(re.fullmatch(pattern, name) for name in archive.namelist())

    return is_recognised


def _json(*keys: set[str]) -> Callable[[Path], bool]:
    def is_recognised(path: Path) -> bool:
        content = json.loads(path.read_bytes())
        return isinstance(content, dict) and any(some <= content.keys() for some in keys)

    return is_recognised


def _begins_with(magic: bytes, word: bytes) -> Callable[[Path], bool]:
    def is_recognised(path: Path) -> bool:
        with path.open("rb") as file:
            head = file.read(4096)
        return head.startswith(magic) and word in head.lower()

    return is_recognised


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
    r"events\.npz": _npz(r".*/-?\d+/(v|v_hat|back|edges|shape)\.npy"),
    r"summary\.json": _json({"study", "algorithms"}),
    r"result\.json": _json({"name", "axes", "verdicts"}, {"axes", "rows"}, {"guaranteed", "constants", "algorithms"}),
    r"grid\.json": _json({"name", "axes", "read", "cells"}),
    r"(table|curves)\.csv": _csv,
    r"[\w-]+\.png": _begins_with(b"\x89PNG\r\n\x1a\n", b"matplotlib"),
    r"[\w-]+\.svg": _begins_with(b"<?xml", b"matplotlib"),
    r"models/.+\.safetensors": _models,
}
"""Name -> how a file of that name is recognised."""
