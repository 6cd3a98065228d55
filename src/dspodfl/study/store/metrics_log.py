"""The journal of a run that is not finished: what is measured reaches the disk as it is measured.

    {"header": …}                        crc      what the run is, and the columns of its rows
    {"n": 30, "rows": [[…], …], …}       crc      the rows of one evaluation, appended; 30 rows were written before

One line of JSON each, with its CRC-32. Rows are lists in the order of the header's columns: names are not repeated. A
process that dies may leave half a line at the end: it is not read. A line that is damaged is left out, and counted. A
row that was measured twice, because the run was resumed from before it, counts as it was measured last.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dspodfl.study.store.files import TEMPORARY

JOURNAL = "metrics.journal"
"""The log of metrics while a run is under way."""
_SYNC_SECONDS = 1.0
"""Lines are written immediately, and forced onto the device this often: a process that is killed loses none."""
_ROWS_IN_A_LINE = 1000

Row = dict[str, Any]


@dataclass(frozen=True)
class Damage:
    """A damaged place of a journal."""

    line: int
    """The first damaged line, from 1."""
    lines: int
    rows: int | None
    """How many rows are lost; None where nothing follows that says so."""
    after: int | None
    """The last iteration before it."""
    before: int | None
    """The first iteration after it."""

    def __str__(self) -> str:
        which = f"line {self.line}" if self.lines == 1 else f"lines {self.line} to {self.line + self.lines - 1}"
        where = [f"after iteration {self.after:,}"] if self.after is not None else ["at the beginning"]
        where += [f"before iteration {self.before:,}"] if self.before is not None else ["at the end"]
        number = "an unknown number of rows is" if self.rows is None else f"{self.rows:,} rows are"
        number = "1 row is" if self.rows == 1 else number
        return f"{JOURNAL}: {which} damaged, {number} lost ({', '.join(where)})"


@dataclass(frozen=True)
class Found:
    """What a journal says."""

    header: dict[str, Any] | None
    """What the run is; None where the line that says so is damaged."""
    rows: Any
    """The rows, each once: a list of tables, or what was given to be filled."""
    latest: dict[str, Any]
    """What was said next to the last rows."""
    damage: tuple[Damage, ...] = ()
    whole: int = 0
    """Bytes up to the end of the last line that is whole."""
    ended: bool = True
    """Whether that line has its line break."""


@dataclass(eq=False)
class MetricsLog:
    """A journal that is being written; rows have the given columns."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    columns: Sequence[str] = ()
    _file: Any = field(default=None, init=False)
    _synced: float = field(default=float("-inf"), init=False)
    _rows: int = field(default=0, init=False)

    def begin(self, header: Mapping[str, Any], rows: Iterable[Row], **extra: Any) -> None:
        """Start a new journal in place of any other; it is there whole, or not at all."""
        aside = self.path.with_name(f"{TEMPORARY}{os.urandom(4).hex()}")
        self._rows = 0
        try:
            with aside.open("xb") as file:
                file.write(_line({"header": self._header(header)}))
                rest = iter(rows)
                while some := list(islice(rest, _ROWS_IN_A_LINE)):
                    file.write(self._packed(some, extra))
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self.path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        self.close()
        self._file = self.path.open("ab", buffering=0)

    def resume(self, header: Mapping[str, Any], found: Found) -> None:
        """Append to a journal that is sound; half a line at its end is cut off."""
        self.close()
        os.truncate(self.path, found.whole)
        self._file = self.path.open("ab", buffering=0)
        self._rows = len(found.rows)
        self._write(b"" if found.ended else b"\n")
        self._write(_line({"n": self._rows, "header": self._header(header)}))

    def append(self, rows: Sequence[Row], **extra: Any) -> None:
        """Write the rows of one evaluation."""
        self._write(self._packed(rows, extra))
        if self.clock() - self._synced > _SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = self.clock()

    def close(self) -> None:
        """Nothing more will be written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _header(self, header: Mapping[str, Any]) -> dict[str, Any]:
        return {**header, **({"columns": list(self.columns)} if self.columns else {})}

    def _packed(self, rows: Sequence[Row], extra: Mapping[str, Any]) -> bytes:
        columns, before = tuple(self.columns), self._rows
        self._rows += len(rows)
        known = [[row[name] for name in columns] if columns and tuple(row) == columns else row for row in rows]
        return _line({"n": before, "rows": known, **extra})

    def _write(self, content: bytes) -> None:
        line = memoryview(content)
        while line:  # a disk that is nearly full takes a part, and refuses the rest
            line = line[self._file.write(line) :]


def read(path: Path, into: Any = None, columns: Sequence[str] = ()) -> Found:
    """Read a journal; damaged lines are left out and counted, half a line at the end is not.

    Args:
        path: the journal.
        into: has ``append(row)`` and ``latest()``, which gives the rows each once; a list of tables, if left out.
        columns: of the rows, where the header that names them is damaged.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / JOURNAL
    >>> journal = MetricsLog(path)
    >>> journal.begin({"runs": 1}, [])
    >>> journal.append([{"algorithm": "dgd", "seed": 0, "iteration": 0, "loss": 0.5}])
    >>> journal.close()
    >>> _ = path.write_bytes(path.read_bytes() + b'{"rows": [{"algori')
    >>> read(path).rows
    [{'algorithm': 'dgd', 'seed': 0, 'iteration': 0, 'loss': 0.5}]
    """
    header: dict[str, Any] | None = None
    rows: Any = _Latest() if into is None else into
    latest: dict[str, Any] = {}
    count, last, whole, ended = 0, None, 0, True
    damage: list[Damage] = []
    open_: Damage | None = None  # a damaged place whose end is not reached
    for number, line, end in _lines(path):
        record = _record(line)
        if record is None:
            if not line.endswith(b"\n"):
                break
            open_ = Damage(number, 1, None, last, None) if open_ is None else _longer(open_)
            continue
        ended = line.endswith(b"\n")
        whole = end if ended else end - (len(line) - line.rindex(b"\t") - 9)
        if isinstance(record.get("header"), dict):
            header = record.pop("header")
            columns = header.get("columns", columns)
        there = [_named(row, columns) for row in record.pop("rows", [])]
        before = record.pop("n", None)
        if there and open_ is not None:
            lost = None if before is None or before < count else before - count
            damage.append(Damage(open_.line, open_.lines, lost, open_.after, int(there[0]["iteration"])))
            open_ = None
        for row in there:
            rows.append(row)
            last = int(row["iteration"])
        count = count + len(there) if before is None else before + len(there)
        latest = record or latest
    if open_ is not None:
        damage.append(open_)
    if header is None and not count:
        raise ValueError(f"{path.name} does not begin with what the run is")
    return Found(header, rows.latest(), latest, tuple(damage), whole, ended)


def header(path: Path) -> dict[str, Any] | None:
    """What the first line of a journal says of its run; None where there is no journal, or the line is damaged."""
    try:
        with path.open("rb") as file:
            record = _record(file.readline(100_000_000))
    except (OSError, ValueError):
        return None
    found = None if record is None else record.get("header")
    return found if isinstance(found, dict) else None


class _Latest:
    """Rows as tables, each as it was measured last."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], Row] = {}

    def append(self, row: Row) -> None:
        self._rows[row["algorithm"], row["seed"], row["iteration"]] = row

    def latest(self) -> list[Row]:
        return list(self._rows.values())


def _longer(damage: Damage) -> Damage:
    return Damage(damage.line, damage.lines + 1, None, damage.after, None)


def _lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Number, content and end of each line."""
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            end += len(line)
            yield number, line, end


def _named(row: Any, columns: Sequence[str]) -> Row:
    if isinstance(row, dict):
        return row
    if len(row) != len(columns):
        raise ValueError(f"{JOURNAL} has rows of unknown columns")
    return dict(zip(columns, row, strict=True))


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return text + b"\t%08x\n" % zlib.crc32(text)


def _record(line: bytes) -> dict[str, Any] | None:
    text, _, sum_ = line.rpartition(b"\t")
    # Of the last line the line break alone may be missing: nothing of what it says is.
    if len(sum_) not in (8, 9) or sum_[:8] != b"%08x" % zlib.crc32(text):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):  # a line of a stranger, with a checksum that is right
        return None
    return record if isinstance(record, dict) else None
