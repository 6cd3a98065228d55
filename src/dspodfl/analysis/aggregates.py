"""Aggregates of a grid of studies, read from its rows: at a delay, at iterations, at the end, at target accuracies.

A run that never gets there is *censored*: it is counted, and left out of nothing silently. Accuracies are means and
standard deviations (ddof 1) over the seeds that got there and did not diverge; delays are medians and quartiles over
all seeds, a run that never got there being infinitely late, with the mean next to them where all did. What is infinite
was not waited for: the median then is at least what it is with the end of such a run in its place (``…_least``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis.costs import Cost
from dspodfl.analysis.statistics import quantiles, spread
from dspodfl.analysis.summary import whole_run

DELAYS = ("delay_processing", "delay_transmission", "delay_total")

Point = tuple[Any, ...]
"""The value of each axis of a grid."""


def by_run(metrics: pd.DataFrame, axes: Sequence[str]) -> list[tuple[Point, str, list[pd.DataFrame]]]:
    """Split a table by point, algorithm and run.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        axes: The columns that name a point.

    Returns:
        (point, algorithm, rows of each run by iteration), in the order of the table.
    """
    keys = [*axes, "algorithm"]
    out = []
    for key, rows in metrics.groupby(keys, sort=False):
        runs = [run.sort_values("iteration") for _, run in rows.groupby("seed")]
        *point, algorithm = key if isinstance(key, tuple) else (key,)
        out.append((tuple(point), str(algorithm), runs))
    return out


def _table(
    metrics: pd.DataFrame, axes: Sequence[str], read: Callable[[Point, list[pd.DataFrame]], list[dict[str, Any]]]
) -> pd.DataFrame:
    rows = []
    for point, algorithm, runs in by_run(metrics, axes):
        here = dict(zip(axes, point, strict=True)) | {"algorithm": algorithm}
        rows += [here | found for found in read(point, runs)]
    return pd.DataFrame(rows)


# --- one value a run ------------------------------------------------------------------------------------------


def values(
    metrics: pd.DataFrame,
    axes: Sequence[str],
    at: Cost | Mapping[Point, Cost | None] | None,
    *,
    normalized: bool = False,
) -> pd.DataFrame:
    """Read one accuracy from every run.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        axes: The columns that name a point.
        at: The cost to read at, or the cost for each point; None: the last row of each run.
        normalized: Read at the largest normalized delay that all runs of the point got to, instead.

    Returns:
        A row for each point, algorithm and seed: the axes, ``algorithm``, ``seed``, and ``value``, which is NaN where
        the run did not get there or diverged before.
    """
    horizon = _horizon(metrics, axes) if normalized else {}
    rows = []
    for point, algorithm, runs in by_run(metrics, axes):
        here = dict(zip(axes, point, strict=True)) | {"algorithm": algorithm}
        for run in runs:
            if normalized:
                value = _interpolated(run, "delay_total_normalized", horizon[point])
            else:
                row = first_row(run, at.get(point) if isinstance(at, Mapping) else at)
                value = np.nan if row is None or bool(row["diverged"]) else float(row["accuracy"])
            rows.append(here | {"seed": int(run["seed"].iloc[0]), "value": value})
    return pd.DataFrame(rows, columns=[*axes, "algorithm", "seed", "value"])


def first_row(run: pd.DataFrame, at: Cost | None) -> pd.Series[Any] | None:
    """Return the first row of a run whose cost is at least ``at``, None where there is none; without ``at``, the last.

    Args:
        run: The rows of one run, by iteration.
        at: The cost.

    Returns:
        The row.
    """
    place = _place(run, at)
    return None if place is None else run.iloc[place]


def _place(run: pd.DataFrame, at: Cost | None) -> int | None:
    if at is None:
        return len(run) - 1
    there = (run[at.column] >= at.value).to_numpy()
    return int(there.argmax()) if there.any() else None


# --- tables ---------------------------------------------------------------------------------------------------


def at_delay(metrics: pd.DataFrame, axes: Sequence[str], delay: float) -> pd.DataFrame:
    """Return accuracies where the cumulative raw total delay first reaches a value, by point and algorithm.

    ``normalized`` is the accuracy at the largest normalized delay that all runs of the point got to, between the
    evaluated iterations by a straight line. ``reached`` counts the runs that got there and did not diverge.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        axes: The columns that name a point.
        delay: The raw total delay.

    Returns:
        A row for each point and algorithm.
    """
    horizon = _horizon(metrics, axes)
    at = Cost("delay", delay)

    def read(point: Point, runs: list[pd.DataFrame]) -> list[dict[str, Any]]:
        edge = horizon[point]
        normalized = np.array([_interpolated(run, "delay_total_normalized", edge) for run in runs])
        iterations = [
            float(row["iteration"]) if row is not None else np.nan for row in (first_row(run, at) for run in runs)
        ]
        return [
            {
                "delay": delay,
                **_counted(runs, at),
                **{f"iteration_{name}": value for name, value in quantiles(iterations).items() if name != "mean"},
                "normalized_delay": edge,
                **_spread("normalized", normalized[np.isfinite(normalized)]),
            }
        ]

    return _table(metrics, axes, read)


def at_end(
    metrics: pd.DataFrame, axes: Sequence[str], budgets: Mapping[Point, Cost | None] | None = None
) -> pd.DataFrame:
    """Return accuracies at the last row of each run, by point and algorithm.

    ``iteration`` is the last iteration of the longest run. Where a budget is known, ``budget`` and ``budget_value`` say
    it, and a run that ended before it is not counted as ``reached``.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        axes: The columns that name a point.
        budgets: Point -> what each of its runs may spend; None where runs go a number of iterations.

    Returns:
        A row for each point and algorithm.
    """
    budgets = budgets or {}

    def read(point: Point, runs: list[pd.DataFrame]) -> list[dict[str, Any]]:
        budget = budgets.get(point)
        cut = [whole_run(run, budget) for run in runs]
        last = max(int(run["iteration"].iloc[-1]) for run in cut)
        spent = {} if budget is None else {"budget": budget.kind, "budget_value": budget.value}
        # with iterations alone, a run that lacks the last row of the others was not finished
        at = budget or Cost("iterations", last)
        return [{"iteration": last, **spent, **_counted(cut, at)}]

    return _table(metrics, axes, read)


def at_iterations(metrics: pd.DataFrame, axes: Sequence[str], iterations: Sequence[int]) -> pd.DataFrame:
    """Return accuracies after numbers of iterations, by point, algorithm and iteration.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        axes: The columns that name a point.
        iterations: The numbers of iterations.

    Returns:
        A row for each point, algorithm and number of iterations.
    """

    def read(_: Point, runs: list[pd.DataFrame]) -> list[dict[str, Any]]:
        out = []
        for iteration in iterations:
            rows = [run[run["iteration"] == iteration] for run in runs]
            known = [float(row["accuracy"].iloc[0]) for row in rows if len(row) and not row["diverged"].iloc[0]]
            lost = sum(_diverged(run[run["iteration"] <= iteration]) for run in runs)
            counts = {"seeds": len(runs), "reached": len(known), "diverged": lost}
            out.append({"iteration": iteration, **counts, **_spread("accuracy", np.array(known))})
        return out

    return _table(metrics, axes, read)


def to_targets(metrics: pd.DataFrame, axes: Sequence[str], targets: Sequence[float]) -> pd.DataFrame:
    """Return raw delays until the accuracy first reaches targets, by point, algorithm and target.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        axes: The columns that name a point.
        targets: The accuracies.

    Returns:
        A row for each point, algorithm and target.
    """

    def read(_: Point, runs: list[pd.DataFrame]) -> list[dict[str, Any]]:
        out = []
        for target in targets:
            there = [run[run["accuracy"] >= target] for run in runs]
            firsts = [rows.iloc[0] if len(rows) else None for rows in there]
            row: dict[str, Any] = {
                "target": target,
                "seeds": len(runs),
                "reached": sum(first is not None for first in firsts),
            }
            for name in ("iteration", *DELAYS):
                found = quantiles([np.nan if first is None else float(first[name]) for first in firsts])
                row |= {f"{name.removeprefix('delay_')}_{kind}": value for kind, value in found.items()}
                passed = [run.iloc[-1] if first is None else first for run, first in zip(runs, firsts, strict=True)]
                row[f"{name.removeprefix('delay_')}_least"] = float(np.median([each[name] for each in passed]))
            out.append(row)
        return out

    return _table(metrics, axes, read)


def _counted(runs: Sequence[pd.DataFrame], at: Cost) -> dict[str, Any]:
    """Seeds, how many got there, how many diverged before, and the accuracies of those that got there.

    Regression has no accuracies: losses and distances to the optimum take their place.
    """
    places = [_place(run, at) for run in runs]
    lost = [_diverged(run if place is None else run.iloc[: place + 1]) for run, place in zip(runs, places, strict=True)]
    rows = [
        run.iloc[place] for run, place, bad in zip(runs, places, lost, strict=True) if place is not None and not bad
    ]
    out: dict[str, Any] = {"seeds": len(runs), "reached": len(rows), "diverged": sum(lost)}
    classified = any(run["accuracy"].notna().any() for run in runs)
    for name in ("accuracy",) if classified or not rows else ("accuracy", "loss", "optimality_error"):
        known = np.array([row[name] for row in rows], dtype=float)
        out |= _spread(name, known[np.isfinite(known)])
    return out


def _diverged(run: pd.DataFrame) -> bool:
    return bool(run["diverged"].astype(bool).any())


def _horizon(metrics: pd.DataFrame, axes: Sequence[str]) -> dict[Point, float]:
    """The largest normalized delay that all runs of a point got to; those that diverged do not count."""
    ends: dict[Point, list[float]] = {}
    lost: dict[Point, list[float]] = {}
    for point, _, runs in by_run(metrics, axes):
        for run in runs:
            kept = lost if _diverged(run) else ends
            kept.setdefault(point, []).append(float(run["delay_total_normalized"].iloc[-1]))
    return {point: min(ends.get(point) or lost[point]) for point in (ends | lost)}


def _interpolated(run: pd.DataFrame, x: str, at: float) -> float:
    known = run[run["accuracy"].notna()]
    if not len(known) or float(known[x].iloc[-1]) < at:
        return float("nan")
    return float(np.interp(at, known[x].to_numpy(float), known["accuracy"].to_numpy(float)))


def _spread(name: str, values: np.ndarray) -> dict[str, float | None]:
    """Return the columns of a measure: mean, deviation and median of finite values."""
    columns = spread(values) | {"median": float(np.median(values)) if len(values) else None}
    return {f"{name}_{column}": value for column, value in columns.items()}
