"""Whether a measurement bears out a claim: decided by paired differences over seeds, and said with its numbers.

Algorithms share the draws of a seed, so that they are compared seed by seed. A comparison is decided where the 95%
interval of the differences is on one side of zero (`analysis.statistics`); where it is not, it cannot be told, and
counts neither for a claim nor against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from dspodfl.analysis import Cost, Difference, Reached, Side, formatting
from dspodfl.analysis import statistics as paired
from dspodfl.analysis.figures import NAMES
from dspodfl.experiments.definition import Check, Experiment
from dspodfl.experiments.evidence import (
    Evidence,
    Frame,
    along_delays,
    at_points,
    best_other,
    margin_over_best,
    mean_over_points,
    other_algorithms,
    pair,
    read_at,
    side_at,
)

Word = Literal["holds", "holds in part", "does not hold", "cannot be told"]

MOST, SOME = 0.8, 0.4
"""A claim about many comparisons holds where it does in this share of those that are decided, and in part in that."""
ENOUGH = 0.5
"""The share of comparisons that must be decided for a claim about all of them to be."""
_FEW = 3
"""Numbers that are not met are all named up to this many."""
CLOSE = 0.025
"""How far an accuracy may be from a printed one, or one standard deviation."""


@dataclass(frozen=True)
class Verdict:
    """A word, and the sentence that backs it."""

    word: Word
    sentence: str
    check: str


def judge(evidence: Evidence) -> list[Verdict]:
    """Return a verdict for each check of an experiment."""
    return [_CHECKS[check.kind](check, evidence) for check in evidence.experiment.check]


def overall(verdicts: Sequence[Verdict]) -> Word:
    """Return one word for several: what all that are decided say, or in part. What cannot be told lowers nothing."""
    return _together([verdict.word for verdict in verdicts])


def _together(words: Sequence[Word]) -> Word:
    decided = {word for word in words if word != "cannot be told"}
    if not decided:
        return "cannot be told"
    return decided.pop() if len(decided) == 1 else "holds in part"


def beside(reading: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """Return a reading with the paper's printed numbers in further columns, ``printed_…``."""
    printed = pd.DataFrame([p.model_dump(exclude_none=True) for p in experiment.printed])
    if printed.empty:
        return reading
    keys = [key for key in ("algorithm", "iteration", "target") if key in printed and key in reading]
    return reading.merge(printed.rename(columns=lambda c: c if c in keys else f"printed_{c}"), how="left", on=keys)


# --- words ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tally:
    """Comparisons that were won, lost, and not decided; where they were lost and not decided."""

    won: int
    lost: list[str]
    open: list[str]

    @property
    def total(self) -> int:
        return self.won + len(self.lost) + len(self.open)

    def word(self, most: float = MOST) -> Word:
        """Judge by the share of what is decided, where enough is."""
        decided = self.won + len(self.lost)
        if not decided or decided < ENOUGH * self.total:
            return "cannot be told"
        share = self.won / decided
        return "holds" if share >= most else "holds in part" if share >= SOME else "does not hold"


def _name(algorithm: str | None) -> str:
    return NAMES.get(str(algorithm), str(algorithm))


def _unknown(check: Check, why: str) -> Verdict:
    return Verdict("cannot be told", f"{why[0].upper()}{why[1:]}.", check.kind)


def _tally(sides: Mapping[str, Side]) -> _Tally:
    lost, undecided = ([key for key, side in sides.items() if side == word] for word in ("behind", "undecided"))
    return _Tally(len(sides) - len(lost) - len(undecided), lost, undecided)


def _amount(found: Difference) -> str:
    """``+0.021 ± 0.008``."""
    half = f" ± {formatting.accuracy(found.half)}" if found.half is not None else " (one seed, no interval)"
    return formatting.difference(found.mean) + (half if found.pairs else "")


def _wins(found: Difference) -> str:
    return f"in {found.wins} of {formatting.seeds(found.pairs)}"


