"""The standings of a study's algorithms at one cost: values, costs of targets, and who is ahead.

Every run is read at its first row whose cost is at least the common one. A run that ended before it is counted and
named, and has no part in the values. Who is ahead is decided by paired differences over seeds (`statistics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis import costs, formatting
from dspodfl.analysis import statistics as paired
from dspodfl.analysis.costs import Cost
from dspodfl.analysis.measures import ACCURACY, Measure, measure_of
from dspodfl.analysis.statistics import Difference
from dspodfl.analysis.summary import ended_by, whole_run
from dspodfl.analysis.targets import TargetCost, choose_targets, configured_targets, target_cost
from dspodfl.network import COST_COLUMNS, Kind

_LATE = 1.1
"""A row that costs this multiple of another's is read too late to be compared with it."""


@dataclass(frozen=True)
class ShortRun:
    """A run that ended before the cost at which algorithms are compared."""

    seed: int
    cost: float
    ended_by: str | None
    """``budget`` or ``cap``; None where the run is not finished."""


@dataclass(frozen=True)
class Standing:
    """The runs of one algorithm at the common cost."""

    algorithm: str
    seeds: int
    values: dict[int, float]
    """Seed -> value, of the runs that reached the cost and did not diverge."""
    loss: dict[int, float]
    delay: float | None
    """Median raw total delay where the runs were read."""
    short: list[ShortRun]
    diverged: dict[int, tuple[int, float]]
    """Seed -> iteration and cost at which the run was first seen to have diverged."""
    read_at: float | None = None
    """Median cost of the rows that were read."""
    late: bool = False
    """Whether the rows that were read are at a larger cost than those of another algorithm."""
    targets: list[TargetCost] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the algorithm in tables and figures."""
        from dspodfl.analysis.figures import NAMES

        return NAMES.get(self.algorithm, self.algorithm)

    @property
    def mean(self) -> float | None:
        """The mean over the seeds that reached the cost."""
        return _mean(self.values)

    @property
    def mean_loss(self) -> float | None:
        """The mean of the loss over the same seeds."""
        return _mean(self.loss)

    @property
    def std(self) -> float | None:
        """The standard deviation over the seeds that reached the cost, ddof 1."""
        return paired.deviation(np.array(list(self.values.values())))


@dataclass(frozen=True)
class Lead:
    """The best algorithm against another, over the seeds in which both reached the cost."""

    first: Standing
    second: Standing
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """The algorithms of a study at one cost."""

    at: Cost
    budget: Cost | None
    measure: Measure
    standings: list[Standing]
    leads: list[Lead]
    """The best algorithm against each other one, the runner-up first; empty where nothing can be compared."""
    cost: Cost
    """The kind of cost that targets are counted in; its value is not used."""
    targets: list[float]
    missed: list[float]
    """Targets of the configuration that no run reaches."""
    complete: bool
    explicit: bool
    """Whether the cost was given, and is not the end of the study."""
    iterations: int | None = None
    """How many iterations every run goes, where nothing else ends it."""
    evaluated: Mapping[str, Any] | None = None
    """How many test samples and clients were evaluated, as ``summary.json`` says; None where that is not known."""

    @property
    def by_iterations(self) -> bool:
        """Whether every run goes a number of iterations: its budget, or (in 0.1) for want of one."""
        return _by_iterations(self.budget)

    @property
    def seeds(self) -> int:
        """The largest number of seeds an algorithm has."""
        return max((standing.seeds for standing in self.standings), default=0)


def compare(
    metrics: pd.DataFrame,
    config: Mapping[str, Any] | None = None,
    study: Mapping[str, Any] | None = None,
    at: Cost | None = None,
) -> Comparison:
    """Compare the algorithms of a study.

    Args:
        metrics: Rows by algorithm, seed and evaluated iteration, as in ``metrics.parquet``.
        config: The resolved configuration, as plain tables: its budget and its targets.
        study: What ``summary.json`` says of the study: its budget, and whether it is complete.
        at: The cost to read at; by default the budget, or the end of the iterations where there is none.

    Returns:
        The algorithms at that cost, with the costs of targets, and which algorithm is ahead.
    """
    config, study = config or {}, study or {}
    budget = costs.from_record(study["budget"]) if study.get("budget") else costs.from_config(config)
    complete = bool(study.get("complete", True))
    algorithms = [str(name) for name in dict.fromkeys(metrics["algorithm"])]
    runs = {name: _runs(metrics[metrics["algorithm"] == name], budget) for name in algorithms}
    point = at or _common(runs, budget, complete, study)
    measure = measure_of(metrics)
    kind = "delay" if point.kind == "iterations" else point.kind
    read = {name: {seed: _until(run, point) for seed, run in some.items()} for name, some in runs.items()}
    standings = [_standing(name, read[name], point, measure, budget, complete) for name in algorithms]
    standings = _late(standings, explicit=at is not None)
    given = configured_targets(config)
    targets = given if given is not None and measure is ACCURACY else choose_targets(read, measure)
    cost = Cost(kind, point.value)
    found = {target: [target_cost(read[name], target, measure, cost) for name in algorithms] for target in targets}
    shown = [target for target in targets if any(each.reached for each in found[target])]
    standings = [
        replace(standing, targets=[found[target][n] for target in shown]) for n, standing in enumerate(standings)
    ]
    missed = [target for target in targets if target not in shown]
    leads = _leads(standings, measure)
    total = study.get("iterations") if _by_iterations(budget) else None
    whole = int(total) if formatting.is_number(total) else None
    evaluated = study.get("evaluated")
    return Comparison(
        *(point, budget, measure, standings, leads, cost, shown, missed, complete, at is not None, whole),
        evaluated=evaluated if isinstance(evaluated, Mapping) else None,
    )


# --- reading runs ---------------------------------------------------------------------------------------------


def _by_iterations(budget: Cost | None) -> bool:
    return budget is None or budget.kind == "iterations"


def _runs(rows: pd.DataFrame, budget: Cost | None) -> dict[int, pd.DataFrame]:
    return {int(str(seed)): whole_run(run, budget) for seed, run in rows.groupby("seed")}


def _common(
    runs: Mapping[str, Mapping[int, pd.DataFrame]], budget: Cost | None, complete: bool, study: Mapping[str, Any]
) -> Cost:
    """The cost at which a study is read: its budget; while it is not finished, what every run has spent."""
    kind: Kind = "iterations" if budget is None else budget.kind
    column = COST_COLUMNS[kind]
    ends = [float(run[column].iloc[-1]) for some in runs.values() for run in some.values()]
    if budget is not None:
        return budget if complete else Cost(kind, min([budget.value, *ends]))
    done = study.get("iterations_done")
    return Cost(kind, float(done) if formatting.is_number(done) else max(ends, default=0.0))


def _until(run: pd.DataFrame, point: Cost) -> pd.DataFrame:
    """The rows of a run up to the first whose cost is at least the point's."""
    there = (run[point.column] >= point.value).to_numpy()
    return run.iloc[: int(there.argmax()) + 1] if there.any() else run


