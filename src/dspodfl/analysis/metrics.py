"""The columns of metrics.parquet: name, type, meaning, and since which version of the schema, in one place.

To add a column, add a `Column` to the end of the list, with ``since`` one more than `SCHEMA` was. A column that an
older file does not have is null there: old runs and finished cells stay valid. The column of a new cost
(`dspodfl.network.COSTS`) is added by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import ne
from typing import TYPE_CHECKING, Any, Literal

from dspodfl.network import COSTS

if TYPE_CHECKING:
    import pandas as pd

Value = str | int | float | None
"""What a column of a row holds; a flag is a bool, which is an int. None: null."""
Measures = dict[str, int | float | None]
"""Some numbers of a row, by the name of their column."""
Derive = Callable[[Mapping[str, Any], Sequence[float] | None], float | None]
"""A column from the others of its row, and from the accuracy of each evaluated client (None for regression)."""


@dataclass(frozen=True)
class Column:
    """A column of metrics.parquet.

    Attributes:
        name: The name of the column.
        type: The type of its values; a column of a later schema is of numbers, which may be null.
        line: What it means.
        since: The version of the schema that has it first.
        of: Computes it from the rest of the row; None where the evaluation itself measures it.
    """

    name: str
    type: Literal["text", "integer", "number", "flag"]
    line: str
    since: int = 1
    of: Derive | None = None

    def __post_init__(self) -> None:
        if self.since > 1 and self.type != "number":
            raise ValueError(f"{self.name}: a column that older files do not have is a number, which may be null")


_RAW = "raw, cumulative: "
_NORMALIZED = "the same, each iteration divided by its value with everything firing"
_NAMED = (
    Column("algorithm", "text", "the algorithm of the run"),
    Column("seed", "integer", "the seed of the run"),
    Column("iteration", "integer", "how many iterations it had taken"),
    Column(
        "accuracy",
        "number",
        "mean over clients of each client's own model on the whole test set (`eval.samples`, `eval.clients`: on some "
        "of it, of some of them); null for regression",
    ),
    Column("accuracy_std", "number", "standard deviation (ddof 0) of the same over clients"),
    Column("accuracy_min", "number", "minimum of the same over clients"),
    Column("accuracy_average_model", "number", "accuracy of θ̄, the average of the clients' models"),
    Column("loss", "number", "mean over clients of the own model's mean test loss, without the L2 penalty"),
    Column("consensus_error", "number", "‖Θ − 1θ̄‖²_F"),
    Column(
        "optimality_error",
        "number",
        "‖θ̄ − θ*‖² where θ* is known, else null: `ridge`; `logistic` with `l2` > 0, up to 2²² samples × features × "
        "classes and 1,000 clients; data of your own that bring it",
    ),
    Column("delay_processing", "number", _RAW + "Σ_k (1/m) Σ_i v_i/d_i"),
    Column(
        "delay_transmission", "number", _RAW + "Σ_k (1/m) Σ_i (1/|N_i|) Σ_j c v̂_ij/b_ij, c models a use and direction"
    ),
    Column("delay_total", "number", "the sum of both"),
    Column("delay_processing_normalized", "number", _NORMALIZED),
    Column("delay_transmission_normalized", "number", _NORMALIZED),
    Column(
        "delay_total_normalized", "number", "the sum of both; DGD is exactly 2 an iteration where no link is absent"
    ),
    Column("sgd_steps", "integer", "Σ v, SGD steps of all clients"),
    Column("link_uses", "integer", "Σ v̂ over undirected links; over arcs of a directed graph"),
    Column(
        "bytes",
        "integer",
        "2 · link_uses · the bytes that a use sends each way: 4p for one model; link_uses times these bytes on a "
        "directed graph",
    ),
    Column(
        "diverged",
        "flag",
        "the parameters are no longer finite: the run is frozen there and its metrics are null; its counters "
        "continue by schedule",
    ),
    # A new column is added here, with since = SCHEMA + 1.
)
_KNOWN = {column.name for column in _NAMED}
COLUMNS = _NAMED + tuple(
    Column(kind.column, "number", kind.line, since=2) for kind in COSTS.values() if kind.column not in _KNOWN
)
"""All columns, in the order of the file."""
SCHEMA = max(column.since for column in COLUMNS)
"""The version of the schema."""
METRICS = tuple(column.name for column in COLUMNS)
"""Their names."""
INTEGERS = tuple(column.name for column in COLUMNS if column.type == "integer")
"""Columns of whole numbers; of the others `algorithm` is text, `diverged` is a bool, and the rest are floats."""
DERIVED = tuple(column for column in COLUMNS if column.of is not None)
"""Columns that are made from the rest of a row."""
NUMBERS = tuple(name for name in METRICS if name not in ("algorithm", "seed", "iteration", "diverged"))
"""The columns of `MetricsRow.numbers`, in its order."""
_PLACES = {name: place for place, name in enumerate(NUMBERS)}


@dataclass(frozen=True, eq=False, slots=True)
class MetricsRow(Mapping[str, Value]):
    """One row of metrics.parquet: one algorithm, seed and evaluated iteration.

    It is also a read-only mapping from the name of a column to its value, in the order of `METRICS`.

    >>> row = MetricsRow.of({"algorithm": "dgd", "seed": 0, "iteration": 5, "loss": 0.5})
    >>> row.iteration, row["loss"], row["accuracy"]
    (5, 0.5, None)

    Attributes:
        algorithm: The label of the algorithm of the run.
        seed: The seed of the run.
        iteration: The number of iterations that the run had taken.
        diverged: Whether the parameters were no longer finite.
        numbers: The columns `NUMBERS`; None where a value is null.
    """

    algorithm: str
    seed: int
    iteration: int
    diverged: bool
    numbers: tuple[int | float | None, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> MetricsRow:
        """Make a row from values by the name of their column.

        Args:
            values: `algorithm`, `seed`, `iteration`, and any other columns. One that is absent, or NaN, is null
                (`diverged`: False). Names that are no column are ignored.

        Returns:
            The row.

        Raises:
            KeyError: `algorithm`, `seed` or `iteration` is absent.
        """
        numbers = tuple(map(values.get, NUMBERS))
        if any(map(ne, numbers, numbers)):
            numbers = tuple([None if value != value else value for value in numbers])  # noqa: PLR0124
        key = str(values["algorithm"]), int(values["seed"]), int(values["iteration"])
        return cls(*key, bool(values.get("diverged")), numbers)

    def __getitem__(self, name: str) -> Value:
        place = _PLACES.get(name)
        if place is not None:
            return self.numbers[place]
        if name == "algorithm":
            return self.algorithm
        if name == "seed":
            return self.seed
        if name == "iteration":
            return self.iteration
        if name == "diverged":
            return self.diverged
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(METRICS)

    def __len__(self) -> int:
        return len(METRICS)


def complete(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of an older schema with the columns that it does not have, null.

    Args:
        table: Rows of metrics.parquet, perhaps with other columns (the axes of a grid).

    Returns:
        The same table where it has all columns. Columns of the first schema are never added: a table without one is no
        table of metrics.
    """
    later = [column.name for column in COLUMNS if column.since > 1 and column.name not in table]
    if not later:
        return table
    out = table.assign(**dict.fromkeys(later, float("nan")))
    others = [name for name in out if name not in METRICS]
    out = out[others + [name for name in METRICS if name in out]]
    out.attrs = table.attrs
    return out
