"""The log of metrics of a run that is not finished: strict JSON lines, written as they are measured.

    {"kind":"metrics","format":1,"n":0,"header":{…},"crc32":"…"}
    {"n":0,"algorithm":"dspodfl","seed":0,"iteration":0,"accuracy":0.1,…,"crc32":"…"}
    {"n":1,"algorithm":"dgd","seed":0,"iteration":0,"accuracy":0.1,…,"study":{"wall_seconds":1.5,…},"crc32":"…"}

The first line says what the run is; each time the run is resumed, another such line follows. Every other line is one
row of metrics.parquet. ``n`` is the number of rows before the line. The last row of an evaluation has ``study``, what
was spent until then. ``crc32`` is the CRC-32 of the line before it (up to, and without, ``,"crc32"``). A number that is
not finite is null.

A process that dies may leave half a line at the end: it is not read. A damaged line is left out, and counted. A row
that was measured twice, because the run was resumed from before it, counts as it was measured last.

Earlier versions wrote `metrics_log_0_1`, which is read as well.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dspodfl.errors import DataError
from dspodfl.study.store import metrics_log_0_1
from dspodfl.study.store.files import TEMPORARY
from dspodfl.study.store.layout import METRICS_LOG, METRICS_LOGS

if TYPE_CHECKING:
    from dspodfl.analysis import MetricsRow
    from dspodfl.study.store.rows import Rows

KIND, FORMAT = "metrics", 1
"""What the first line says; a later format is refused."""
_SYNC_SECONDS = 1.0
"""Lines are written immediately, and forced onto the device this often: a process that is killed loses none."""
_LONGEST_HEADER = 100_000_000
_CRC = re.compile(rb',"crc32":"([0-9a-f]{8})"}(.?)', re.DOTALL)
_CRC_BYTES = len(b',"crc32":"01234567"}')


@dataclass(frozen=True)
class Damage:
    """A damaged place of a log.

    Attributes:
        file: The name of the log.
        line: The first damaged line, from 1.
        lines: The number of damaged lines.
        rows: The number of rows that are lost; None where no line follows that says so.
        after: The last iteration before the place; None at the beginning.
        before: The first iteration after the place; None at the end.
    """

    file: str
    line: int
    lines: int = 1
    rows: int | None = None
    after: int | None = None
    before: int | None = None

    def __str__(self) -> str:
        which = f"line {self.line}" if self.lines == 1 else f"lines {self.line} to {self.line + self.lines - 1}"
        where = [f"after iteration {self.after:,}"] if self.after is not None else ["at the beginning"]
        where += [f"before iteration {self.before:,}"] if self.before is not None else ["at the end"]
        number = "an unknown number of rows is" if self.rows is None else f"{self.rows:,} rows are"
        number = "1 row is" if self.rows == 1 else number
        return f"{self.file}: {which} damaged, {number} lost ({', '.join(where)})"


@dataclass(frozen=True)
class LogContent:
    """What a log says.

    Attributes:
        header: What the run is; None where the line that says so is damaged.
        rows: The rows, each once.
        latest: What was spent until the last evaluation.
        damage: The damaged places.
        size: The number of bytes up to the end of the last complete line, without its line break if that is missing.
        ended: Whether that line has its line break.
    """

    header: dict[str, Any] | None
    rows: Rows
    latest: dict[str, Any]
    damage: tuple[Damage, ...] = ()
    size: int = 0
    ended: bool = True


@dataclass(eq=False)
class MetricsLog:
    """Write a log of metrics.

    Args:
        path: The log.
        clock: Seconds that never go back.
    """

    path: Path
    clock: Callable[[], float] = time.monotonic
    _file: IO[bytes] | None = field(default=None, init=False)
    _synced: float = field(default=float("-inf"), init=False)
    _rows: int = field(default=0, init=False)

    def begin(self, header: Mapping[str, Any], rows: Iterable[MetricsRow], **study: Any) -> None:
        """Start a new log in place of any other; a process that is killed leaves the old or the new one.

        Args:
            header: What the run is.
            rows: The first rows.
            study: What was spent until then.
        """
        temporary = self.path.with_name(f"{TEMPORARY}{os.urandom(4).hex()}")
        self._rows = 0
        try:
            with temporary.open("xb") as file:
                file.write(self._header(header))
                for line in self._lines(rows, study):
                    file.write(line)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._open()

    def resume(self, header: Mapping[str, Any], content: LogContent) -> None:
        """Append to a log without damage; half a line at its end is cut off.

        Args:
            header: What the run is now.
            content: What the log says.
        """
        os.truncate(self.path, content.size)
        self._open()
        self._rows = len(content.rows)
        self._write(b"" if content.ended else b"\n")
        self._write(self._header(header))

    def append(self, rows: Sequence[MetricsRow], **study: Any) -> None:
        """Write the rows of one evaluation.

        Args:
            rows: The rows.
            study: What was spent until then.
        """
        file = self._write(b"".join(self._lines(rows, study)))
        if self.clock() - self._synced > _SYNC_SECONDS:
            os.fsync(file.fileno())
            self._synced = self.clock()

    def close(self) -> None:
        """Close the file; a log that is closed can be begun or resumed again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        self.close()
        self._file = self.path.open("ab", buffering=0)

    def _header(self, header: Mapping[str, Any]) -> bytes:
        return _line({"kind": KIND, "format": FORMAT, "n": self._rows, "header": dict(header)})

    def _lines(self, rows: Iterable[MetricsRow], study: Mapping[str, Any]) -> Iterator[bytes]:
        """Give a line for each row, the last one with ``study``."""
        before: MetricsRow | None = None
        for row in rows:
            if before is not None:
                yield self._row(before, {})
            before = row
        if before is not None:
            yield self._row(before, {"study": dict(study)} if study else {})

    def _row(self, row: MetricsRow, extra: Mapping[str, Any]) -> bytes:
        line = _line({"n": self._rows, **row, **extra})
        self._rows += 1
        return line

    def _write(self, content: bytes) -> IO[bytes]:
        if self._file is None:
            raise ValueError(f"{self.path.name} is closed")
        rest = memoryview(content)
        while rest:  # a disk that is nearly full takes a part, and refuses the rest
            rest = rest[self._file.write(rest) :]
        return self._file


