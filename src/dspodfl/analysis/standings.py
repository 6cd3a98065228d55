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
from dspodfl.analysis.statistics import Difference, quantiles
from dspodfl.analysis.summary import ended_by, whole_run
from dspodfl.network import COST_COLUMNS, Kind

DEFAULT_TARGETS = (0.4, 0.6, 0.75)
"""The default of ``eval.targets``. Where it was left so, the table chooses targets that tell algorithms apart."""
_MOST_TARGETS = 3
_LATE = 1.1
"""A row that costs this multiple of another's is read too late to be compared with it."""


@dataclass(frozen=True)
class Measure:
    """The column that algorithms are compared by."""

    column: str
    label: str
    lower_is_better: bool

    def text(self, value: object) -> str:
        """Format a value."""
        return formatting.measure(value) if self.lower_is_better else formatting.accuracy(value)

    def spread(self, mean: object, spread: object) -> str:
        """Format a mean and its spread, or a difference and its interval."""
        if self.lower_is_better:
            return formatting.spread(mean, spread)
        plus = f" ± {formatting.accuracy(spread)}" if formatting.is_number(spread) else ""
        return formatting.accuracy(mean) + plus

    def met(self, values: np.ndarray, target: float) -> np.ndarray:
        """Return where values are at least as good as a target."""
        return values <= target if self.lower_is_better else values >= target


ACCURACY = Measure("accuracy", "accuracy", lower_is_better=False)
LOSS = Measure("loss", "loss", lower_is_better=True)
ERROR = Measure("optimality_error", "‖θ̄ − θ*‖²", lower_is_better=True)


@dataclass(frozen=True)
class Short:
    """A run that ended before the cost at which algorithms are compared."""

    seed: int
    cost: float
    ended_by: str | None
    """``budget`` or ``cap``; None where the run is not finished."""


@dataclass(frozen=True)
class TargetCost:
    """What it cost the runs of an algorithm to reach a target; a run that never did is infinitely late."""

    reached: int
    median: float | None
    least: float
    """The median with the end of each run that never got there in its place: the true one is at least that."""


@dataclass(frozen=True)
class Standing:
    """The runs of one algorithm at the common cost."""

    algorithm: str
    seeds: int
    values: dict[int, float]
    """Seed -> value, of the runs that got there and did not diverge."""
    loss: dict[int, float]
    delay: float | None
    """Median raw total delay where the runs were read."""
    short: list[Short]
    diverged: dict[int, tuple[int, float]]
    """Seed -> iteration and cost at which the run was first seen to have diverged."""
    read_at: float | None = None
    """Median cost of the rows that were read."""
    late: bool = False
    """Whether the rows that were read are at a larger cost than those of another algorithm."""
    targets: list[TargetCost] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The algorithm's name for people."""
        from dspodfl.analysis.figures import NAMES

        return NAMES.get(self.algorithm, self.algorithm)

    @property
    def mean(self) -> float | None:
        """The mean over the seeds that got there."""
        return _mean(self.values)

    @property
    def mean_loss(self) -> float | None:
        """The mean of the loss over the same seeds."""
        return _mean(self.loss)

    @property
    def std(self) -> float | None:
        """The standard deviation over the seeds that got there, ddof 1."""
        return paired.deviation(np.array(list(self.values.values())))


