"""The bound beside a measured run: mean errors over seeds, the exact recursion, the printed form, the gap."""

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
from dspodfl.theory.assess.assessment import Appraisal
from dspodfl.theory.formulas.constants import Floats

SIGMAS = 4.0
"""Standard errors by which a measured mean may pass a bound before it counts as above."""
_FREE = ("algorithms", "seeds", "eval", *FREE)
_FREE_TRAIN = ("iterations", "until", "until_delay", "precision", "dfedavg_period")
ENTRIES = ("optimality_error", "consensus_error")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Rows of an algorithm and an evaluated iteration; ``verdicts`` has a row for each algorithm and error."""

    table: pd.DataFrame
    verdicts: pd.DataFrame
    inside: bool | None
    """Whether every model was seen in the ball that σ is a maximum over; None where σ needs none."""


def matching(config: Config, result: Result, folder: str) -> Config:
    """The configuration of a measured run, for which all that decides its errors must be that of ``config``."""
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


def compare(appraisal: Appraisal, result: Result, folder: str) -> Comparison:
    """Lay the bounds of strongly convex losses over what a run measured."""
    if appraisal.knowledge.mu is None:
        allowed = "given with linear regression or regularized logistic regression, whose θ* and μ are known"
        raise InputError("--compare", folder, allowed)
    budget = from_config(result.config)
    tables, verdicts = [], []
    for case in appraisal.cases:
        found = case.statement("strongly convex")
        rows = result.metrics[result.metrics["algorithm"] == case.algorithm]
        table = _measured(case.algorithm, [whole_run(run, budget) for _, run in rows.groupby("seed")])
        k = table["iteration"].to_numpy()
        for n, name in enumerate(ENTRIES):
            lines: dict[str, Floats | None] = {"bound": None, "printed": None, "gap": None}
            if found is not None:
                lines["bound"] = None if found.course is None else _at(found.course, k, n)
                lines["printed"] = None if found.printed is None else _at(found.printed, k, n)
                lines["gap"] = None if found.gap is None else np.full(len(k), found.gap[n])
            for line, values in lines.items():
                table[f"{name}_{line}"] = np.nan if values is None else values
            verdicts.append({"algorithm": case.algorithm, "error": name, **_verdict(table, name)})
        tables.append(table)
    return Comparison(pd.concat(tables, ignore_index=True), pd.DataFrame(verdicts), _inside(appraisal, result.metrics))


def _at(course: Floats, k: np.ndarray, entry: int) -> Floats:
    """An entry of a trajectory at some iterations; past its end, its last value. Shape: (iterations,)."""
    return course[np.minimum(k, len(course) - 1), entry]


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


def _inside(appraisal: Appraisal, metrics: pd.DataFrame) -> bool | None:
    """‖θ_i − θ*‖ ≤ ‖θ̄ − θ*‖ + ‖Θ − 1θ̄‖ against the ball of each seed."""
    reach = {seed: found.reach for seed, found in appraisal.known.items() if found.reach is not None}
    if not reach:
        return None
    metrics = metrics[metrics["algorithm"].isin([case.algorithm for case in appraisal.cases if case.statements])]
    far = np.sqrt(metrics["optimality_error"]) + np.sqrt(metrics["consensus_error"])
    return bool((far <= metrics["seed"].map(reach) * (1 + 1e-6)).all())


def _verdict(table: pd.DataFrame, name: str) -> dict[str, Any]:
    """How much of the bound was used, and whether it was passed beyond Monte-Carlo error."""
    known = table[table[f"{name}_bound"].notna() & table[name].notna() & (table["iteration"] > 0)]
    if not len(known):
        measured = bool(table[name].notna().any())
        return {"word": "no bound" if measured else "not measured", "largest": np.nan, "last": np.nan, "points": 0}
    ratio = known[name] / known[f"{name}_bound"]
    above = known[name] - SIGMAS * known[f"{name}_error"] > known[f"{name}_bound"] * (1 + 1e-9)
    word = "above the bound" if above.any() else "never above"
    return {"word": word, "largest": float(ratio.max()), "last": float(ratio.iloc[-1]), "points": len(known)}


def predicted(appraisal: Appraisal, points: int = 400) -> pd.DataFrame:
    """The course that the strongly convex bounds predict, at some iterations, for an appraisal without a run."""
    tables = []
    for case in appraisal.cases:
        found = case.statement("strongly convex")
        if found is None or found.course is None:
            continue
        k = np.unique(np.linspace(0, len(found.course) - 1, points).round().astype(int))
        table = pd.DataFrame({"algorithm": case.algorithm, "iteration": k})
        for n, name in enumerate(ENTRIES):
            table[f"{name}_bound"] = found.course[k, n]
            table[f"{name}_printed"] = np.nan if found.printed is None else found.printed[k, n]
            table[f"{name}_gap"] = np.nan if found.gap is None else found.gap[n]
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
