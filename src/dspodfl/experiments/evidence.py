"""What claims are checked by: the values of every algorithm at a point or a delay, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis import Cost, Difference, Side, from_config
from dspodfl.analysis import aggregates as aggregation
from dspodfl.analysis import statistics as paired
from dspodfl.experiments.definition import Check, Experiment
from dspodfl.network import COST_COLUMNS

_GRID = 100
"""Delays at which curves are compared."""


@dataclass(frozen=True)
class Evidence:
    """What claims are checked by.

    Attributes:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        aggregates: What the figure or table of the experiment shows of them.
        axes: The columns of what is varied.
        experiment: The experiment, with its checks.
        others: The evidence of experiments that this one is compared with, by name.
    """

    metrics: pd.DataFrame
    aggregates: pd.DataFrame
    axes: Sequence[str]
    experiment: Experiment
    others: Mapping[str, Evidence] = field(default_factory=dict)


Frame = pd.DataFrame
"""The values at one point: seeds by algorithms, NaN where a run did not get there or diverged."""


def at_points(check: Check, evidence: Evidence) -> dict[Any, Frame]:
    """Return point -> values there, in the order of the grid."""
    axes = list(evidence.axes)
    normalized = check.axis == "normalized"
    table = aggregation.values(evidence.metrics, axes, read_at(evidence), normalized=normalized)
    groups = table.groupby(axes[0] if len(axes) == 1 else axes, sort=False) if axes else [((), table)]
    return {point: _by_algorithm(rows) for point, rows in groups}


def _by_algorithm(rows: pd.DataFrame) -> Frame:
    """Seeds by algorithms, these in the order of the study."""
    order = list(dict.fromkeys(rows["algorithm"]))
    return rows.pivot(index="seed", columns="algorithm", values="value").reindex(columns=order)


def read_at(evidence: Evidence) -> Cost | dict[aggregation.Point, Cost | None] | None:
    """Where the aggregates were read: at a delay, at the budget of each point, or at the end of the runs."""
    aggregates = evidence.aggregates
    if "delay" in aggregates:
        return Cost("delay", float(aggregates["delay"].iloc[0]))
    if "budget" in aggregates:
        return {
            tuple(row[axis] for axis in evidence.axes): (
                Cost(row["budget"], float(row["budget_value"])) if row["budget"] in COST_COLUMNS else None
            )
            for _, row in aggregates.iterrows()
        }
    return None


def along_delays(evidence: Evidence, x: str) -> dict[float, Frame]:
    """Return delay -> values there, at delays (equally spaced on a logarithmic scale) that all algorithms cover.

    Rows of a frame are seeds, each the mean over the points of the grid. An algorithm covers a delay where at least
    half of its runs got to it; a run that ended before has no value there.
    """
    runs: dict[str, dict[Any, pd.DataFrame]] = {}
    for (algorithm, *key), rows in evidence.metrics.groupby(["algorithm", *evidence.axes, "seed"], sort=False):
        sound = rows[~rows["diverged"].astype(bool) & rows["accuracy"].notna()].sort_values([x, "iteration"])
        runs.setdefault(str(algorithm), {})[tuple(key)] = sound
    measured = {a: some for a, some in runs.items() if any(len(run) for run in some.values())}
    if not measured:
        return {}
    start = max(min((_first_positive(run[x]) for run in some.values()), default=np.inf) for some in measured.values())
    end = min(_covered([run[x] for run in some.values()]) for some in measured.values())
    budget = from_config(evidence.experiment.base)
    if budget is not None and budget.column == x:  # the last event of a run may cost more than was left
        end = min(end, budget.value)
    if not start < end:
        return {}
    grid = np.geomspace(start, end, _GRID)
    grid[-1] = end
    lines = {
        algorithm: {key: _line(run, x, grid) for key, run in some.items() if len(run)}
        for algorithm, some in measured.items()
    }
    tables = {algorithm: _by_seed(some) for algorithm, some in lines.items()}
    return {
        float(at): pd.DataFrame({algorithm: table[n] for algorithm, table in tables.items()})
        for n, at in enumerate(grid)
    }


def _by_seed(lines: Mapping[tuple[Any, ...], np.ndarray]) -> pd.DataFrame:
    """Means over points: runs of one seed at several points are not independent. Seeds by places of the grid."""
    table = pd.DataFrame(list(lines.values()))
    return table.groupby(np.array([key[-1] for key in lines])).mean()


def _first_positive(values: pd.Series[Any]) -> float:
    positive = values[values > 0]
    return float(positive.iloc[0]) if len(positive) else np.inf


def _covered(runs: Sequence[pd.Series[Any]]) -> float:
    """The largest value that at least half of the runs got to."""
    ends = sorted((float(run.iloc[-1]) if len(run) else 0.0 for run in runs), reverse=True)
    return ends[(len(ends) + 1) // 2 - 1]


def _line(run: pd.DataFrame, x: str, grid: np.ndarray) -> np.ndarray:
    known, values = run[x].to_numpy(float), run["accuracy"].to_numpy(float)
    return np.interp(grid, known, values, left=np.nan, right=np.nan)


def pair(frame: Frame, ours: str, theirs: str) -> Difference:
    """Compare two algorithms at a point, seed by seed."""
    return paired.compare(frame[ours].to_dict(), frame[theirs].to_dict())


def other_algorithms(frame: Frame, algorithm: str, among: Sequence[str] = ()) -> list[str]:
    """The other algorithms that have a value at a point."""
    known = [a for a in frame.columns if a != algorithm and (not among or a in among) and frame[a].notna().any()]
    return [str(a) for a in known]


def best_other(frame: Frame, algorithm: str, among: Sequence[str] = ()) -> str | None:
    """The best of the others, by its mean over seeds."""
    others = other_algorithms(frame, algorithm, among)
    return max(others, key=lambda other: _mean(frame[other])) if others else None


def _mean(line: Any) -> float:
    return float(line.mean())


def side_at(frame: Frame, algorithm: str, among: Sequence[str] = ()) -> Side:
    """Ahead of all others, behind one of them at least, or not decided."""
    if algorithm not in frame or not other_algorithms(frame, algorithm, among):
        return "undecided"
    sides = {pair(frame, algorithm, other).side for other in other_algorithms(frame, algorithm, among)}
    return "behind" if "behind" in sides else "ahead" if sides == {"ahead"} else "undecided"


def margin_over_best(frame: Frame, algorithm: str, among: Sequence[str] = ()) -> pd.Series[Any] | None:
    """Seed -> by how much an algorithm is above the best of the others; None where there is nothing to compare."""
    rival = best_other(frame, algorithm, among)
    if rival is None or algorithm not in frame or not frame[algorithm].notna().any():
        return None
    return frame[algorithm] - frame[rival]


def mean_over_points(lines: Sequence[pd.Series[Any] | None]) -> Difference:
    """The mean over points of something that is known seed by seed, with its interval over seeds."""
    known = [line for line in lines if line is not None]
    if not known:
        return paired.difference([])
    return paired.difference(pd.concat(known, axis=1).mean(axis=1).to_list())
