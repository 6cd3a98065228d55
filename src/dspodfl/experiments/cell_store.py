"""The store of finished cells: a table of rows for each, named by what the cell computes. Grids may share a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pandas as pd

from dspodfl.analysis import METRICS, complete
from dspodfl.config import Cell
from dspodfl.errors import DataError
from dspodfl.network import Budget
from dspodfl.study import parquet, read_parquet
from dspodfl.study.store import COMPLETE, DamagedError, Folder

ABOUT = "about"
"""The attribute of a cell's table that says what it is, where it was computed, and in how many seconds."""


class CellStore:
    """A folder of finished cells.

    Args:
        path: Where it is, or will be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, cells: Iterable[Cell]) -> dict[str, pd.DataFrame]:
        """Read those of some cells that are finished.

        Args:
            cells: The cells.

        Returns:
            The rows of each finished cell, by digest.

        Raises:
            DataError: A file is damaged, or not that of a cell.
        """
        files = Folder(self.path, "cells")
        _clean(files)
        found = {}
        for cell in cells:
            name = self._name(cell)
            if name is not None:
                found[cell.digest] = without_repeats(_read(files, name), cell.config.train.budget)
        return found

    def write(self, tables: Mapping[str, pd.DataFrame], kept: int) -> None:
        """Write cells that have ended together: all of them, or none.

        Args:
            tables: The rows of each, by digest.
            kept: The number of cells that were finished before, for the message of a failure.

        Raises:
            DataError: A file could not be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with Folder(self.path, "cells").change(state=COMPLETE) as change:
                for digest, table in tables.items():
                    change.write(f"{digest}.parquet", parquet(table))
        except OSError as error:
            before = f"the {kept} cells that were finished before are kept"
            raise DataError(f"{self.path}: a finished cell could not be written ({error}); {before}") from error

    def _name(self, cell: Cell) -> str | None:
        """The file of a finished cell, under its name or under the one that an earlier version gave it."""
        names = [f"{name}.parquet" for name in (cell.digest, cell.former_digest) if name is not None]
        return next((name for name in names if (self.path / name).is_file()), None)


def without_repeats(metrics: pd.DataFrame, budget: Budget) -> pd.DataFrame:
    """Drop the rows of each run after the one where it spent its budget: version 0.1 repeated that one.

    Args:
        metrics: Rows by algorithm, seed and evaluated iteration.
        budget: The budget of the runs.

    Returns:
        The rows that are left.
    """
    spent = (metrics[budget.column] >= budget.value).astype(int)
    before = spent.groupby([metrics["algorithm"], metrics["seed"]]).cumsum() - spent
    kept = metrics[before == 0].reset_index(drop=True)
    kept.attrs = metrics.attrs
    return kept


def _clean(files: Folder) -> None:
    """Delete what processes that have ended left behind, where that is possible."""
    with suppress(OSError, DataError):
        if files.path.is_dir():
            with files.locked(0):
                files.clean()


def _read(files: Folder, name: str) -> pd.DataFrame:
    """The rows of a finished cell, which are what was written."""
    path = files.path / name
    try:
        table = complete(read_parquet(files.read(name)))
    except DamagedError as error:
        raise DataError(f"{error}; delete it, and the cell is run again") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it, and the cell is run again") from error
    about = table.attrs.get(ABOUT, {})
    if list(table.columns) != list(METRICS) or about.get("kind", "cell") != "cell":
        raise DataError(f"{path}: not the rows of a cell; delete it, and the cell is run again")
    return table