@dataclass(frozen=True)
class Lead:
    """The best algorithm against another, over the seeds that both got there in."""

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
    asked: bool
    """Whether the cost was asked for, and is not the study's own end."""
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
    """
    config, study = config or {}, study or {}
    budget = costs.from_record(study["budget"]) if study.get("budget") else costs.from_config(config)
    complete = bool(study.get("complete", True))
    algorithms = [str(name) for name in dict.fromkeys(metrics["algorithm"])]
    runs = {name: _runs(metrics[metrics["algorithm"] == name], budget) for name in algorithms}
    point = at or _common(runs, budget, complete, study)
    measure = _measure(metrics)
    kind = "delay" if point.kind == "iterations" else point.kind
    cut = {name: {seed: _until(run, point) for seed, run in some.items()} for name, some in runs.items()}
    standings = [_standing(name, cut[name], point, measure, budget, complete) for name in algorithms]
    standings = _late(standings, asked=at is not None)
    given = _given(config)
    targets = given if given is not None and measure is ACCURACY else choose_targets(cut, measure)
    cost = Cost(kind, point.value)
    found = {target: [_to_target(cut[name], target, measure, cost) for name in algorithms] for target in targets}
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


def _measure(metrics: pd.DataFrame) -> Measure:
    """Accuracy; for regression the distance to the optimum where it is known, else the loss."""
    for measure in (ACCURACY, ERROR):
        if measure.column in metrics and metrics[measure.column].notna().any():
            return measure
    return LOSS if metrics["loss"].notna().any() else ACCURACY


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
    short: list[Short] = []
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
            short.append(Short(seed, cost, ended_by(row, budget) if complete else None))
        elif np.isfinite(value):
            values[seed] = value
            loss[seed] = float(row["loss"])
            delays.append(float(row["delay_total"]))
            spent.append(cost)
            exact &= len(run) > 1 and int(row["iteration"]) - int(run["iteration"].iloc[-2]) == 1
    delay, read_at = (float(np.median(some)) if some else None for some in (delays, spent))
    standing = Standing(algorithm, len(runs), values, loss, delay, short, diverged, read_at)
    return replace(standing, late=not exact)


def _late(standings: Sequence[Standing], *, asked: bool) -> list[Standing]:
    """Mark algorithms whose rows are at a clearly larger cost than those of another.

    At its budget every run has a row. At any other cost it is read at the first row past it: with few rows that may be
    far past it, and says more of how often models were evaluated than of the algorithm.
    """
    costs_ = [s.read_at for s in standings if s.read_at is not None]
    first = min(costs_, default=0.0)
    return [
        replace(s, late=asked and s.late and s.read_at is not None and s.read_at > _LATE * first) for s in standings
    ]


def _overflown(run: pd.DataFrame, measure: Measure) -> np.ndarray:
    """Rows whose value is infinite: a run that no flag says has diverged may still have."""
    return np.isinf(run[measure.column].to_numpy(dtype=np.float64))


def _mean(values: Mapping[int, float]) -> float | None:
    return float(np.mean(list(values.values()))) if values else None


# --- targets --------------------------------------------------------------------------------------------------


def _given(config: Mapping[str, Any]) -> list[float] | None:
    """The targets of a configuration; None where they were left at the default."""
    evaluation = config.get("eval")
    found = evaluation.get("targets") if isinstance(evaluation, Mapping) else None
    if not isinstance(found, Sequence) or isinstance(found, str) or tuple(found) == DEFAULT_TARGETS:
        return None
    return [float(target) for target in found]


def choose_targets(runs: Mapping[str, Mapping[int, pd.DataFrame]], measure: Measure) -> list[float]:
    """Choose at most three round targets that some algorithm reaches in most seeds, the easiest first.

    They are the hardest such target, the hardest that every algorithm reaches, and one between the two. A target that
    the initial model meets tells nothing, and is left out.

    Args:
        runs: Algorithm -> seed -> the rows of a run.
        measure: What is compared.
    """
    best = {name: sorted(_bests(some, measure)) for name, some in runs.items() if some}
    starts = [float(run[measure.column].iloc[0]) for some in runs.values() for run in some.values() if len(run)]
    starts = [value for value in starts if np.isfinite(value)]
    if not best or not starts:
        return []
    # the value that more than half of the seeds reach
    typical = {name: values[(len(values) - 1) // 2] for name, values in best.items()}
    if measure.lower_is_better:
        typical = {name: values[len(values) // 2] for name, values in best.items()}
        top, low, start = min(typical.values()), max(typical.values()), min(starts)
    else:
        top, low, start = max(typical.values()), min(typical.values()), max(starts)
    ladder = [target for target in _ladder(start, top, measure) if measure.met(np.array([top]), target)[0]]
    if not ladder:
        return []
    everyone = [n for n, target in enumerate(ladder) if measure.met(np.array([low]), target)[0]]
    first, last = everyone[-1] if everyone else 0, len(ladder) - 1
    if first == last and last > 0:  # all reach the hardest: an easier one shows who was quicker on the way
        first = last // 2
    return [ladder[n] for n in sorted({first, (first + last + 1) // 2, last})][:_MOST_TARGETS]


def _bests(runs: Mapping[int, pd.DataFrame], measure: Measure) -> list[float]:
    """The best value of each run; the worst possible where it has none."""
    worst = np.inf if measure.lower_is_better else -np.inf
    out = []
    for run in runs.values():
        known = run[measure.column].to_numpy(dtype=np.float64)
        known = known[np.isfinite(known)]
        best = (known.min() if measure.lower_is_better else known.max()) if len(known) else worst
        out.append(float(best))
    return out


def _ladder(start: float, top: float, measure: Measure) -> list[float]:
    """Round targets beyond the start, the easiest first."""
    if measure.lower_is_better:
        if not (0 < start < np.inf) or not top < start:
            return []
        low = int(np.floor(np.log10(max(top, 1e-300)))) - 1
        low = max(low, int(np.floor(np.log10(start))) - 12)
        rungs = [digit * 10.0**power for power in range(low, int(np.ceil(np.log10(start))) + 1) for digit in (1, 2, 5)]
        rungs = [float(f"{rung:.1g}") for rung in rungs if rung < start]
        return sorted((rung for rung in rungs if rung >= top), reverse=True)
    coarse = [n / 20 for n in range(1, 20)]
    fine = [n / 100 for n in range(1, 100)]
    rungs = [*coarse, 0.97, 0.98, 0.99]
    fitting = [rung for rung in rungs if start < rung <= top]
    return fitting if len(fitting) > 1 else [rung for rung in fine if start < rung <= top]


def _to_target(runs: Mapping[int, pd.DataFrame], target: float, measure: Measure, cost: Cost) -> TargetCost:
    firsts, passed = [], []
    for run in runs.values():
        there = measure.met(run[measure.column].to_numpy(dtype=np.float64), target)
        spent = run[cost.column].to_numpy(dtype=np.float64)
        firsts.append(float(spent[there.argmax()]) if there.any() else np.nan)
        passed.append(firsts[-1] if there.any() else float(spent[-1]))
    reached = sum(not np.isnan(first) for first in firsts)
    return TargetCost(reached, quantiles(firsts)["median"], float(np.median(passed)))


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