class _Reader:
    """Collect what the lines of a log say, and where they are damaged."""

    def __init__(self, path: Path) -> None:
        from dspodfl.analysis import METRICS
        from dspodfl.study.store.rows import Rows

        self._file = path.name
        self.header: dict[str, Any] | None = None
        self._columns: Sequence[str] = METRICS
        self.rows = Rows()
        self.latest: dict[str, Any] = {}
        self.damage: list[Damage] = []
        self._open: Damage | None = None  # a damaged place whose end is not reached
        self.count = 0
        self._last: int | None = None

    def lost(self, number: int) -> None:
        """Count a damaged line."""
        before = self._open or Damage(self._file, number, 0, after=self._last)
        self._open = replace(before, lines=before.lines + 1)

    def add(self, record: dict[str, Any]) -> None:
        """Add what an undamaged line says."""
        from dspodfl.analysis import MetricsRow

        if isinstance(record.get("header"), dict):
            self.header = record.pop("header")
            self._columns = self.header.get("columns", self._columns)
        found = [record] if "algorithm" in record else metrics_log_0_1.rows(record, self._columns)
        rows = [MetricsRow.of(row) for row in found]
        before = record.get("n")
        if rows and self._open is not None:
            lost = None if before is None or before < self.count else before - self.count
            self.damage.append(replace(self._open, rows=lost, before=rows[0].iteration))
            self._open = None
        self.rows.extend(rows)
        self._last = rows[-1].iteration if rows else self._last
        self.count = len(rows) + (self.count if before is None else before)
        self.latest = _study(record) or self.latest

    def finish(self) -> None:
        """Keep a damaged place that nothing follows."""
        self.damage += [self._open] if self._open is not None else []