def _point(point: Any) -> str:
    values = point if isinstance(point, tuple) else (point,)
    return "/".join(formatting.setting(value) for value in values)


def _sides_in_words(tally: _Tally, axes: Sequence[str]) -> str:
    """``3 of 5 points, behind at 1 (x = 4), undecided at 1 (x = 5)``."""
    axis = " and ".join(axes)
    text = f"{tally.won} of {tally.total} points"
    for word, places in (("behind", tally.lost), ("undecided", tally.open)):
        if places:
            text += f", {word} at {len(places)} ({axis} = {', '.join(places)})"
    return text


# --- claims about accuracies ----------------------------------------------------------------------------------


def _best(check: Check, evidence: Evidence) -> Verdict:
    """Whether an algorithm is ahead of every other at the points of a sweep."""
    algorithm, among = str(check.algorithm), check.among
    frames = at_points(check, evidence)
    margins = {point: margin_over_best(frame, algorithm, among) for point, frame in frames.items()}
    if all(margin is None for margin in margins.values()):
        return _unknown(check, f"{_name(algorithm)} and another algorithm must have been read")
    tally = _tally({_point(point): side_at(frame, algorithm, among) for point, frame in frames.items()})
    mean = mean_over_points(list(margins.values()))
    sentence = (
        f"{_name(algorithm)} is best {_where(check, evidence)} at {_sides_in_words(tally, evidence.axes)}; "
        f"on average it is {_amount(mean)} above the best other, and above it {_wins(mean)}."
    )
    return Verdict(tally.word(), sentence, check.kind)


def _where(check: Check, evidence: Evidence) -> str:
    if check.axis == "normalized":
        return "at a normalized delay that all runs got to"
    at = read_at(evidence)
    return f"at {at.text}" if isinstance(at, Cost) else "at the end"


def _ahead(check: Check, evidence: Evidence) -> Verdict:
    """Whether a curve is above all others, delay by delay."""
    normalized = check.axis == "normalized"
    algorithm, among = str(check.algorithm), check.among
    curves = along_delays(_among(evidence, among), "delay_total_normalized" if normalized else "delay_total")
    known = [frame for frame in curves.values() if algorithm in frame and other_algorithms(frame, algorithm, among)]
    if not known:
        measured = {str(a) for a in evidence.metrics["algorithm"]} & (set(among) or {*evidence.metrics["algorithm"]})
        if algorithm not in measured or len(measured) < 2:
            return _unknown(check, f"{_name(algorithm)} and another algorithm must have been measured")
        return _unknown(check, "the algorithms have no range of delay in common")
    tally = _tally({str(at): side_at(frame, algorithm, among) for at, frame in curves.items()})
    last = known[-1]
    rival = str(best_other(last, algorithm, among))
    end = pair(last, algorithm, rival)
    low, high = min(curves), max(curves)
    shares = {word: count / tally.total for word, count in (("behind", len(tally.lost)), ("open", len(tally.open)))}
    sentence = (
        f"{_name(algorithm)} is ahead of all others over {tally.won / tally.total:.0%} of the "
        f"{'normalized' if normalized else 'raw'} delays {formatting.delay(low)} to {formatting.delay(high)} (on a "
        f"logarithmic scale), behind one over {shares['behind']:.0%}, undecided over {shares['open']:.0%}; at the end "
        f"it is {_amount(end)} above {_name(rival)}, and above it {_wins(end)}."
    )
    return Verdict(tally.word(), sentence, check.kind)


def _among(evidence: Evidence, among: Sequence[str]) -> Evidence:
    if not among:
        return evidence
    kept = evidence.metrics[evidence.metrics["algorithm"].isin(among)]
    return Evidence(kept, evidence.reading, evidence.axes, evidence.experiment)


def _rise(lines: Sequence[pd.Series[Any]]) -> Difference:
    """By how much a line rises over the points, in their order: its least-squares slope times the range, by seed."""
    table = pd.concat(lines, axis=1).dropna()
    steps = np.arange(table.shape[1], dtype=float)
    steps -= steps.mean()
    rises = table.to_numpy(float) @ steps / float(steps @ steps) * (len(steps) - 1)
    return paired.difference(rises.tolist())


