"""Claims about delays: which algorithm reaches the targets sooner, and what the delay is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis import Reached, Side, formatting
from dspodfl.analysis import statistics as paired
from dspodfl.experiments.claims.base import (
    ClaimCheck,
    Status,
    amount,
    claim_kind,
    label,
    point_name,
    tally_of,
    unknown,
    wins,
)
from dspodfl.experiments.definition import Check
from dspodfl.experiments.evidence import Evidence


@claim_kind("sooner")
def sooner(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether an algorithm reaches the targets sooner than the others; a run that ended before is censored there."""
    ours, axes = str(check.algorithm), list(evidence.axes)
    metrics = _symmetric(evidence.metrics)
    if ours not in set(metrics["algorithm"]):
        return unknown(check, f"{label(ours)} was not measured")
    targets = [float(target) for target in dict.fromkeys(evidence.aggregates["target"])]
    points = [rows for _, rows in metrics.groupby(axes, sort=False)] if axes else [metrics]
    sides: dict[str, Side] = {}
    early: list[str] = []
    close: list[str] = []
    for rows in points:
        here = f", {point_name(tuple(rows.iloc[0][axes]))}" if len(points) > 1 else ""
        runs = {str(name): _runs(some) for name, some in rows.groupby("algorithm", sort=False)}
        others = [a for a in runs if a != ours and (not check.than or a in check.than)]
        for other, target in [(other, target) for other in others for target in targets if ours in runs]:
            mine, theirs = ({seed: _to_target(run, target) for seed, run in runs[a].items()} for a in (ours, other))
            if not any(found.reached for found in (*mine.values(), *theirs.values())):
                continue
            found, where = (
                paired.compare_costs(mine, theirs),
                f"{label(other)} at {formatting.setting(target)}{here}",
            )
            sides[where] = found.side
            if found.side == "undecided":
                (early if found.open else close).append(f"{where} ({found.wins} to {found.losses})")
    if not sides:
        return unknown(check, "no target was reached by a run")
    tally = tally_of(sides)
    parts = [
        f"{label(ours)} needs less delay in {tally.won} of {tally.total} comparisons with the others at the targets",
        f", more in {len(tally.lost)} ({', '.join(tally.lost)})" if tally.lost else "",
        f"; runs end too early for {', '.join(early)}" if early else "",
        f"; the seeds do not decide {', '.join(close)}" if close else "",
        " (in brackets: seeds with less delay to seeds with more)" if early or close else "",
    ]
    sentence = "".join(parts) + "."
    return ClaimCheck(tally.status(), sentence, check.kind)


def _runs(rows: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    return {seed: run.sort_values("iteration") for seed, run in rows.groupby("seed", sort=False)}


def _to_target(run: pd.DataFrame, target: float) -> Reached:
    there = (run["accuracy"] >= target).to_numpy()
    spent = run["delay_total"].to_numpy(float)
    return Reached(float(spent[there.argmax()]), True) if there.any() else Reached(float(spent[-1]), False)


def _symmetric(table: pd.DataFrame) -> pd.DataFrame:
    column = next((c for c in table if str(c).endswith("link_draw")), None)
    return table if column is None else table[table[column] == "symmetric"]


@claim_kind("ratio")
def ratio(check: Check, evidence: Evidence) -> ClaimCheck:
    """Which link draw gives the ratio of transmission to processing delay that the paper prints."""
    algorithm = str(check.algorithm)
    column = next((c for c in evidence.axes if c.endswith("link_draw")), None)
    printed = [p for p in evidence.experiment.printed if p.algorithm == algorithm and p.processing]
    if column is None or not printed:
        return unknown(check, "needs both link draws and printed delays")
    paper = float(np.median([(p.transmission or 0.0) / float(p.processing or 1.0) for p in printed]))
    targets = [float(target) for target in dict.fromkeys(evidence.aggregates["target"])]
    mine = evidence.metrics[evidence.metrics["algorithm"] == algorithm]
    ours: dict[str, dict[Any, float]] = {}
    for (draw, seed), run in mine.groupby([column, "seed"], sort=False):
        ratio = _transmission_ratio(run.sort_values("iteration"), targets)
        if np.isfinite(ratio):
            ours.setdefault(str(draw), {})[seed] = ratio
    if len(ours) < 2:
        return unknown(check, f"{label(algorithm)} reached no target with one of the two link draws")
    away = {draw: {seed: abs(ratio - paper) for seed, ratio in some.items()} for draw, some in ours.items()}
    nearest, other = sorted(away, key=lambda draw: float(np.mean(list(away[draw].values()))))[:2]
    gap = paired.compare(away[nearest], away[other], lower_is_better=True)
    ratios = ", ".join(f"{np.mean(list(some.values())):.2f} with {draw} draws" for draw, some in ours.items())
    sentence = (
        f"Transmission over processing delay of {label(algorithm)}: {ratios}; the paper prints {paper:.2f}, which is "
        f"nearest to {nearest} draws (nearer by {amount(gap)}, {wins(gap)})."
    )
    claimed = gap.side == "ahead"
    status: Status = ("holds" if nearest == "symmetric" else "does not hold") if claimed else "cannot be told"
    return ClaimCheck(status, sentence, check.kind)


def _transmission_ratio(run: pd.DataFrame, targets: Sequence[float]) -> float:
    """The median over the targets that a run reached."""
    ratios = []
    for target in targets:
        there = run[run["accuracy"] >= target]
        if len(there) and there["delay_processing"].iloc[0] > 0:
            ratios.append(float(there["delay_transmission"].iloc[0] / there["delay_processing"].iloc[0]))
    return float(np.median(ratios)) if ratios else float("nan")
