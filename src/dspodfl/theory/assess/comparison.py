"""The bound next to a measured run: mean errors over seeds, the exact recursion, the printed form, the gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis import from_config, whole_run
from dspodfl.config import FREE, Config
from dspodfl.errors import InputError
from dspodfl.study import Result
from dspodfl.theory.assess.assessment import Assessment
from dspodfl.theory.formulas.constants import Floats

SIGMAS = 4.0
"""Standard errors by which a measured mean may pass a bound before it counts as above."""
_FREE = ("algorithms", "seeds", "eval", *FREE)
_FREE_TRAIN = ("iterations", "until", "until_delay", "precision", "dfedavg_period")
ENTRIES = ("optimality_error", "consensus_error")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Measured errors next to their bounds.

    Attributes:
        table: A row for each algorithm and evaluated iteration.
        checks: A row for each algorithm and error: its status, and how much of the bound was used.
        inside: Whether every evaluated model was in the ball that σ is a maximum over; None where σ needs none.
    """

    table: pd.DataFrame
    checks: pd.DataFrame
    inside: bool | None


def matching(config: Config, result: Result, folder: str) -> Config:
    """Return the configuration of a measured run, once it is found to agree with another one.

    Args:
        config: The configuration that bounds are wanted for.
        result: The measured run.
        folder: The folder of the run, for messages.

    Returns:
        The configuration of the run, with those of its algorithms that ``config`` has too.

    Raises:
        InputError: A key that decides the errors differs, or there is no common algorithm.
    """
    measured = Config(**result.config)
    ours, theirs = _decisive(config), _decisive(measured)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            allowed = f"a run of this configuration; there {key} = {theirs.get(key)!r}, here {ours.get(key)!r}"
            raise InputError("--compare", folder, allowed)
    names = [given for given in measured.algorithms if given in config.algorithms]
    if not names:
        allowed = f"a run of {', '.join(config.labels)}; it has {', '.join(measured.labels)}"
        raise InputError("--compare", folder, allowed)
    return measured.model_copy(update={"algorithms": names})


def _decisive(config: Config) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def walk(values: dict[str, Any], path: str) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                walk(value, f"{path}{key}.")
            else:
                flat[f"{path}{key}"] = value

    walk({key: value for key, value in config.model_dump(mode="json").items() if key not in _FREE}, "")
    free = tuple(f"train.{name}" for name in _FREE_TRAIN)
    return {key: value for key, value in flat.items() if not f"{key}.".startswith(tuple(f"{name}." for name in free))}


def compare(assessment: Assessment, result: Result, folder: str) -> Comparison:
    """Compare the bounds of strongly convex losses with the errors that a run measured.

    Args:
        assessment: The assessment of the configuration of the run.
        result: The measured run.
        folder: The folder of the run, for messages.

    Returns:
        Measured means and bounds at every evaluated iteration, and whether a bound was exceeded.

    Raises:
        InputError: The constants include no μ, so that there is no such bound.
    """
    if assessment.constants.mu is None:
        allowed = "given with linear regression or regularized logistic regression, whose θ* and μ are known"
        raise InputError("--compare", folder, allowed)
    budget = from_config(result.config)
    tables, checks = [], []
    for algorithm in assessment.algorithms:
        found = algorithm.result("strongly convex")
        rows = result.metrics[result.metrics["algorithm"] == algorithm.name]
        table = _measured(algorithm.name, [whole_run(run, budget) for _, run in rows.groupby("seed")])
        k = table["iteration"].to_numpy()
        for n, name in enumerate(ENTRIES):
            lines: dict[str, Floats | None] = {"bound": None, "printed": None, "gap": None}
            if found is not None:
                lines["bound"] = None if found.trajectory is None else _at(found.trajectory, k, n)
                lines["printed"] = None if found.printed is None else _at(found.printed, k, n)
                lines["gap"] = None if found.gap is None else np.full(len(k), found.gap[n])
            for line, values in lines.items():
                table[f"{name}_{line}"] = np.nan if values is None else values
            checks.append({"algorithm": algorithm.name, "error": name, **_check(table, name)})
        tables.append(table)
    return Comparison(pd.concat(tables, ignore_index=True), pd.DataFrame(checks), _inside(assessment, result.metrics))


def _at(trajectory: Floats, k: np.ndarray, entry: int) -> Floats:
    """An entry of a trajectory at some iterations; past its end, its last value. Shape: (iterations,)."""
    return trajectory[np.minimum(k, len(trajectory) - 1), entry]


