"""Costs, and budgets of them: what a run spends, and how much of it each run of a study may spend.

To add a cost, add a `CostKind` to the list that `COSTS` is made of. ``train.until``, ``show --at``, the column of
metrics.parquet, axes and tables follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = str
"""The name of a cost: a key of `COSTS`."""
EndedBy = Literal["budget", "cap", "diverged"]
"""Why a run ended: its cost reached the budget, it reached its cap of iterations first, or its models diverged."""


@dataclass(frozen=True)
class Spent:
    """What a run has counted: numbers, or arrays or tensors with one for each iteration; delays are sums.

    ``link_bytes`` is what one use of a link carries, both ways.
    """

    processing: Any
    transmission: Any
    processing_normalized: Any
    transmission_normalized: Any
    sgd_steps: Any
    link_uses: Any
    iterations: Any
    link_bytes: Any


@dataclass(frozen=True)
class CostKind:
    """One kind of cost.

    Attributes:
        name: the key of ``train.until`` and ``show --at``.
        column: where metrics.parquet has it.
        of: the cost from what was counted. It never falls, and is linear in the counts, so that the expected cost of
            an iteration is the cost of the expected counts.
        line: what it is, for the configuration and the docs.
        meaning: the same in few words, for tables.
        axis: the label of an axis, and what it means in few words.
        example: a value, for the template.
        word: what is written before a number of it.
        unit: how a number of it is written: a number, a size in bytes, or a count.
        whole: whether it is counted in whole numbers.
    """

    name: Kind
    column: str
    of: Callable[[Spent], Any]
    line: str
    meaning: str
    axis: tuple[str, str]
    example: float
    word: str
    unit: Literal["number", "bytes", "count"] = "number"
    whole: bool = False

    @property
    def key(self) -> str:
        """Its name before a number, as ``show --at`` takes it: ``iteration`` for ``iterations``."""
        return self.word if self.word == self.name.removesuffix("s") else self.name

    @property
    def written(self) -> str:
        """The example as ``show --at`` takes it: ``iteration=2000``."""
        return f"{self.key}={self.example:g}"


COSTS: dict[Kind, CostKind] = {
    kind.name: kind
    for kind in (
        CostKind(
            "delay",
            "delay_total",
            lambda spent: spent.processing + spent.transmission,
            "the raw total delay: a step takes 1/d_i, an exchange 1/b_ij, averaged over clients",
            "raw total delay",
            ("total delay, raw", "an event takes 1/its rate; mean over clients"),
            10000.0,
            "delay",
        ),
        CostKind(
            "normalized_delay",
            "delay_total_normalized",
            lambda spent: spent.processing_normalized + spent.transmission_normalized,
            "the normalized total delay: an iteration in which everything fires is 2",
            "normalized total delay",
            ("total delay, normalized", "2 per iteration in which everything fires"),
            200.0,
            "normalized delay",
        ),
        CostKind(
            "bytes",
            "bytes",
            lambda spent: spent.link_uses * spent.link_bytes,
            "bytes sent over all links, both ways",
            "number of bytes sent",
            ("bytes sent", "both directions of all links"),
            1e9,
            "bytes",
            unit="bytes",
        ),
        CostKind(
            "iterations",
            "iteration",
            lambda spent: spent.iterations,
            "iterations, whatever each costs",
            "number of iterations",
            ("iterations", ""),
            2000,
            "iteration",
            unit="count",
            whole=True,
        ),
        # A new cost is added here.
    )
}
"""What runs can spend, by name."""
COST_COLUMNS: dict[Kind, str] = {name: kind.column for name, kind in COSTS.items()}
"""The column of metrics.parquet that each kind of budget is read in."""

DEFAULT_DELAY = 10_000.0
"""The raw total delay that runs end at where a configuration says nothing."""
LONGEST = 1_000_000
"""The largest cap of iterations that is chosen for a run whose configuration gives none."""
SLACK = 1.5
"""A cap that is chosen is this multiple of the iterations that a run is expected to need."""


@dataclass(frozen=True)
class Budget:
    """What a run may spend: it ends at the first iteration at which its cost is at least ``value``.

    >>> Budget("delay", 10000.0).column
    'delay_total'
    >>> Budget("delay", 500.0).reached({"delay_total": 512.0})
    True
    """

    kind: Kind
    value: float

    @property
    def column(self) -> str:
        """The column of the metrics that this budget is read in."""
        return COST_COLUMNS[self.kind]

    def cost(self, row: Mapping[Any, Any]) -> float:
        """Return what a run had spent at one row of its metrics."""
        return float(row[self.column])

    def reached(self, row: Mapping[Any, Any]) -> bool:
        """Return whether a run had spent its budget at one row of its metrics."""
        return self.cost(row) >= self.value

    def points(self, count: int) -> list[float]:
        """Return ``count`` costs, equally spaced, of which the last is the budget itself.

        >>> Budget("bytes", 100.0).points(4)
        [25.0, 50.0, 75.0, 100.0]
        """
        return [*(self.value * n / count for n in range(1, count)), self.value]

    def record(self) -> dict[str, Any]:
        """Return it as summary.json holds it."""
        return {"kind": self.kind, "value": self.value}


def ended_by(budget: Budget, cap: int, row: Mapping[Any, Any]) -> EndedBy | None:
    """Say why a run ended at a row of its metrics.

    Args:
        budget: What the run may spend.
        cap: The most iterations it may take.
        row: A row of its metrics: its cost, ``iteration`` and ``diverged``.

    Returns:
        The reason; None where the run continues after the row.

    >>> ended_by(Budget("delay", 10.0), 100, {"delay_total": 9.0, "iteration": 100, "diverged": False})
    'cap'
    """
    if row["diverged"]:
        # With a number of iterations alone, frozen runs are still measured to the end, as all runs are.
        return "diverged" if budget.kind != "iterations" or int(row["iteration"]) >= min(cap, budget.value) else None
    if budget.reached(row):
        return "budget"
    return "cap" if int(row["iteration"]) >= cap else None
