"""Claims about the distance to the minimizer: which algorithms converge to it, and which stall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from dspodfl.analysis import formatting
from dspodfl.experiments.claims.base import ClaimCheck, Status, claim_kind, label, unknown
from dspodfl.experiments.definition import Check
from dspodfl.experiments.evidence import Evidence


@claim_kind("exact")
def exact(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether every run of some algorithms ends below a distance to the minimizer, and every run of others above it.

    The algorithms of ``among`` must end below ``within``, those of ``than`` above; a run that diverged is above.
    """
    ends = _ends(evidence.metrics)
    missing = [name for name in (*check.among, *check.than) if name not in ends]
    if missing or not check.among:
        reason = f"the distance of {', '.join(map(label, missing))} was not measured" if missing else "nothing is named"
        return unknown(check, reason)
    below = {name: [end < check.within for end in ends[name]] for name in (*check.among, *check.than)}
    converge = [name for name in check.among if all(below[name])]
    stall = [name for name in check.than if not any(below[name])]
    runs = len(ends[check.among[0]])
    sentence = (
        f"{len(converge)} of {len(check.among)} end below {check.within:g} in each of {formatting.seeds(runs)} "
        f"({_largest(check.among, ends)})"
    )
    if check.than:
        sentence += f"; {len(stall)} of {len(check.than)} others stall above it ({_least(check.than, ends)})"
    return ClaimCheck(_status(len(converge) + len(stall), len(below)), f"{sentence}.", check.kind)


def _ends(metrics: pd.DataFrame) -> dict[str, list[float]]:
    """Algorithm -> ‖θ̄ − θ*‖² where its runs end, seed by seed; infinite where one diverged, nothing where unknown."""
    found: dict[str, list[float]] = {}
    if "optimality_error" not in metrics or not metrics["optimality_error"].notna().any():
        return found
    for (algorithm, _), run in metrics.groupby(["algorithm", "seed"], sort=False):
        last = run.sort_values("iteration")["optimality_error"].astype(float).iloc[-1]
        lost = bool(run["diverged"].astype(bool).any()) or pd.isna(last)
        found.setdefault(str(algorithm), []).append(float("inf") if lost else float(last))
    return found


def _largest(names: Sequence[str], ends: Mapping[str, Sequence[float]]) -> str:
    return "largest: " + ", ".join(f"{label(name)} {max(ends[name]):.1e}" for name in names)


def _least(names: Sequence[str], ends: Mapping[str, Sequence[float]]) -> str:
    return "least: " + ", ".join(f"{label(name)} {min(ends[name]):.1e}" for name in names)


def _status(kept: int, total: int) -> Status:
    return "holds" if kept == total else "holds in part" if kept else "does not hold"
