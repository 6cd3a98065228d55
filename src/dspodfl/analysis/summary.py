"""The summary of a study: final values, delays to targets, and how each run ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis.statistics import quantiles, spread
from dspodfl.network import Budget

DELAYS = ("delay_processing", "delay_transmission", "delay_total", "delay_total_normalized")


def summarize(
    metrics: pd.DataFrame,
    targets: Sequence[float],
    at_delay: Sequence[float],
    budget: Budget | None = None,
    caps: Mapping[tuple[str, int], int] | None = None,
) -> dict[str, Any]:
    """Return, for each algorithm, final values over seeds, delays to target accuracies and how each run ended.

    "Final" is the last row of each run. A run that never reaches a target counts as infinitely late: quantiles are over
    all runs, and null where they fall on such a run. Standard deviations are over seeds, ddof 1, null for one seed.

    Args:
        metrics: Rows by algorithm, seed and evaluated iteration.
        targets: Accuracies.
        at_delay: Raw total delays at which accuracies are read.
        budget: What each run may spend; None where runs go a number of iterations.
        caps: (algorithm, seed) -> the most iterations the run may take. With it, a run that has reached neither is said
            not to have ended; without it, such a run is taken to have ended by its cap.

    Returns:
        Algorithm -> what ``summary.json`` holds of it.
    """
    out = {}
    for algorithm, rows in metrics.groupby("algorithm", sort=False):
        runs = [whole_run(run, budget) for _, run in rows.groupby("seed")]
        last = pd.DataFrame([run.iloc[-1] for run in runs])
        out[str(algorithm)] = {
            "seeds": len(runs),
            "iterations": int(last["iteration"].max()),
            "diverged": int(last["diverged"].astype(bool).sum()),
            **{
                f"final_{name}": spread(last[name].dropna())
                for name in ("accuracy", "accuracy_min", "accuracy_average_model")
            },
            "final_loss": spread(last["loss"].dropna()),
            "final_optimality_error": spread(last["optimality_error"].dropna()),
            "final_delay": {name: quantiles(last[name].tolist()) for name in DELAYS},
            "targets": [_target(runs, target) for target in targets],
            "at_delay": [_at_delay(runs, value) for value in at_delay],
            "runs": [_ended(run.iloc[-1], budget, caps) for run in runs],
        }
    return out


def whole_run(run: pd.DataFrame, budget: Budget | None) -> pd.DataFrame:
    """Return the rows of a run in order, up to its last one: where it spent its budget, or diverged before that.

    0.1 wrote rows of a run after it had spent its budget, with the same counters at later iterations. With a number of
    iterations alone (``budget`` is None) every run goes to the end, and all rows belong to it.

    Args:
        run: The rows of one algorithm and seed, in any order.
        budget: What the run may spend.

    Returns:
        The rows by iteration.
    """
    run = run.sort_values("iteration")
    if budget is None or budget.kind == "iterations":
        return run
    over = (run[budget.column] >= budget.value) | run["diverged"].astype(bool)
    return run.iloc[: int(over.to_numpy().argmax()) + 1] if over.any() else run


def ended_by(
    row: pd.Series[Any], budget: Budget | None, caps: Mapping[tuple[str, int], int] | None = None
) -> str | None:
    """Return why a run ended at a row.

    Args:
        row: A row of metrics.parquet.
        budget: What the run may spend.
        caps: (algorithm, seed) -> the most iterations the run may take.

    Returns:
        ``diverged``, ``budget`` or ``cap``; None where the run continues after the row.
    """
    if bool(row["diverged"]):
        return "diverged"
    if budget is not None and budget.reached(row.to_dict()):
        return "budget"
    cap = None if caps is None else caps.get((str(row["algorithm"]), int(row["seed"])))
    return None if cap is not None and int(row["iteration"]) < cap else "cap"


def _ended(row: pd.Series[Any], budget: Budget | None, caps: Mapping[tuple[str, int], int] | None) -> dict[str, Any]:
    known = {name: _finite(row[name]) for name in ("delay_total", "delay_total_normalized", "bytes", "accuracy")}
    sent = known["bytes"]
    return {
        "seed": int(row["seed"]),
        "ended_at": int(row["iteration"]),
        "ended_by": ended_by(row, budget, caps),
        **known,
        "bytes": None if sent is None else int(sent),
    }


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None


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
        "accuracy": spread(accuracy),
        "iteration": quantiles(iterations),
    }
