"""Targets: which ones a table shows, and what it costs the runs of an algorithm to reach them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.analysis.costs import Cost
from dspodfl.analysis.measures import Measure
from dspodfl.analysis.statistics import quantiles

DEFAULT_TARGETS = (0.4, 0.6, 0.75)
"""The default of ``eval.targets``. Where it was left so, the table chooses targets that tell algorithms apart."""
_MOST_TARGETS = 3


@dataclass(frozen=True)
class TargetCost:
    """What it cost the runs of an algorithm to reach a target; a run that never did is infinitely late."""

    reached: int
    median: float | None
    least: float
    """A lower bound of the median: each run that never reached the target counts with the cost of its end."""


def configured_targets(config: Mapping[str, Any]) -> list[float] | None:
    """Return the targets of a configuration; None where they were left at the default."""
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


def target_cost(runs: Mapping[int, pd.DataFrame], target: float, measure: Measure, cost: Cost) -> TargetCost:
    """Return what it cost the runs of an algorithm, by seed, to reach a target."""
    firsts, passed = [], []
    for run in runs.values():
        there = measure.met(run[measure.column].to_numpy(dtype=np.float64), target)
        spent = run[cost.column].to_numpy(dtype=np.float64)
        firsts.append(float(spent[there.argmax()]) if there.any() else np.nan)
        passed.append(firsts[-1] if there.any() else float(spent[-1]))
    reached = sum(not np.isnan(first) for first in firsts)
    return TargetCost(reached, quantiles(firsts)["median"], float(np.median(passed)))