def _trend(check: Check, evidence: Evidence) -> Verdict:
    """Whether accuracy rises, or falls, along the points."""
    frames = at_points(check, evidence)
    algorithms = dict.fromkeys(str(a) for frame in frames.values() for a in frame.columns)
    chosen = [check.algorithm] if check.algorithm else list(algorithms)
    found = {}
    for algorithm in chosen:
        lines = [f[algorithm] for f in frames.values() if algorithm in f and f[algorithm].notna().any()]
        if len(lines) >= 3:
            found[str(algorithm)] = _rise(lines)
    if not found:
        return _unknown(check, "at least three points are needed to see a trend")
    tally = _tally({a: _toward(rise, check.kind) for a, rise in found.items()})
    told = ", ".join(f"{_name(a)} {_amount(rise)}" for a, rise in found.items())
    undecided = f", undecided for {len(tally.open)}" if tally.open else ""
    sentence = (
        f"Accuracy {check.kind} with {' and '.join(evidence.axes)} for {tally.won} of {tally.total}{undecided} (change "
        f"from the first point to the last along a straight line: {told})."
    )
    return Verdict(tally.word(), sentence, check.kind)


def _toward(rise: Difference, direction: str | None) -> Side:
    """Which way a line goes, seen from a claim that it rises or falls."""
    if direction != "falls" or rise.side == "undecided":
        return rise.side
    return "behind" if rise.side == "ahead" else "ahead"


def _gap(check: Check, evidence: Evidence) -> Verdict:
    """Whether the margin over the best of the others grows, or shrinks, along the points."""
    algorithm = str(check.algorithm)
    margins = [margin_over_best(frame, algorithm) for frame in at_points(check, evidence).values()]
    known = [margin for margin in margins if margin is not None and margin.notna().any()]
    if len(known) < 3:
        return _unknown(check, "at least three points with another algorithm are needed")
    rise = _rise(known)
    sentence = (
        f"The margin of {_name(algorithm)} over the best other goes from {formatting.difference(known[0].mean())} to "
        f"{formatting.difference(known[-1].mean())} with {' and '.join(evidence.axes)} (change along a straight line: "
        f"{_amount(rise)})."
    )
    return Verdict(_decided(_toward(rise, check.direction or "rises")), sentence, check.kind)


def _decided(side: Side) -> Word:
    words: dict[Side, Word] = {"ahead": "holds", "behind": "does not hold", "undecided": "cannot be told"}
    return words[side]


def _lead(check: Check, evidence: Evidence) -> Verdict:
    """Whether an algorithm is further ahead than in another experiment: of the best of the others, and of them all."""
    other = evidence.others.get(check.beside)
    algorithm = str(check.algorithm)
    if other is None:
        return _unknown(check, f"{check.beside} must have been reproduced in the same folder, and in the same way")
    ours, theirs = (_leads(check, found) for found in (evidence, other))
    if evidence.experiment.kind == "sweep":
        both = [point for point in ours if point in theirs]
        ours, theirs = ({point: some[point] for point in both} for some in (ours, theirs))
    if not ours or not theirs:
        return _unknown(check, f"{_name(algorithm)} and another algorithm must have been read, here and there")
    sides, told = [], []
    for n, what in enumerate(("the best other", "the mean of the others")):
        here, there = (pd.concat([pair[n] for pair in some.values()], axis=1).mean(axis=1) for some in (ours, theirs))
        gap = paired.compare(here.to_dict(), there.to_dict())
        sides.append(_decided(gap.side))
        means = f"{formatting.accuracy(here.mean())} and {formatting.accuracy(there.mean())}"
        told.append(f"{means} ahead of {what} (difference {_amount(gap)}, larger here {_wins(gap)})")
    sentence = f"Here and in {other.experiment.paper}, {_name(algorithm)} is on average {' and '.join(told)}."
    return Verdict(_together(sides), sentence, check.kind)


