"""Tables of a study: rows of metrics in the order and with the types of metrics.parquet, and parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis import INTEGERS, METRICS, MetricsRow
from dspodfl.study.store.rows import Rows

Key = tuple[str, int]
"""An algorithm and a seed: one run."""


def ordered(rows: Iterable[MetricsRow], algorithms: Sequence[str]) -> pd.DataFrame:
    """Return rows as the table of metrics.parquet, by algorithm, seed and iteration.

    Args:
        rows: The rows, in any order.
        algorithms: The labels of the algorithms, in the order of the table.

    Returns:
        The table.
    """
    place = {name: number for number, name in enumerate(algorithms)}
    if isinstance(rows, Rows):
        table = rows.to_frame()
        places = table["algorithm"].map(place).to_numpy()
        order = np.lexsort((table["iteration"].to_numpy(), table["seed"].to_numpy(), places))
        return table.iloc[order].reset_index(drop=True)
    return typed(sorted(rows, key=lambda row: (place[row.algorithm], row.seed, row.iteration)))


def typed(rows: Iterable[MetricsRow]) -> pd.DataFrame:
    """Return rows as the table of metrics.parquet, in their own order.

    Args:
        rows: The rows.

    Returns:
        The table; `INTEGERS` are int64, ``diverged`` is bool, the other numbers are float64.
    """
    if isinstance(rows, Rows):
        return rows.to_frame()
    metrics = pd.DataFrame([dict(row) for row in rows], columns=list(METRICS))
    for name in METRICS[3:]:
        kind: Any = "int64" if name in INTEGERS else "float64" if name != "diverged" else bool
        metrics[name] = metrics[name].astype(kind)
    return metrics


def progress(rows: Iterable[MetricsRow], runs: Sequence[Key]) -> int:
    """Return the iteration that every run has reached.

    Args:
        rows: The rows, in any order.
        runs: The algorithm and seed of every run.

    Returns:
        The least of their last evaluated iterations; 0 where a run has no row.
    """
    if isinstance(rows, Rows):
        return min(rows.last.get((name, seed), 0) for name, seed in runs)
    last = dict.fromkeys(runs, 0)
    for row in rows:
        name = row.algorithm, row.seed
        last[name] = max(last[name], row.iteration)
    return min(last.values())


def parquet(table: pd.DataFrame) -> bytes:
    """Return a table as a parquet file, whose pages have checksums.

    Args:
        table: The table; its index is not written.

    Returns:
        The content of the file.
    """
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False, write_page_checksum=True)
    return buffer.getvalue()


def read_parquet(content: bytes) -> pd.DataFrame:
    """Read a parquet file, and verify the checksums of its pages.

    Args:
        content: The content of the file.

    Returns:
        The table.

    Raises:
        OSError: It is damaged.
        ValueError: It is not a parquet file.
    """
    return pd.read_parquet(io.BytesIO(content), page_checksum_verification=True)
