"""Whether a measurement bears out a claim: computed from the readings, and said in a sentence with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from dspodfl.experiment import Check, Experiment
from dspodfl.plots import NAMES, curve

Word = Literal["holds", "holds in part", "does not hold", "cannot be told"]

MOST, SOME = 0.8, 0.4
"""A claim about many points holds where it does at this share of them, and in part at that."""
_FEW = 3
"""So many numbers that are not met are all named."""
CLOSE = 0.025
"""How far an accuracy may be from a printed one, or one standard deviation."""


@dataclass(frozen=True)
class Verdict:
    """A word, and the sentence that backs it."""

    word: Word
    sentence: str
    check: str


@dataclass(frozen=True)
class Evidence:
    """What a check looks at: all rows, and how they were read."""

    metrics: pd.DataFrame
    reading: pd.DataFrame
    axes: Sequence[str]
    experiment: Experiment
    others: Mapping[str, Evidence] = field(default_factory=dict)
    """Of experiments that this one is compared with, by name."""


def judge(evidence: Evidence) -> list[Verdict]:
    """A verdict for each check of an experiment."""
    return [_CHECKS[check.kind](check, evidence) for check in evidence.experiment.check]


def overall(verdicts: Sequence[Verdict]) -> Word:
    """One word for several: what all of them say, or in part."""
    words = {v.word for v in verdicts}
    if words <= {"cannot be told"}:
        return "cannot be told"
    if len(words - {"cannot be told"}) == 1 and "does not hold" in words:
        return "does not hold"
    return words.pop() if len(words) == 1 else "holds in part"


def _name(algorithm: str | None) -> str:
    return NAMES.get(str(algorithm), str(algorithm))


def _by_share(share: float, most: float = MOST) -> Word:
    return "holds" if share >= most else "holds in part" if share >= SOME else "does not hold"


def _unknown(check: Check, why: str) -> Verdict:
    return Verdict("cannot be told", f"{why[0].upper()}{why[1:]}.", check.kind)


def _pivot(evidence: Evidence, column: str) -> pd.DataFrame:
    """Points by algorithms."""
    return evidence.reading.pivot_table(index=list(evidence.axes), columns="algorithm", values=column, sort=False)


def _accuracy(check: Check) -> str:
    return "normalized_mean" if check.axis == "normalized" else "accuracy_mean"


def _best(check: Check, evidence: Evidence) -> Verdict:
    table = _pivot(evidence, _accuracy(check))
    known = table[[a for a in check.among or table.columns if a in table]].dropna(how="all").fillna(-np.inf)
    if check.algorithm not in known or known.shape[1] < 2 or not len(known):
        return _unknown(check, f"{_name(check.algorithm)} and another algorithm must have been read")
    first = known.idxmax(axis=1) == check.algorithm
    where = f"at delay {evidence.experiment.read.at_delay:g}" if evidence.experiment.read.at_delay else "at the end"
    places = ", ".join(_point(point) for point, best in first.items() if not best)
    lost = f" (not at {' and '.join(evidence.axes)} = {places})" if places and int(first.sum()) else ""
    sentence = f"{_name(check.algorithm)} is best {where} at {int(first.sum())} of {len(first)} points{lost}."
    return Verdict(_by_share(float(first.mean())), sentence, check.kind)


def _point(point: Any) -> str:
    return (
        "/".join(f"{v:g}" if isinstance(v, float) else str(v) for v in point)
        if isinstance(point, tuple)
        else (f"{point:g}" if isinstance(point, float) else str(point))
    )


def _ahead(check: Check, evidence: Evidence) -> Verdict:
    x = "delay_total_normalized" if check.axis == "normalized" else "delay_total"
    curves = _curves(evidence, x)
    chosen = [a for a in check.among or curves if a in curves]
    if check.algorithm not in chosen or len(chosen) < 2:
        return _unknown(check, f"{_name(check.algorithm)} and another algorithm must have been measured")
    start = max(curves[a][0][0] for a in chosen)
    end = min(curves[a][0][-1] for a in chosen)
    if not start < end:
        return _unknown(check, "the algorithms have no range of delay in common")
    at = np.geomspace(max(start, 1e-9), end, 200)
    values = {a: np.interp(at, *curves[a]) for a in chosen}
    others = np.max([values[a] for a in chosen if a != check.algorithm], axis=0)
    share = float((values[check.algorithm] >= others).mean())
    name = "normalized" if check.axis == "normalized" else "raw"
    sentence = (
        f"{_name(check.algorithm)} has the highest mean accuracy over {share:.0%} of the {name} delays "
        f"{start:,.0f} to {end:,.0f} (on a logarithmic scale) that all algorithms cover."
    )
    return Verdict(_by_share(share), sentence, check.kind)


def _curves(evidence: Evidence, x: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean accuracy along a delay: algorithm -> (delays, accuracies); without those that have none."""
    found = {}
    for algorithm, rows in evidence.metrics.groupby("algorithm", sort=False):
        grid, mean, _ = curve([run for _, run in rows.groupby([*evidence.axes, "seed"])], x, "accuracy", log=True)
        if len(grid):
            found[str(algorithm)] = (grid, mean)
    return found


