"""Tuned comparisons: each algorithm takes the point that is best on some seeds, and is read on others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis import Cost
from dspodfl.analysis.statistics import spread
from dspodfl.experiments.definition import Tune


def tuned(metrics: pd.DataFrame, axes: Sequence[str], tune: Tune, *, quick: bool = False) -> pd.DataFrame:
    """Choose the best point of an axis for each algorithm and cost, and read the other seeds there.

    The last seeds choose: the point with the largest mean accuracy, a run that diverged counting as 0, and of equal
    ones the first. A run is read where its cost reaches the value, on the straight line between evaluated iterations;
    one that ends before (``short``) at its end. Runs that diverged before are counted and not averaged.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        axes: The columns of what is varied; the one that is tuned among them.
        tune: What is tuned, on how many seeds, and at which costs.
        quick: Whether the costs of ``--quick`` are read.

    Returns:
        A row for each cost and algorithm: the other axes, ``algorithm``, ``cost``, ``cost_value``, ``tuned_axis``,
        ``tuned`` (the point), ``edge`` (whether it is the first or last of several), ``tuning_accuracy``, ``seeds``,
        ``reached``, ``short``, ``diverged``, ``accuracy_…``, and ``rank`` (1: the largest mean at this cost).
    """
    others = [axis for axis in axes if axis != tune.over]
    points = sorted(dict.fromkeys(metrics[tune.over]))
    choosing = set(sorted(metrics["seed"].unique())[-tune.seeds :])
    rows: list[dict[str, Any]] = []
    groups = metrics.groupby([*others, "algorithm"], sort=False)
    runs = {key: [run for _, run in found.groupby([tune.over, "seed"], sort=False)] for key, found in groups}
    for cost in tune.costs(quick):
        here = []
        for key, found in runs.items():
            read = pd.DataFrame([_read(run, cost, tune.over) for run in found])
            apart = read["seed"].isin(choosing)
            best, accuracy = _best(read[apart], points)
            where = dict(zip([*others, "algorithm"], key if isinstance(key, tuple) else (key,), strict=True))
            chosen = {"cost": cost.kind, "cost_value": cost.value, "tuned_axis": tune.over, "tuned": best}
            edge = {"edge": len(points) > 1 and best in (points[0], points[-1]), "tuning_accuracy": accuracy}
            here.append(where | chosen | edge | _summary(read[~apart & (read["point"] == best)]))
        means = [row["accuracy_mean"] or 0.0 for row in here]
        rows += [row | {"rank": 1 + sum(other > mean for other in means)} for row, mean in zip(here, means, strict=True)]
    return pd.DataFrame(rows)


def _read(run: pd.DataFrame, cost: Cost, over: str) -> dict[str, Any]:
    """What a run has at a cost."""
    run = run.sort_values("iteration")
    spent = run[cost.column].to_numpy(float)
    short = bool(spent[-1] < cost.value)
    upto = run if short else run.iloc[: int((spent >= cost.value).argmax()) + 1]
    diverged = bool(upto["diverged"].astype(bool).any())
    known = upto["accuracy"].to_numpy(float)
    value = float(np.interp(cost.value, spent[: len(upto)], known))
    seed = int(run["seed"].iloc[0])
    return {"point": run[over].iloc[0], "seed": seed, "value": value, "short": short, "diverged": diverged}


def _best(read: pd.DataFrame, points: Sequence[Any]) -> tuple[Any, float]:
    """The point with the largest mean accuracy, and that accuracy."""
    means = read.assign(value=read["value"].where(~read["diverged"], 0.0).fillna(0.0)).groupby("point")["value"].mean()
    best = max((point for point in points if point in means.index), key=lambda point: means[point])
    return best, float(means[best])


def _summary(read: pd.DataFrame) -> dict[str, Any]:
    """Counts, and the spread of the accuracies of runs that did not diverge."""
    values = read.loc[~read["diverged"], "value"].to_numpy(float)
    values = values[np.isfinite(values)]
    counts = {"seeds": len(read), "reached": len(values), "short": int(read["short"].sum())}
    middle = float(np.median(values)) if len(values) else None
    columns = spread(values) | {"median": middle}
    return (
        counts
        | {"diverged": int(read["diverged"].sum())}
        | {f"accuracy_{name}": value for name, value in columns.items()}
    )