def _standing(
    algorithm: str,
    runs: Mapping[int, pd.DataFrame],
    point: Cost,
    measure: Measure,
    budget: Cost | None,
    complete: bool,
) -> Standing:
    values: dict[int, float] = {}
    loss: dict[int, float] = {}
    short: list[ShortRun] = []
    diverged: dict[int, tuple[int, float]] = {}
    delays, spent = [], []
    exact = True
    for seed, run in runs.items():
        row = run.iloc[-1]
        value, cost = float(row[measure.column]), float(row[point.column])
        lost = run["diverged"].astype(bool).to_numpy() | _overflown(run, measure)
        if lost.any():
            first = run.iloc[int(lost.argmax())]
            diverged[seed] = int(first["iteration"]), float(first[point.column])
        elif cost < point.value:
            short.append(ShortRun(seed, cost, ended_by(row, budget) if complete else None))
        elif np.isfinite(value):
            values[seed] = value
            loss[seed] = float(row["loss"])
            delays.append(float(row["delay_total"]))
            spent.append(cost)
            exact &= len(run) > 1 and int(row["iteration"]) - int(run["iteration"].iloc[-2]) == 1
    delay, read_at = (float(np.median(some)) if some else None for some in (delays, spent))
    standing = Standing(algorithm, len(runs), values, loss, delay, short, diverged, read_at)
    return replace(standing, late=not exact)


def _late(standings: Sequence[Standing], *, explicit: bool) -> list[Standing]:
    """Mark algorithms whose rows are at a clearly larger cost than those of another.

    At its budget every run has a row. At any other cost it is read at the first row past it: with few rows that may be
    far past it, and says more of how often models were evaluated than of the algorithm.
    """
    costs_ = [s.read_at for s in standings if s.read_at is not None]
    first = min(costs_, default=0.0)
    return [
        replace(s, late=explicit and s.late and s.read_at is not None and s.read_at > _LATE * first) for s in standings
    ]


def _overflown(run: pd.DataFrame, measure: Measure) -> np.ndarray:
    """Rows whose value is infinite: a run may have diverged without its flag."""
    return np.isinf(run[measure.column].to_numpy(dtype=np.float64))


def _mean(values: Mapping[int, float]) -> float | None:
    return float(np.mean(list(values.values()))) if values else None


# --- who is ahead ---------------------------------------------------------------------------------------------


def _leads(standings: Sequence[Standing], measure: Measure) -> list[Lead]:
    """The best algorithm against every other that was read in at least half of its seeds, the runner-up first.

    The best is the one that is better than most others over the seeds that it shares with each.
    """
    ranked = [s for s in standings if s.values and 2 * len(s.values) >= s.seeds and not s.late]

    def against(first: Standing) -> list[Lead]:
        return [
            Lead(first, other, paired.compare(first.values, other.values, lower_is_better=measure.lower_is_better))
            for other in ranked
            if other is not first
        ]

    def record(first: Standing) -> tuple[int, float]:
        won = sum(lead.difference.mean > 0 for lead in against(first))
        mean = float(np.mean(list(first.values.values())))
        return won, -mean if measure.lower_is_better else mean

    if len(ranked) < 2:
        return []
    pairs = [lead for lead in against(max(ranked, key=record)) if lead.difference.pairs]
    return sorted(pairs, key=lambda lead: lead.difference.mean)