def _rank(line: pd.Series) -> float:
    """Rank correlation with the order of the points; 0 for a line that does not move."""
    return float(stats.spearmanr(np.arange(len(line)), line.to_numpy()).statistic) if line.nunique() > 1 else 0.0


def _trend(check: Check, evidence: Evidence) -> Verdict:
    table = _pivot(evidence, _accuracy(check))
    chosen = [check.algorithm] if check.algorithm else list(table.columns)
    up = check.kind == "rises"
    found = {}
    for algorithm in chosen:
        line = table[algorithm].dropna() if algorithm in table else pd.Series(dtype=float)
        if len(line) >= 3:
            found[str(algorithm)] = _rank(line)
    if not found:
        return _unknown(check, "at least three points are needed to see a trend")
    right = {a: r for a, r in found.items() if (r > 0.5) == up and abs(r) > 0.5}
    ranks = ", ".join(f"{_name(a)} {r:+.2f}" for a, r in found.items())
    axis = " and ".join(evidence.axes)
    sentence = f"Accuracy {check.kind} with {axis} for {len(right)} of {len(found)} (rank correlation: {ranks})."
    return Verdict(_by_share(len(right) / len(found)), sentence, check.kind)


def _gap(check: Check, evidence: Evidence) -> Verdict:
    table = _pivot(evidence, _accuracy(check)).dropna()
    if check.algorithm not in table or len(table) < 3 or table.shape[1] < 2:
        return _unknown(check, "at least three points with another algorithm are needed")
    margin = table[check.algorithm] - table.drop(columns=check.algorithm).max(axis=1)
    rank = _rank(margin)
    up = check.direction != "falls"
    word: Word = "holds" if (rank > 0.5) == up and abs(rank) > 0.5 else "does not hold"
    sentence = (
        f"The margin of {_name(check.algorithm)} over the best other goes from {margin.iloc[0]:+.3f} to "
        f"{margin.iloc[-1]:+.3f} with {' and '.join(evidence.axes)} (rank correlation {rank:+.2f})."
    )
    return Verdict(word, sentence, check.kind)


def _lead(check: Check, evidence: Evidence) -> Verdict:
    """Whether an algorithm is further ahead than in another experiment: of the best of the others, and of them all."""
    other = evidence.others.get(check.beside)
    if other is None:
        return _unknown(check, f"{check.beside} must have been reproduced in the same folder, and in the same way")
    ours, theirs = (_leads(str(check.algorithm), found) for found in (evidence, other))
    if evidence.experiment.kind == "sweep":
        both = ours.index.intersection(theirs.index)
        ours, theirs = ours.loc[both], theirs.loc[both]
    if not len(ours) or not len(theirs):
        return _unknown(check, f"{_name(check.algorithm)} and another algorithm must have been read, here and there")
    here, there = ours.mean(), theirs.mean()
    larger = [here[of] > there[of] for of in ("best", "all")]
    best, all_, times = (f"{here[of]:.3f} and {there[of]:.3f}" for of in ("best", "all", "times"))
    sentence = (
        f"Here and in {other.experiment.paper}, {_name(check.algorithm)} is on average {best} ahead of the best other, "
        f"and {all_} ahead of the mean of the others; it has {times} times the accuracy of the best other."
    )
    word: Word = "holds" if all(larger) else "holds in part" if any(larger) else "does not hold"
    return Verdict(word, sentence, check.kind)


