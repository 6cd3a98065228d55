"""What a study says in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.budget import Budget

DELAYS = ("delay_processing", "delay_transmission", "delay_total", "delay_total_normalized")


def summarize(
    metrics: pd.DataFrame, targets: Sequence[float], at_delay: Sequence[float], budget: Budget | None = None
) -> dict[str, Any]:
    """Per algorithm: final accuracy over seeds, and delays to the target accuracies.

    A run that never reaches a target counts as infinitely late: quantiles are over all runs, and null where they fall
    on such a run. Standard deviations are over seeds, ddof 0.
    """
    out = {}
    for algorithm, rows in metrics.groupby("algorithm", sort=False):
        last = rows.sort_values(["seed", "iteration"]).groupby("seed").tail(1)
        runs = [run.sort_values("iteration") for _, run in rows.groupby("seed")]
        out[str(algorithm)] = {
            "seeds": len(runs),
            "runs": [_ended(run.iloc[-1].to_dict(), budget) for run in runs],
            "iterations": int(last["iteration"].max()),
            "diverged": int(last["diverged"].sum()),
            **{f"final_{name}": _spread(last[name]) for name in ("accuracy", "accuracy_min", "accuracy_average_model")},
            "final_loss": _spread(last["loss"]),
            "final_optimality_error": _spread(last["optimality_error"]),
            "final_delay": {name: quantiles(last[name].tolist()) for name in DELAYS},
            "targets": [_target(runs, target) for target in targets],
            "at_delay": [_at_delay(runs, value) for value in at_delay],
        }
    return out


def _ended(row: Mapping[Any, Any], budget: Budget | None) -> dict[str, Any]:
    """Where a run ended, why, and what it had spent."""
    by = "diverged" if row["diverged"] else "budget" if budget and budget.reached(row) else "cap"
    costs = {name: row[name] for name in ("delay_total", "delay_total_normalized", "bytes", "accuracy")}
    plain = {name: None if value is None or np.isnan(value) else value for name, value in costs.items()}
    return {"seed": int(row["seed"]), "ended_at": int(row["iteration"]), "ended_by": by, **plain}


def _spread(values: pd.Series) -> dict[str, float | None]:
    """Mean and deviation over the runs that did not diverge; null where there is none, or a value has overflown."""
    known = values.dropna().to_numpy(dtype=np.float64)
    if not len(known) or not np.isfinite(known).all():
        return {"mean": None, "std": None}
    with np.errstate(over="ignore"):
        mean, std = float(known.mean()), float(known.std())
    return {"mean": mean if np.isfinite(mean) else None, "std": std if np.isfinite(std) else None}


def quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """Quartiles where missing values are infinite; null where infinite."""
    ordered = sorted(float("inf") if v is None or np.isnan(v) else float(v) for v in values)
    out: dict[str, float | None] = {}
    for name, q in (("median", 0.5), ("quartile1", 0.25), ("quartile3", 0.75)):
        at = q * (len(ordered) - 1)
        low, high = ordered[int(np.floor(at))], ordered[int(np.ceil(at))]
        value = low if low == high else low + (high - low) * (at % 1)
        out[name] = value if np.isfinite(value) else None
    finite = [v for v in ordered if np.isfinite(v)]
    out["mean"] = float(np.mean(finite)) if len(finite) == len(ordered) and ordered else None
    return out


def _target(runs: Sequence[pd.DataFrame], target: float) -> dict[str, Any]:
    firsts = []
    for run in runs:
        there = run[run["accuracy"] >= target]
        firsts.append(there.iloc[0] if len(there) else None)
    columns = ("iteration", *DELAYS)
    return {
        "accuracy": target,
        "reached": sum(first is not None for first in firsts),
        **{name: quantiles([float("nan") if f is None else f[name] for f in firsts]) for name in columns},
    }


def _at_delay(runs: Sequence[pd.DataFrame], value: float) -> dict[str, Any]:
    there = [run[run["delay_total"] >= value] for run in runs]
    rows = [rows.iloc[0] for rows in there if len(rows)]
    accuracy = pd.Series([row["accuracy"] for row in rows], dtype=float)
    iterations = [rows.iloc[0]["iteration"] if len(rows) else float("nan") for rows in there]
    return {
        "delay": value,
        "reached": len(rows),
        "accuracy": _spread(accuracy),
        "iteration": quantiles(iterations),
    }
