"""The parts of a median delay that add up to it: those of the run that has the median total."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

PARTS = ("processing", "transmission", "total")


def parts(metrics: pd.DataFrame, axes: Sequence[str], aggregates: pd.DataFrame) -> pd.DataFrame:
    """Return processing, transmission and total delay of the run whose total delay to a target is the median.

    Medians of parts do not add up to the median of their sum; these do. Of an even number of runs the two in the middle
    are averaged, as the median itself is. A run that never reaches the target is infinitely late.

    Args:
        metrics: The rows of all runs, with the columns ``axes``.
        axes: The columns of what is varied.
        aggregates: A row for each point, algorithm and target.

    Returns:
        A row for each of the aggregates', with its index; NaN where the median run never reached the target.
    """
    keys = [*axes, "algorithm"]
    runs: dict[tuple[str, ...], list[pd.DataFrame]] = {}
    for key, rows in metrics.groupby([*keys, "seed"], sort=False):
        runs.setdefault(tuple(map(str, key[:-1])), []).append(rows.sort_values("iteration"))
    found = [
        _median(runs.get(tuple(str(row[key]) for key in keys), []), float(row["target"]))
        for row in aggregates.to_dict("records")
    ]
    return pd.DataFrame(found, columns=list(PARTS), index=aggregates.index, dtype=float)


def _median(runs: Sequence[pd.DataFrame], target: float) -> list[float]:
    costs = []
    for run in runs:
        there = run[run["accuracy"] >= target]
        first = there.iloc[0] if len(there) else None
        costs.append([np.inf if first is None else float(first[f"delay_{part}"]) for part in PARTS])
    if not costs:
        return [np.nan] * len(PARTS)
    costs.sort(key=lambda cost: cost[-1])
    middle = [costs[(len(costs) - 1) // 2], costs[len(costs) // 2]]
    if not np.isfinite(middle).all():
        return [np.nan] * len(PARTS)
    return [float(value) for value in np.mean(middle, axis=0)]