def _leads(algorithm: str, evidence: Evidence) -> pd.DataFrame:
    """By how much an algorithm is ahead, at each point of a sweep, or along the raw delays that all cover."""
    if evidence.experiment.kind == "sweep":
        table = _pivot(evidence, "accuracy_mean")
    else:
        lines = _curves(evidence, "delay_total")
        low, high = (end((x[at] for x, _ in lines.values()), default=1.0) for end, at in ((max, 0), (min, -1)))
        grid = np.geomspace(max(low, 1.0), high, 50) if low < high else np.empty(0)
        table = pd.DataFrame({name: np.interp(grid, *line) for name, line in lines.items()})
    if algorithm not in table or table.shape[1] < 2:
        return pd.DataFrame(columns=["best", "all", "times"])
    ours, others = table[algorithm], table.drop(columns=algorithm)
    best = others.max(axis=1)
    return pd.DataFrame({"best": ours - best, "all": ours - others.mean(axis=1), "times": ours / best})


def _steadier(check: Check, evidence: Evidence) -> Verdict:
    """Whether an algorithm varies less over the points than the others do."""
    table = _pivot(evidence, _accuracy(check)).dropna()
    spread = table.max() - table.min()
    others = spread.drop(str(check.algorithm), errors="ignore")
    if check.algorithm not in spread or len(table) < 2 or not len(others):
        return _unknown(
            check, f"{_name(check.algorithm)} and another algorithm must have been read at two points at least"
        )
    own = float(spread[str(check.algorithm)])
    less = others > own
    told = ", ".join(f"{_name(str(name))} by {value:.3f}" for name, value in others.sort_values().items())
    sentence = (
        f"{_name(check.algorithm)} varies by {own:.3f} over {' and '.join(evidence.axes)}, less than {int(less.sum())} "
        f"of {len(less)} others: {told}."
    )
    return Verdict(_by_share(float(less.mean()), most=1), sentence, check.kind)


def _tuned(check: Check, evidence: Evidence) -> Verdict:
    """An algorithm at some points against every other at its own best point."""
    table = _pivot(evidence, _accuracy(check))
    mine = [value for value in check.at if value in table.index]
    others = table.drop(columns=str(check.algorithm), errors="ignore").max().dropna()
    if check.algorithm not in table or not mine or not len(others):
        return _unknown(check, f"{_name(check.algorithm)} must have been read at {check.at}, beside another algorithm")
    rival = str(others.idxmax())
    won = [value for value in mine if table[check.algorithm][value] >= others.max()]
    told = ", ".join(f"{table[check.algorithm][value]:.3f} at {value:g}" for value in mine)
    best = table.index[int(table[rival].to_numpy().argmax())]
    sentence = (
        f"{_name(check.algorithm)} has {told}; the best of the others, {_name(rival)}, has {others.max():.3f} "
        f"at its own best, {best:g}."
    )
    word: Word = "holds" if len(won) == len(mine) else "holds in part" if won else "does not hold"
    return Verdict(word, sentence, check.kind)


def _flat(check: Check, evidence: Evidence) -> Verdict:
    table = _pivot(evidence, _accuracy(check))
    line = table[check.algorithm].dropna() if check.algorithm in table else pd.Series(dtype=float)
    if len(line) < 2:
        return _unknown(check, f"{_name(check.algorithm)} must have been read at two points at least")
    spread = float(line.max() - line.min())
    word: Word = (
        "holds" if spread <= check.within else "holds in part" if spread <= 2 * check.within else "does not hold"
    )
    sentence = f"{_name(check.algorithm)} varies by {spread:.3f} over {' and '.join(evidence.axes)}."
    return Verdict(word, sentence, check.kind)


def _within(check: Check, evidence: Evidence) -> Verdict:
    found = evidence.reading
    known = found.dropna(subset=["accuracy_mean", "printed_accuracy"]) if "printed_accuracy" in found else found[:0]
    if not len(known):
        return _unknown(check, "no printed accuracy was measured")
    away = (known["accuracy_mean"] - known["printed_accuracy"]).abs()
    allowed = np.maximum(CLOSE, known["accuracy_std"])
    met = away <= allowed
    worst = known.loc[(away - allowed).sort_values(ascending=False, kind="stable").index]
    lacking = int((~met).sum())
    few = 0 < lacking <= _FEW
    numbers = [
        f"{_name(row['algorithm'])} at {row['iteration']:,}: {row['accuracy_mean']:.3f} ± {row['accuracy_std']:.3f} "
        f"against {row['printed_accuracy']:.2f}"
        for _, row in worst[: lacking if few else 1].iterrows()
    ]
    sentence = (
        f"{int(met.sum())} of {len(known)} printed accuracies are met within {CLOSE} or one standard deviation; "
        f"{'not' if few else 'the furthest is'} {', '.join(numbers)}."
    )
    return Verdict(_by_share(float(met.mean()), most=1), sentence, check.kind)


