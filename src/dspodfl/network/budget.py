"""Budgets: what each run of a study may spend, and the column of the metrics that says how much it has spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["delay", "normalized_delay", "bytes", "iterations"]
"""What a budget is counted in."""
EndedBy = Literal["budget", "cap", "diverged"]
"""Why a run ended: its cost reached the budget, it reached its cap of iterations first, or its models diverged."""

COST_COLUMNS: dict[Kind, str] = {
    "delay": "delay_total",
    "normalized_delay": "delay_total_normalized",
    "bytes": "bytes",
    "iterations": "iteration",
}
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
    """Say why a run ended at a row of its metrics; None where it goes on after it.

    Args:
        budget: What the run may spend.
        cap: The most iterations it may take.
        row: A row of its metrics: its cost, ``iteration`` and ``diverged``.

    >>> ended_by(Budget("delay", 10.0), 100, {"delay_total": 9.0, "iteration": 100, "diverged": False})
    'cap'
    """
    if row["diverged"]:
        # With a number of iterations alone, frozen runs are still measured to the end, as everybody is.
        return "diverged" if budget.kind != "iterations" or int(row["iteration"]) >= min(cap, budget.value) else None
    if budget.reached(row):
        return "budget"
    return "cap" if int(row["iteration"]) >= cap else None