def _leads(check: Check, evidence: Evidence) -> dict[Any, tuple[pd.Series[Any], pd.Series[Any]]]:
    """Point or delay -> how far an algorithm is ahead of the best other and of the mean of the others, by seed."""
    algorithm = str(check.algorithm)
    swept = evidence.experiment.kind == "sweep"
    frames: Mapping[Any, Frame] = at_points(check, evidence) if swept else along_delays(evidence, "delay_total")
    out = {}
    for point, frame in frames.items():
        margin = margin_over_best(frame, algorithm)
        if margin is not None and margin.notna().any():
            out[point] = (margin, frame[algorithm] - frame[other_algorithms(frame, algorithm)].mean(axis=1))
    return out


def _range(check: Check, evidence: Evidence) -> dict[str, pd.Series[Any]]:
    """Algorithm -> seed -> how far its accuracy is, at the best point of its mean, above that at the worst."""
    frames = [frame for frame in at_points(check, evidence).values() if len(frame.columns)]
    out = {}
    for algorithm in dict.fromkeys(str(a) for frame in frames for a in frame.columns):
        lines = [f[algorithm] for f in frames if algorithm in f and f[algorithm].notna().any()]
        if len(lines) >= 2 and len(lines) == len(frames):
            out[algorithm] = max(lines, key=lambda line: line.mean()) - min(lines, key=lambda line: line.mean())
    return out


def _steadier(check: Check, evidence: Evidence) -> Verdict:
    """Whether an algorithm varies less over the points than the others do."""
    found, algorithm = _range(check, evidence), str(check.algorithm)
    if algorithm not in found or len(found) < 2:
        return _unknown(check, f"{_name(algorithm)} and another algorithm must have been read at two points at least")
    own = found.pop(algorithm)
    gaps = {other: paired.compare(line.to_dict(), own.to_dict()) for other, line in found.items()}
    tally = _tally({other: gap.side for other, gap in gaps.items()})
    ordered = sorted(found, key=lambda other: float(found[other].mean()))
    told = ", ".join(
        f"{_name(a)} by {formatting.accuracy(found[a].mean())} (difference {_amount(gaps[a])})" for a in ordered
    )
    sentence = (
        f"{_name(algorithm)} varies by {formatting.accuracy(own.mean())} over {' and '.join(evidence.axes)}, less than "
        f"{tally.won} of {tally.total} others{f', undecided against {len(tally.open)}' if tally.open else ''}: {told}."
    )
    return Verdict(tally.word(most=1), sentence, check.kind)


def _tuned(check: Check, evidence: Evidence) -> Verdict:
    """Whether an algorithm at some points is ahead of every other at its own best point."""
    algorithm, frames = str(check.algorithm), at_points(check, evidence)
    best: dict[str, tuple[Any, pd.Series[Any]]] = {}
    for point, frame in frames.items():
        for other in other_algorithms(frame, algorithm):
            if other not in best or frame[other].mean() > best[other][1].mean():
                best[other] = (point, frame[other])
    mine = {p: frames[p][algorithm] for p in check.at if p in frames and algorithm in frames[p]}
    mine = {p: line for p, line in mine.items() if line.notna().any()}
    if not mine or not best:
        return _unknown(check, f"{_name(algorithm)} must have been read at {check.at}, next to another algorithm")
    rival = max(best, key=lambda other: float(best[other][1].mean()))
    at, line = best[rival]
    sides: dict[str, Side] = {}
    told = []
    for point, own in mine.items():
        found = {other: paired.compare(own.to_dict(), values.to_dict()).side for other, (_, values) in best.items()}
        behind = "behind" in found.values()
        sides[_point(point)] = "behind" if behind else "ahead" if set(found.values()) == {"ahead"} else "undecided"
        gap = paired.compare(own.to_dict(), line.to_dict())
        told.append(f"{formatting.accuracy(own.mean())} at {_point(point)} ({_amount(gap)}, above {_wins(gap)})")
    sentence = (
        f"{_name(algorithm)} has {', '.join(told)}; the best of the others, {_name(rival)}, has "
        f"{formatting.accuracy(line.mean())} at its own best, {_point(at)}."
    )
    return Verdict(_tally(sides).word(most=1), sentence, check.kind)


