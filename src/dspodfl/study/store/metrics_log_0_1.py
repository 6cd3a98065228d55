"""Lines of ``metrics.journal``, the log of metrics of earlier versions: JSON, a tab, and the CRC-32 of the JSON.

{"header": …}                     crc      what the run is, and the columns of its rows
{"n": 30, "rows": [[…], …], …}    crc      the rows of one evaluation; 30 rows were written before
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any


def record(line: bytes) -> tuple[dict[str, Any], int] | None:
    """Read a line.

    Args:
        line: The line, perhaps with its line break.

    Returns:
        What it says and its length without the line break; None where it is damaged.
    """
    text, _, digits = line.rpartition(b"\t")
    # Of the last line the line break alone may be missing: the rest is complete.
    if len(digits) not in (8, 9) or digits[:8] != b"%08x" % zlib.crc32(text):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # not written by dspodfl, although the checksum is right
        return None
    return (found, len(text) + 9) if isinstance(found, dict) else None


def rows(found: Mapping[str, Any], columns: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the rows of a line by the name of their column.

    Args:
        found: What the line says.
        columns: The columns of rows that are lists.

    Returns:
        A mapping for each row.

    Raises:
        ValueError: A row has another number of columns.
    """
    out: list[Mapping[str, Any]] = []
    for row in found.get("rows", ()):
        if not isinstance(row, Mapping) and len(row) != len(columns):
            raise ValueError("its rows are of unknown columns")
        out.append(row if isinstance(row, Mapping) else dict(zip(columns, row, strict=True)))
    return out