def read(path: Path) -> LogContent:
    """Read a log; damaged lines are left out and counted, half a line at the end is not.

    >>> import tempfile
    >>> from dspodfl.analysis import MetricsRow
    >>> path = Path(tempfile.mkdtemp()) / METRICS_LOG
    >>> log = MetricsLog(path)
    >>> log.begin({"runs": 1}, [MetricsRow.of({"algorithm": "dgd", "seed": 0, "iteration": 0, "loss": 0.5})])
    >>> log.close()
    >>> _ = path.write_bytes(path.read_bytes() + b'{"n":1,"algori')
    >>> [row["loss"] for row in read(path).rows]
    [0.5]

    Args:
        path: The log; it may be one of an earlier version.

    Returns:
        What it says.

    Raises:
        ValueError: All lines are damaged.
        DataError: It is of a later format.
        OSError: It cannot be read.
    """
    found, size, ended, end = _Reader(path), 0, True, 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            start, end = end, end + len(line)
            record = _record(line, path)
            if record is None:
                if not line.endswith(b"\n"):
                    break
                found.lost(number)
                continue
            ended = line.endswith(b"\n")
            size = end if ended else start + record[1]
            found.add(record[0])
    found.finish()
    if found.header is None and not found.count:
        raise ValueError(f"{path.name} does not begin with what the run is")
    return LogContent(found.header, found.rows.latest(), found.latest, tuple(found.damage), size, ended)


def path_in(folder: Path) -> Path:
    """Return where the log of a run is.

    Args:
        folder: The folder of the run.

    Returns:
        ``metrics.jsonl``; the log of an earlier version where that is the only one.
    """
    return next((folder / name for name in METRICS_LOGS if (folder / name).is_file()), folder / METRICS_LOG)


def header(path: Path) -> dict[str, Any] | None:
    """Return what the first line of a log says of its run.

    Args:
        path: The log.

    Returns:
        What the run is; None where there is no log, or the line is damaged.

    Raises:
        DataError: It is of a later format.
    """
    try:
        with path.open("rb") as file:
            record = _record(file.readline(_LONGEST_HEADER), path)
    except (OSError, ValueError):
        return None
    found = None if record is None else record[0].get("header")
    return found if isinstance(found, dict) else None


def _study(record: Mapping[str, Any]) -> dict[str, Any]:
    """What was spent; earlier versions wrote it next to the rows."""
    found = record.get("study", {}) if "rows" not in record else record
    return {key: value for key, value in found.items() if key not in ("n", "rows")}


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(record), separators=(",", ":"), allow_nan=False)
    body = text.encode()[:-1]
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def _finite(value: Any) -> Any:
    """The same with null for every number that is not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _record(line: bytes, path: Path) -> tuple[dict[str, Any], int] | None:
    """What a line says and its length without the line break; None where it is damaged.

    Of the last line the line break alone may be missing, or be another character: the rest is complete.
    """
    for length in (len(line) - 1, len(line)):
        tail = _CRC.fullmatch(line, max(0, length - _CRC_BYTES))
        if tail is not None:
            break
    else:
        return metrics_log_0_1.record(line)
    body = line[: tail.start()]
    if tail[1] != b"%08x" % zlib.crc32(body):
        return None
    try:
        record = json.loads(body + b"}")
    except (ValueError, RecursionError):  # not written by dspodfl, although the checksum is right
        return None
    if not isinstance(record, dict):
        return None
    if "header" in record:
        kind, later = record.get("kind"), record.get("format")
        if kind != KIND or not isinstance(later, int):
            return None
        if later > FORMAT:
            raise DataError(f"{path}: written by a later version of dspodfl (format {later}, here {FORMAT})")
    return record, tail.start() + _CRC_BYTES