def _flat(check: Check, evidence: Evidence) -> Verdict:
    """Whether an algorithm varies by no more than a given amount over the points."""
    algorithm = str(check.algorithm)
    line = _range(check, evidence).get(algorithm)
    if line is None:
        return _unknown(check, f"{_name(algorithm)} must have been read at two points at least")
    found = paired.difference(line.to_list())
    if found.low is None or found.high is None or found.low <= check.within < found.high:
        word: Word = "cannot be told"
    elif found.high <= check.within:
        word = "holds"
    else:
        word = "holds in part" if found.mean <= 2 * check.within else "does not hold"
    sentence = (
        f"{_name(algorithm)} varies by {_amount(found).removeprefix('+')} over {' and '.join(evidence.axes)}; "
        f"{formatting.setting(check.within)} is allowed."
    )
    return Verdict(word, sentence, check.kind)


def _within(check: Check, evidence: Evidence) -> Verdict:
    """Whether printed accuracies are met within a tolerance."""
    found = evidence.reading
    known = found.dropna(subset=["accuracy_mean", "printed_accuracy"]) if "printed_accuracy" in found else found[:0]
    if not len(known):
        return _unknown(check, "no printed accuracy was measured")
    away = (known["accuracy_mean"] - known["printed_accuracy"]).abs()
    allowed = known["accuracy_std"].astype(float).fillna(0.0).clip(lower=CLOSE)
    met = away <= allowed
    worst = known.loc[(away - allowed).sort_values(ascending=False, kind="stable").index]
    lacking = int((~met).sum())
    few = 0 < lacking <= _FEW
    numbers = [
        f"{_name(row['algorithm'])} at {row['iteration']:,}: "
        f"{formatting.spread(row['accuracy_mean'], row['accuracy_std'])} against {row['printed_accuracy']:.2f}"
        for _, row in worst[: lacking if few else 1].iterrows()
    ]
    sentence = (
        f"{int(met.sum())} of {len(known)} printed accuracies are met within {CLOSE} or one standard deviation; "
        f"{'not' if few else 'the furthest is'} {', '.join(numbers)}."
    )
    share = float(met.mean())
    return Verdict(
        "holds" if share == 1 else "holds in part" if share >= SOME else "does not hold", sentence, check.kind
    )


# --- claims about delays --------------------------------------------------------------------------------------


def _sooner(check: Check, evidence: Evidence) -> Verdict:
    """Whether an algorithm reaches the targets sooner than the others; a run that ended before is censored there."""
    ours, axes = str(check.algorithm), list(evidence.axes)
    metrics = _symmetric(evidence.metrics)
    if ours not in set(metrics["algorithm"]):
        return _unknown(check, f"{_name(ours)} was not measured")
    targets = [float(target) for target in dict.fromkeys(evidence.reading["target"])]
    points = [rows for _, rows in metrics.groupby(axes, sort=False)] if axes else [metrics]
    sides: dict[str, Side] = {}
    early: list[str] = []
    close: list[str] = []
    for rows in points:
        here = f", {_point(tuple(rows.iloc[0][axes]))}" if len(points) > 1 else ""
        runs = {str(name): _runs(some) for name, some in rows.groupby("algorithm", sort=False)}
        others = [a for a in runs if a != ours and (not check.than or a in check.than)]
        for other, target in [(other, target) for other in others for target in targets if ours in runs]:
            mine, theirs = ({seed: _to_target(run, target) for seed, run in runs[a].items()} for a in (ours, other))
            if not any(found.reached for found in (*mine.values(), *theirs.values())):
                continue
            found, where = paired.compare_costs(mine, theirs), f"{_name(other)} at {formatting.setting(target)}{here}"
            sides[where] = found.side
            if found.side == "undecided":
                (early if found.open else close).append(f"{where} ({found.wins} to {found.losses})")
    if not sides:
        return _unknown(check, "no target was reached by a run")
    tally = _tally(sides)
    parts = [
        f"{_name(ours)} needs less delay in {tally.won} of {tally.total} comparisons with the others at the targets",
        f", more in {len(tally.lost)} ({', '.join(tally.lost)})" if tally.lost else "",
        f"; runs end too early for {', '.join(early)}" if early else "",
        f"; the seeds do not decide {', '.join(close)}" if close else "",
        " (in brackets: seeds with less delay to seeds with more)" if early or close else "",
    ]
    sentence = "".join(parts) + "."
    return Verdict(tally.word(), sentence, check.kind)


