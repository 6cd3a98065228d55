"""Tuned comparisons: each algorithm takes the point that is best on some seeds, and is read on others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis import Cost, statistics
from dspodfl.experiments.definition import Tune


def tuned(metrics: pd.DataFrame, axes: Sequence[str], tune: Tune, *, quick: bool = False) -> pd.DataFrame:
    """Choose the best point of an axis for each algorithm and cost, and read the other seeds there.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        axes: The columns of what is varied; the one that is tuned among them.
        tune: What is tuned, on how many seeds, and at which costs.
        quick: Whether the costs of ``--quick`` are read.

    Returns:
        A row for each cost and algorithm: the columns of `readings` that runs have in common, ``seeds``, ``reached``,
        ``short``, ``diverged``, ``accuracy_…``, and ``rank`` (1: the largest mean at this cost). Runs that diverged are
        counted and not averaged.
    """
    found = readings(metrics, axes, tune, quick=quick)
    common = [str(name) for name in found if name not in _OF_RUNS]
    key: Any
    rows: list[dict[str, Any]] = []
    for key, runs in found.groupby(common, sort=False, dropna=False):
        rows.append(dict(zip(common, key, strict=True)) | _summary(runs))
    for row in rows:
        means = [other["accuracy_mean"] or 0.0 for other in rows if other["cost"] == row["cost"]]
        row["rank"] = 1 + sum(mean > (row["accuracy_mean"] or 0.0) for mean in means)
    return pd.DataFrame(rows)


def readings(metrics: pd.DataFrame, axes: Sequence[str], tune: Tune, *, quick: bool = False) -> pd.DataFrame:
    """Read every seed that does not choose, at the point that the others choose.

    The last seeds choose: the point with the largest mean accuracy, a run that diverged counting as 0, and of equal
    ones the first. A run is read where its cost reaches the value, on the straight line between evaluated iterations;
    one that ends before (``short``) at its end.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        axes: The columns of what is varied; the one that is tuned among them.
        tune: What is tuned, on how many seeds, and at which costs.
        quick: Whether the costs of ``--quick`` are read.

    Returns:
        A row for each cost, algorithm and seed: the other axes, ``algorithm``, ``cost``, ``cost_value``,
        ``tuned_axis``, ``tuned`` (the point), ``edge`` (whether it is the first or last of several),
        ``tuning_accuracy``, ``seed``, ``value``, ``short``, ``diverged``.
    """
    others = [axis for axis in axes if axis != tune.over]
    points = sorted(dict.fromkeys(metrics[tune.over]))
    choosing = set(sorted(metrics["seed"].unique())[-tune.seeds :])
    groups = metrics.sort_values("iteration", kind="stable").groupby([*others, "algorithm"], sort=False)
    runs: dict[Any, list[tuple[Any, pd.DataFrame]]] = {
        key: list(found.groupby([tune.over, "seed"])) for key, found in groups
    }
    order = dict.fromkeys(metrics[[*others, "algorithm"]].itertuples(index=False, name=None))
    rows: list[dict[str, Any]] = []
    for cost in tune.costs(quick):
        for key in order:
            read = [_read(run, cost) | {"point": at[0], "seed": int(at[1])} for at, run in runs[key]]
            best, accuracy = _best([one for one in read if one["seed"] in choosing], points)
            edge = len(points) > 1 and best in (points[0], points[-1])
            here = dict(zip([*others, "algorithm"], key, strict=True))
            here |= {"cost": cost.kind, "cost_value": cost.value, "tuned_axis": tune.over, "tuned": best}
            here |= {"edge": edge, "tuning_accuracy": accuracy}
            mine = [one for one in read if one["seed"] not in choosing and one["point"] == best]
            rows += [here | {name: one[name] for name in _OF_RUNS} for one in mine]
    return pd.DataFrame(rows)


_OF_RUNS = ("seed", "value", "short", "diverged")
"""The columns in which the runs of an algorithm differ."""


def _read(run: pd.DataFrame, cost: Cost) -> dict[str, Any]:
    """What a run has at a cost; its rows are by iteration."""
    spent = run[cost.column].to_numpy(float)
    short = bool(spent[-1] < cost.value)
    upto = len(run) if short else int((spent >= cost.value).argmax()) + 1
    diverged = bool(run["diverged"].iloc[:upto].astype(bool).any())
    value = float(np.interp(cost.value, spent[:upto], run["accuracy"].to_numpy(float)[:upto]))
    return {"value": value, "short": short, "diverged": diverged}


def _best(read: Sequence[dict[str, Any]], points: Sequence[Any]) -> tuple[Any, float]:
    """The point with the largest mean accuracy, and that accuracy."""
    means = {}
    for point in points:
        mine = [one for one in read if one["point"] == point]
        if mine:
            means[point] = float(np.mean([0.0 if one["diverged"] else one["value"] for one in mine]))
    best = max(means, key=lambda point: means[point])
    return best, means[best]


def _summary(read: pd.DataFrame) -> dict[str, Any]:
    """Counts, and the spread of the accuracies of runs that did not diverge."""
    values = read.loc[~read["diverged"], "value"].to_numpy(float)
    values = values[np.isfinite(values)]
    counts = {"seeds": len(read), "reached": len(values), "short": int(read["short"].sum())}
    middle = float(np.median(values)) if len(values) else None
    columns = statistics.spread(values) | {"median": middle}
    return (
        counts
        | {"diverged": int(read["diverged"].sum())}
        | {f"accuracy_{name}": value for name, value in columns.items()}
    )
