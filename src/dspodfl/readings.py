"""What a grid of studies says, read from its rows: at a delay, at iterations, at target accuracies.

A run that never gets there is *censored*: it is counted, and left out of nothing silently. Accuracies are means and
standard deviations (ddof 0) over the seeds that got there; delays are medians and quartiles over all seeds, a run that
never got there being infinitely late, with the mean beside them where all did. What is infinite was not waited for: the
median then is known to be at least what it is with the end of such a run in its place (``…_least``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.summary import quantiles

DELAYS = ("delay_processing", "delay_transmission", "delay_total")


def by_run(metrics: pd.DataFrame, axes: Sequence[str]) -> list[tuple[tuple[Any, ...], str, list[pd.DataFrame]]]:
    """(point, algorithm, runs by iteration) in the order of the table."""
    keys = [*axes, "algorithm"]
    out = []
    for key, rows in metrics.groupby(keys, sort=False):
        runs = [run.sort_values("iteration") for _, run in rows.groupby("seed")]
        *point, algorithm = key if isinstance(key, tuple) else (key,)
        out.append((tuple(point), str(algorithm), runs))
    return out


def _table(
    metrics: pd.DataFrame, axes: Sequence[str], read: Callable[[list[pd.DataFrame]], list[dict[str, Any]]]
) -> pd.DataFrame:
    rows = []
    for point, algorithm, runs in by_run(metrics, axes):
        here = dict(zip(axes, point, strict=True)) | {"algorithm": algorithm}
        rows += [here | found for found in read(runs)]
    return pd.DataFrame(rows)


def at_delay(metrics: pd.DataFrame, axes: Sequence[str], delay: float) -> pd.DataFrame:
    """Accuracy where the cumulative raw total delay first reaches a value: a row for each point and algorithm.

    ``normalized`` is the accuracy at the largest normalized delay that all runs of the point got to, between the
    evaluated iterations by a straight line.
    """
    horizon = _horizon(metrics, axes)

    def read(runs: list[pd.DataFrame]) -> list[dict[str, Any]]:
        there = [run[run["delay_total"] >= delay] for run in runs]
        reached = [rows.iloc[0] for rows in there if len(rows)]
        accuracy = np.array([row["accuracy"] for row in reached if not row["diverged"]], dtype=float)
        iterations = [float(rows.iloc[0]["iteration"]) if len(rows) else np.nan for rows in there]
        edge = horizon[tuple(runs[0].iloc[0][list(axes)])]
        normalized = np.array([_interpolated(run, "delay_total_normalized", edge) for run in runs])
        normalized = normalized[np.isfinite(normalized)]
        return [
            {
                "delay": delay,
                "seeds": len(runs),
                "reached": len(reached),
                "diverged": int(sum(bool(row["diverged"]) for row in reached)),
                **_spread("accuracy", accuracy),
                **{f"iteration_{name}": value for name, value in quantiles(iterations).items() if name != "mean"},
                "normalized_delay": edge,
                **_spread("normalized", normalized),
            }
        ]

    return _table(metrics, axes, read)


def at_iterations(metrics: pd.DataFrame, axes: Sequence[str], iterations: Sequence[int]) -> pd.DataFrame:
    """Accuracy after numbers of iterations: a row for each point, algorithm and iteration."""

    def read(runs: list[pd.DataFrame]) -> list[dict[str, Any]]:
        out = []
        for iteration in iterations:
            rows = [run[run["iteration"] == iteration] for run in runs]
            known = [float(row["accuracy"].iloc[0]) for row in rows if len(row) and not row["diverged"].iloc[0]]
            counts = {"seeds": len(runs), "reached": len(known), "diverged": sum(r["diverged"].any() for r in rows)}
            out.append({"iteration": iteration, **counts, **_spread("accuracy", np.array(known))})
        return out

    return _table(metrics, axes, read)


def to_targets(metrics: pd.DataFrame, axes: Sequence[str], targets: Sequence[float]) -> pd.DataFrame:
    """Delays, raw, until the accuracy first reaches targets: a row for each point, algorithm and target."""

    def read(runs: list[pd.DataFrame]) -> list[dict[str, Any]]:
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


def _horizon(metrics: pd.DataFrame, axes: Sequence[str]) -> dict[tuple[Any, ...], float]:
    """The largest normalized delay that all runs of a point got to."""
    out: dict[tuple[Any, ...], float] = {}
    for point, _, runs in by_run(metrics, axes):
        ends = [float(run["delay_total_normalized"].iloc[-1]) for run in runs]
        out[point] = min(out.get(point, np.inf), *ends)
    return out


def _interpolated(run: pd.DataFrame, x: str, at: float) -> float:
    known = run[run["accuracy"].notna()]
    if not len(known) or float(known[x].iloc[-1]) < at:
        return float("nan")
    return float(np.interp(at, known[x].to_numpy(float), known["accuracy"].to_numpy(float)))


def _spread(name: str, values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {f"{name}_mean": None, f"{name}_std": None, f"{name}_median": None}
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_std": float(values.std()),
        f"{name}_median": float(np.median(values)),
    }