def _measured(algorithm: str, runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Mean errors and their standard errors over the runs of an algorithm, each up to its own last row.

    Runs may have been evaluated at different iterations: between two of its rows a run is read along a straight line of
    the logarithm, on which errors that shrink by a factor an iteration are. An iteration that one run of several
    reaches has no standard error, and is left out.

    Args:
        algorithm: Its name.
        runs: The rows of each run, by iteration.
    """
    sound = [run[~run["diverged"].astype(bool)] for run in runs]
    sound = [run for run in sound if len(run)]
    k = np.unique(np.concatenate([run["iteration"].to_numpy(np.int64) for run in sound] or [np.empty(0, np.int64)]))
    table = pd.DataFrame({"algorithm": algorithm, "iteration": k})
    ends = np.array([run["iteration"].iloc[-1] for run in sound], dtype=np.int64)
    table["seeds"] = (ends[:, None] >= k).sum(axis=0)
    for name in ENTRIES:
        values = pd.DataFrame([_along(run, name, k) for run in sound], columns=k)
        table[name] = values.mean().to_numpy()
        table[f"{name}_error"] = values.sem(ddof=1).fillna(0.0).to_numpy()
    return table[table["seeds"] >= min(2, len(sound))].reset_index(drop=True)


def _along(run: pd.DataFrame, name: str, k: np.ndarray) -> Floats:
    """An error of one run at some iterations; NaN past its last row. Shape: (iterations,)."""
    known = run[run[name].notna()]
    if not len(known):
        return np.full(len(k), np.nan)
    at, values = known["iteration"].to_numpy(np.float64), known[name].to_numpy(np.float64)
    out = np.interp(k, at, values, left=np.nan, right=np.nan)
    if (values > 0).all():
        between = ~np.isin(k, at)
        logarithm = np.interp(k, at, np.log(values), left=np.nan, right=np.nan)
        out[between] = np.exp(logarithm[between])
    return out


def _inside(assessment: Assessment, metrics: pd.DataFrame) -> bool | None:
    """‖θ_i − θ*‖ ≤ ‖θ̄ − θ*‖ + ‖Θ − 1θ̄‖ against the ball of each seed."""
    reach = {seed: found.reach for seed, found in assessment.seeds.items() if found.reach is not None}
    if not reach:
        return None
    metrics = metrics[metrics["algorithm"].isin([one.name for one in assessment.algorithms if one.results])]
    far = np.sqrt(metrics["optimality_error"]) + np.sqrt(metrics["consensus_error"])
    return bool((far <= metrics["seed"].map(reach) * (1 + 1e-6)).all())


def _check(table: pd.DataFrame, name: str) -> dict[str, Any]:
    """How much of the bound was used, and whether it was passed beyond Monte-Carlo error."""
    known = table[table[f"{name}_bound"].notna() & table[name].notna() & (table["iteration"] > 0)]
    if not len(known):
        measured = bool(table[name].notna().any())
        return {"status": "no bound" if measured else "not measured", "largest": np.nan, "last": np.nan, "points": 0}
    ratio = known[name] / known[f"{name}_bound"]
    above = known[name] - SIGMAS * known[f"{name}_error"] > known[f"{name}_bound"] * (1 + 1e-9)
    status = "above the bound" if above.any() else "never above"
    return {"status": status, "largest": float(ratio.max()), "last": float(ratio.iloc[-1]), "points": len(known)}


def predicted(assessment: Assessment, points: int = 400) -> pd.DataFrame:
    """Return the trajectory that the strongly convex bounds predict, where there is no run to compare with.

    Args:
        assessment: The assessment of a configuration.
        points: The largest number of iterations that are given.

    Returns:
        A row for each algorithm and iteration: bound, printed form and gap of both errors; empty where no such bound
        converges.
    """
    tables = []
    for algorithm in assessment.algorithms:
        found = algorithm.result("strongly convex")
        if found is None or found.trajectory is None:
            continue
        k = np.unique(np.linspace(0, len(found.trajectory) - 1, points).round().astype(int))
        table = pd.DataFrame({"algorithm": algorithm.name, "iteration": k})
        for n, name in enumerate(ENTRIES):
            table[f"{name}_bound"] = found.trajectory[k, n]
            table[f"{name}_printed"] = np.nan if found.printed is None else found.printed[k, n]
            table[f"{name}_gap"] = np.nan if found.gap is None else found.gap[n]
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
