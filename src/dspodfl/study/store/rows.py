"""Rows of metrics as compact columns: a long run that is often evaluated has millions of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis import INTEGERS, METRICS, NUMBERS, MetricsRow, complete

MANY = 1_000_000
"""Above this number of expected rows a run is warned of."""
_CODES = {"algorithm": "i", **dict.fromkeys(INTEGERS, "q"), "diverged": "b"}


class Rows:
    """Rows of metrics.parquet, appended and never changed: 149 bytes each, where Python objects take several hundred.

    A value that is null, or NaN, is null in the rows that come back.

    >>> rows = Rows([MetricsRow.of({"algorithm": "dgd", "seed": 0, "iteration": 5, "loss": 0.5})])
    >>> len(rows), next(iter(rows))["loss"], next(iter(rows))["accuracy"]
    (1, 0.5, None)

    Args:
        rows: The first rows.
    """

    def __init__(self, rows: Iterable[MetricsRow] = ()) -> None:
        self._columns: dict[str, array[Any]] = {name: array(_CODES.get(name, "d")) for name in METRICS}
        self._names: dict[str, int] = {}
        self.last: dict[tuple[str, int], int] = {}
        """The last iteration of each algorithm and seed."""
        self.extend(rows)

    def append(self, row: MetricsRow) -> None:
        """Append one row.

        Args:
            row: The row; a count that is null is stored as 0.
        """
        columns = self._columns
        columns["algorithm"].append(self._names.setdefault(row.algorithm, len(self._names)))
        columns["seed"].append(row.seed)
        columns["iteration"].append(row.iteration)
        columns["diverged"].append(row.diverged)
        for name, value in zip(NUMBERS, row.numbers, strict=True):
            column = columns[name]
            column.append((math.nan if column.typecode == "d" else 0) if value is None else value)
        self._reach(row.algorithm, row.seed, row.iteration)

    def _reach(self, algorithm: str, seed: int, iteration: int) -> None:
        self.last[algorithm, seed] = max(iteration, self.last.get((algorithm, seed), 0))

    def extend(self, rows: Iterable[MetricsRow]) -> None:
        """Append rows.

        Args:
            rows: The rows; those of other `Rows` are copied by column.
        """
        if not isinstance(rows, Rows):
            for row in rows:
                self.append(row)
            return
        code = {number: self._names.setdefault(name, len(self._names)) for name, number in rows._names.items()}
        for name, column in rows._columns.items():
            self._columns[name].extend(array("i", (code[n] for n in column)) if name == "algorithm" else column)
        for (name, seed), iteration in rows.last.items():
            self._reach(name, seed, iteration)

    def __iadd__(self, rows: Iterable[MetricsRow]) -> Rows:
        self.extend(rows)
        return self

    def __len__(self) -> int:
        return len(self._columns["iteration"])

    def __iter__(self) -> Iterator[MetricsRow]:
        """Give the rows, one at a time."""
        names = list(self._names)
        for values in zip(*self._columns.values(), strict=True):
            row = dict(zip(self._columns, values, strict=True))
            yield MetricsRow.of(row | {"algorithm": names[values[0]]})

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Rows | list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def latest(self) -> Rows:
        """Return each row of a run and an iteration once, as it was appended last.

        Returns:
            These rows themselves, where no row is there twice.
        """
        found = self.to_frame()
        twice = found.duplicated(["algorithm", "seed", "iteration"], keep="last")
        return Rows.of(found[~twice]) if twice.any() else self

    @staticmethod
    def of(table: pd.DataFrame) -> Rows:
        """Return the rows of a table.

        Args:
            table: Rows of metrics.parquet, of this or an older schema.

        Returns:
            The same rows, in the same order.
        """
        rows, table = Rows(), complete(table)
        codes, names = pd.factorize(table["algorithm"])
        rows._names = {str(name): number for number, name in enumerate(names)}
        for name, column in rows._columns.items():
            values = codes if name == "algorithm" else table[name].to_numpy()
            column.frombytes(np.ascontiguousarray(values, dtype=np.dtype(column.typecode)).tobytes())
        reached = table.groupby(["algorithm", "seed"], sort=False)["iteration"].max()
        for algorithm, seed, iteration in reached.reset_index().itertuples(index=False):
            rows._reach(str(algorithm), int(seed), int(iteration))
        return rows

    def to_frame(self) -> pd.DataFrame:
        """Return the table of metrics.parquet, in the order in which rows were appended.

        Returns:
            A table with the columns `METRICS`, typed as in the file.
        """
        table = {}
        for name, column in self._columns.items():
            values = np.frombuffer(column, dtype=np.dtype(column.typecode)).copy() if len(column) else np.zeros(0)
            table[name] = values.astype(bool) if name == "diverged" else values
        frame = pd.DataFrame({name: table[name] for name in METRICS if name != "algorithm"})
        names = np.array([*self._names, ""], dtype=object)
        frame.insert(0, "algorithm", pd.Series(names[table["algorithm"].astype(np.int64)], dtype=_TEXT))
        for name in INTEGERS:
            frame[name] = frame[name].astype("int64")
        return frame


_TEXT = pd.Series(["a"]).dtype
"""What pandas makes of text, in the version that is installed."""


def warning(count: int) -> str | None:
    """Return a warning before a run of very many rows.

    Args:
        count: The number of rows that are expected.

    Returns:
        The text; None where there are not too many.
    """
    if count <= MANY:
        return None
    memory, disk = count * 300 / 1e9, count * 750 / 1e9
    return (
        f"about {count:,} rows will be measured: they take {memory:.1f} GB of memory and {disk:.1f} GB of disk; "
        "a larger eval.every makes them fewer"
    )
