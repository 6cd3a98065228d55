"""The journal of a run that is on its way: what is measured reaches the disk as it is measured.

    {"header": …}           crc      what the run is, once
    {"rows": […], …}        crc      the rows of one evaluation, appended

One line of JSON each, with its CRC-32. A process that dies may leave half a line at the end: it is not read. A row that
was measured twice, because the run was taken up again from before it, counts as it was measured last.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JOURNAL = "metrics.journal"
_SYNC_SECONDS = 1.0
"""Lines are written at once, and forced onto the device this often: a process that is killed loses none."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What a journal says."""

    header: dict[str, Any]
    rows: list[Row]
    latest: dict[str, Any]
    """What was said beside the last rows."""


@dataclass(eq=False)
class Journal:
    """A journal that is being written."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    _file: Any = field(default=None, init=False)
    _synced: float = field(default=float("-inf"), init=False)

    def begin(self, header: Mapping[str, Any], rows: Sequence[Row], **beside: Any) -> None:
        """A new journal in place of any other; it is there whole, or not at all."""
        aside = self.path.with_name(f".{self.path.name}.aside")
        lines = [_line({"header": header})]
        lines += [_line({"rows": list(rows), **beside})] if rows else []
        with aside.open("wb") as file:
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.path)
        self.close()
        self._file = self.path.open("ab", buffering=0)

    def append(self, rows: Sequence[Row], **beside: Any) -> None:
        """Rows of one evaluation."""
        line = memoryview(_line({"rows": list(rows), **beside}))
        while line:  # a disk that is nearly full takes a part, and refuses the rest
            line = line[self._file.write(line) :]
        if self.clock() - self._synced > _SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = self.clock()

    def close(self) -> None:
        """Nothing more will be written."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read(path: Path) -> Found:
    """What a journal says, up to the first line that is not whole.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / JOURNAL
    >>> journal = Journal(path)
    >>> journal.begin({"runs": 1}, [])
    >>> journal.append([{"algorithm": "dgd", "seed": 0, "iteration": 0, "loss": 0.5}])
    >>> _ = path.write_bytes(path.read_bytes() + b'{"rows": [{"algori')
    >>> read(path).rows
    [{'algorithm': 'dgd', 'seed': 0, 'iteration': 0, 'loss': 0.5}]
    """
    header: dict[str, Any] | None = None
    rows: dict[tuple[str, int, int], Row] = {}
    latest: dict[str, Any] = {}
    for line in path.read_bytes().splitlines(keepends=True):
        record = _record(line)
        if record is None:
            break
        header = record.pop("header", header)
        for row in record.pop("rows", []):
            rows[row["algorithm"], row["seed"], row["iteration"]] = row
        latest = record or latest
    if header is None:
        raise ValueError(f"{path.name} does not begin with what the run is")
    return Found(header, list(rows.values()), latest)


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False).encode()
    return text + b"\t%08x\n" % zlib.crc32(text)


def _record(line: bytes) -> dict[str, Any] | None:
    text, _, sum_ = line.rpartition(b"\t")
    if sum_ != b"%08x\n" % zlib.crc32(text):
        return None
    record = json.loads(text)
    return record if isinstance(record, dict) else None