def _runs(rows: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    return {seed: run.sort_values("iteration") for seed, run in rows.groupby("seed", sort=False)}


def _to_target(run: pd.DataFrame, target: float) -> Reached:
    there = (run["accuracy"] >= target).to_numpy()
    spent = run["delay_total"].to_numpy(float)
    return Reached(float(spent[there.argmax()]), True) if there.any() else Reached(float(spent[-1]), False)


def _symmetric(table: pd.DataFrame) -> pd.DataFrame:
    column = next((c for c in table if str(c).endswith("link_draw")), None)
    return table if column is None else table[table[column] == "symmetric"]


def _ratio(check: Check, evidence: Evidence) -> Verdict:
    """Which link draw gives the ratio of transmission to processing delay that the paper prints."""
    algorithm = str(check.algorithm)
    column = next((c for c in evidence.axes if c.endswith("link_draw")), None)
    printed = [p for p in evidence.experiment.printed if p.algorithm == algorithm and p.processing]
    if column is None or not printed:
        return _unknown(check, "needs both link draws and printed delays")
    paper = float(np.median([(p.transmission or 0.0) / float(p.processing or 1.0) for p in printed]))
    targets = [float(target) for target in dict.fromkeys(evidence.reading["target"])]
    mine = evidence.metrics[evidence.metrics["algorithm"] == algorithm]
    ours: dict[str, dict[Any, float]] = {}
    for (draw, seed), run in mine.groupby([column, "seed"], sort=False):
        ratio = _transmission_ratio(run.sort_values("iteration"), targets)
        if np.isfinite(ratio):
            ours.setdefault(str(draw), {})[seed] = ratio
    if len(ours) < 2:
        return _unknown(check, f"{_name(algorithm)} reached no target with one of the two link draws")
    away = {draw: {seed: abs(ratio - paper) for seed, ratio in some.items()} for draw, some in ours.items()}
    nearest, other = sorted(away, key=lambda draw: float(np.mean(list(away[draw].values()))))[:2]
    gap = paired.compare(away[nearest], away[other], lower_is_better=True)
    told = ", ".join(f"{np.mean(list(some.values())):.2f} with {draw} draws" for draw, some in ours.items())
    sentence = (
        f"Transmission over processing delay of {_name(algorithm)}: {told}; the paper prints {paper:.2f}, which is "
        f"nearest to {nearest} draws (nearer by {_amount(gap)}, {_wins(gap)})."
    )
    claimed = gap.side == "ahead"
    word: Word = ("holds" if nearest == "symmetric" else "does not hold") if claimed else "cannot be told"
    return Verdict(word, sentence, check.kind)


def _transmission_ratio(run: pd.DataFrame, targets: Sequence[float]) -> float:
    """The median over the targets that a run reached."""
    ratios = []
    for target in targets:
        there = run[run["accuracy"] >= target]
        if len(there) and there["delay_processing"].iloc[0] > 0:
            ratios.append(float(there["delay_transmission"].iloc[0] / there["delay_processing"].iloc[0]))
    return float(np.median(ratios)) if ratios else float("nan")


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