def beside(reading: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """A reading with the paper's printed numbers in further columns, ``printed_…``."""
    printed = pd.DataFrame([p.model_dump(exclude_none=True) for p in experiment.printed])
    if printed.empty:
        return reading
    keys = [key for key in ("algorithm", "iteration", "target") if key in printed and key in reading]
    return reading.merge(printed.rename(columns=lambda c: c if c in keys else f"printed_{c}"), how="left", on=keys)


def _sooner(check: Check, evidence: Evidence) -> Verdict:
    """Medians of delays, pair by pair. One that lies beyond the end of the runs is known to be at least that late."""
    found = {(row["algorithm"], row["target"]): row for row in _symmetric(evidence.reading).to_dict("records")}
    algorithms, targets = (list(dict.fromkeys(key[at] for key in found)) for at in (0, 1))
    if check.algorithm not in algorithms:
        return _unknown(check, f"{_name(check.algorithm)} was not measured")
    won, decided, undecided = 0, 0, []
    for other in [a for a in algorithms if a != check.algorithm and (not check.than or a in check.than)]:
        for target in targets:
            ours, theirs = found[check.algorithm, target], found[other, target]
            if (_known(ours) and _known(theirs)) or _before(ours, theirs) or _before(theirs, ours):
                decided += 1
                won += _before(ours, theirs)
            elif _known(ours) or _known(theirs):
                undecided.append(f"{_name(other)} at {target:g}")
    if not decided:
        return _unknown(check, "no target was reached by half of the runs of two algorithms")
    sentence = (
        f"The median delay of {_name(check.algorithm)} is the smaller one in {won} of {decided} comparisons with the "
        "others at the targets"
    )
    rest = f"; runs end too early for one with {', '.join(undecided)}." if undecided else "."
    word = _by_share(won / decided)
    return Verdict("holds in part" if undecided and word == "holds" else word, sentence + rest, check.kind)


def _known(row: Mapping[Hashable, Any]) -> bool:
    return row["total_median"] is not None and bool(np.isfinite(row["total_median"]))


def _before(one: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> bool:
    """Whether a median delay is surely the smaller one."""
    return _known(one) and one["total_median"] < other["total_median" if _known(other) else "total_least"]


def _symmetric(reading: pd.DataFrame) -> pd.DataFrame:
    column = next((c for c in reading if str(c).endswith("link_draw")), None)
    return reading if column is None else reading[reading[column] == "symmetric"]


def _ratio(check: Check, evidence: Evidence) -> Verdict:
    column = next((c for c in evidence.axes if c.endswith("link_draw")), None)
    printed = [p for p in evidence.experiment.printed if p.algorithm == check.algorithm and p.processing]
    if column is None or not printed:
        return _unknown(check, "needs both link draws and printed delays")
    paper = float(np.median([(p.transmission or 0.0) / float(p.processing or 1.0) for p in printed]))
    ours = {}
    for draw, rows in evidence.reading[evidence.reading["algorithm"] == check.algorithm].groupby(column, sort=False):
        known = rows.dropna(subset=["processing_median", "transmission_median"])
        if len(known):
            ours[str(draw)] = float((known["transmission_median"] / known["processing_median"]).median())
    if not ours:
        return _unknown(check, f"{_name(check.algorithm)} reached no target")
    nearest = min(ours, key=lambda draw: abs(ours[draw] - paper))
    told = ", ".join(f"{value:.2f} with {draw} draws" for draw, value in ours.items())
    sentence = (
        f"Transmission over processing delay of {_name(check.algorithm)}: {told}; the paper prints {paper:.2f}, "
        f"which is nearest to {nearest} draws."
    )
    return Verdict("holds" if nearest == "symmetric" else "does not hold", sentence, check.kind)


_CHECKS: dict[str, Callable[[Check, Evidence], Verdict]] = {
    "best": _best,
    "ahead": _ahead,
    "rises": _trend,
    "falls": _trend,
    "gap": _gap,
    "lead": _lead,
    "flat": _flat,
    "steadier": _steadier,
    "tuned": _tuned,
    "within": _within,
    "sooner": _sooner,
    "ratio": _ratio,
}
CHECKS = tuple(_CHECKS)
"""The kinds of checks."""
