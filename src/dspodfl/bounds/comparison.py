"""The bound beside a measured run: mean errors over seeds, the exact recursion, the printed form, the gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.bounds.appraisal import Appraisal
from dspodfl.config import FREE, Config
from dspodfl.errors import InputError
from dspodfl.results import Result
from dspodfl.theory.constants import Floats

SIGMAS = 4.0
"""Standard errors by which a measured mean may pass a bound before it counts as above."""
_FREE = ("algorithms", "seeds", "eval", *FREE)
_FREE_TRAIN = ("iterations", "precision", "dfedavg_period")
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
    names = [name for name in measured.algorithms if name in config.algorithms]
    if not names:
        allowed = f"a run of {', '.join(config.algorithms)}; it has {', '.join(measured.algorithms)}"
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
    return {key: value for key, value in flat.items() if key.removeprefix("train.") not in _FREE_TRAIN}


def compare(appraisal: Appraisal, result: Result, folder: str) -> Comparison:
    """Lay the bounds of strongly convex losses over what a run measured."""
    if appraisal.knowledge.mu is None:
        allowed = "given with linear regression or regularized logistic regression, whose θ* and μ are known"
        raise InputError("--compare", folder, allowed)
    tables, verdicts = [], []
    for case in appraisal.cases:
        found = case.statement("strongly convex")
        rows = result.metrics[(result.metrics["algorithm"] == case.algorithm) & ~result.metrics["diverged"]]
        grouped = rows.groupby("iteration")[list(ENTRIES)]
        mean, error = grouped.mean(), grouped.sem(ddof=1).fillna(0.0)
        table = pd.DataFrame({"algorithm": case.algorithm, "iteration": mean.index, "seeds": grouped.size().to_numpy()})
        k = mean.index.to_numpy()
        for n, name in enumerate(ENTRIES):
            table[name], table[f"{name}_error"] = mean[name].to_numpy(), error[name].to_numpy()
            lines: dict[str, Floats | None] = {"bound": None, "printed": None, "gap": None}
            if found is not None:
                here = np.minimum(k, appraisal.config.train.iterations)
                lines["bound"] = None if found.course is None else found.course[here, n]
                lines["printed"] = None if found.printed is None else found.printed[here, n]
                lines["gap"] = None if found.gap is None else np.full(len(k), found.gap[n])
            for line, values in lines.items():
                table[f"{name}_{line}"] = np.nan if values is None else values
            verdicts.append({"algorithm": case.algorithm, "error": name, **_verdict(table, name)})
        tables.append(table)
    return Comparison(pd.concat(tables, ignore_index=True), pd.DataFrame(verdicts), _inside(appraisal, result.metrics))


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
