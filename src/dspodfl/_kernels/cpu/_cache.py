# mypy: ignore-errors
"""Compiled code that Numba caches on disk, with checksums. Importing this imports Numba.

A damaged file is deleted and compiled again; code that cannot be cached is compiled each time. Neither stops a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import stat
import sys
from functools import cache
from types import ModuleType
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

_DIGEST = hashlib.sha256().digest_size


def cached(function: Any, uses: ModuleType | None = None, **options: Any) -> Any:
    """Compile a function when it is first called, and cache the compiled code on disk.

    Code is compiled again when its file has changed, or that of the module whose compiled functions it ``uses``.
    """
    dispatcher = njit(**options)(function)
    try:
        dispatcher._cache = _Cache(function, uses)
    except RuntimeError as error:  # Numba finds no folder that can be written to
        _say(f"compiled code cannot be kept ({error}); it is compiled in every run")
    except (AttributeError, TypeError):  # another Numba, with other insides
        with contextlib.suppress(RuntimeError):
            dispatcher.enable_caching()
    return dispatcher


class _DamagedError(OSError):
    """A file that is not what was written."""


class _Files(IndexDataCacheFile):
    """An index and the files it names, each behind the SHA-256 of its content."""

    def _load_index(self) -> dict[Any, str]:
        try:
            version, stamp, overloads = pickle.loads(_read(self._index_path))  # noqa: S301 (its checksum was right)
        except FileNotFoundError:
            return {}
        except Exception as error:
            _discard(self._index_path, error)
            return {}
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, self._dump((self._version, self._source_stamp, overloads)))

    def _load_data(self, name: str) -> Any:
        path = self._data_path(name)
        try:
            return pickle.loads(_read(path))  # noqa: S301 (its checksum was right)
        except FileNotFoundError:
            raise
        except Exception as error:
            _discard(path, error)
            raise _DamagedError(str(error)) from error

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), self._dump(data))

    def _write(self, path: str, data: bytes) -> None:
        with self._open_for_write(path) as file:
            file.write(hashlib.sha256(data).digest() + data)


class _Cache(FunctionCache):
    """Numba's cache of one function, none of whose failures is one of the run."""

    def __init__(self, function: Any, uses: ModuleType | None) -> None:
        super().__init__(function)
        files, stamp = self._cache_file, self._cache_file._source_stamp
        if uses is not None:
            found = os.stat(uses.__file__)
            stamp = stamp, found.st_mtime, found.st_size
        base = files._index_name.removesuffix(".nbi")
        self._cache_file = _Files(files._cache_path, f"{base}-checked", stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:
            _discard(self._cache_file._index_path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:
            why = getattr(error, "strerror", None) or error
            _say(f"compiled code could not be kept in {self.cache_path} ({why}); it is compiled in every run")


def _read(path: str) -> bytes:
    """The content of a file that is as it was written."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise _DamagedError("not a file")
    with open(path, "rb") as file:
        found = file.read()
    digest, data = found[:_DIGEST], found[_DIGEST:]
    if hashlib.sha256(data).digest() != digest:
        raise _DamagedError("its checksum is wrong")
    return data


def _discard(path: str, error: Exception) -> None:
    """Remove a damaged file, so that the next one is written in its place."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    _say(f"{path}: kept compiled code is damaged ({error}); compiling it again")


@cache
def _say(text: str) -> None:
    """Print a line to standard error, once; control characters in a path are shown, not sent."""
    shown = "".join(sign if sign.isprintable() else f"\\u{ord(sign):04x}" for sign in text)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream that is closed is no reason to fail
        sys.stderr.write(f"{shown}\n")
