"""Claims about which algorithm has the higher accuracy: at the points of a grid, along the delays, when tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dspodfl.analysis import Cost, Side, formatting
from dspodfl.analysis import statistics as paired
from dspodfl.experiments.claims.base import (
    ClaimCheck,
    amount,
    claim_kind,
    combined,
    label,
    point_name,
    sides_in_words,
    status_of,
    tally_of,
    unknown,
    wins,
)
from dspodfl.experiments.definition import Check
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


@claim_kind("best")
def best(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether an algorithm is ahead of every other at the points of a sweep."""
    algorithm, among = str(check.algorithm), check.among
    frames = at_points(check, evidence)
    margins = {point: margin_over_best(frame, algorithm, among) for point, frame in frames.items()}
    if all(margin is None for margin in margins.values()):
        return unknown(check, f"{label(algorithm)} and another algorithm must have been read")
    tally = tally_of({point_name(point): side_at(frame, algorithm, among) for point, frame in frames.items()})
    mean = mean_over_points(list(margins.values()))
    sentence = (
        f"{label(algorithm)} is best {_where(check, evidence)} at {sides_in_words(tally, evidence.axes)}; "
        f"on average it is {amount(mean)} above the best other, and above it {wins(mean)}."
    )
    return ClaimCheck(tally.status(), sentence, check.kind)


def _where(check: Check, evidence: Evidence) -> str:
    if check.axis == "normalized":
        return "at a normalized delay that all runs got to"
    at = read_at(evidence)
    return f"at {at.text}" if isinstance(at, Cost) else "at the end"


@claim_kind("ahead")
def ahead(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether a curve is above all others, delay by delay."""
    normalized = check.axis == "normalized"
    algorithm, among = str(check.algorithm), check.among
    curves = along_delays(_among(evidence, among), "delay_total_normalized" if normalized else "delay_total")
    known = [frame for frame in curves.values() if algorithm in frame and other_algorithms(frame, algorithm, among)]
    if not known:
        measured = {str(a) for a in evidence.metrics["algorithm"]} & (set(among) or {*evidence.metrics["algorithm"]})
        if algorithm not in measured or len(measured) < 2:
            return unknown(check, f"{label(algorithm)} and another algorithm must have been measured")
        return unknown(check, "the algorithms have no range of delay in common")
    tally = tally_of({str(at): side_at(frame, algorithm, among) for at, frame in curves.items()})
    last = known[-1]
    rival = str(best_other(last, algorithm, among))
    end = pair(last, algorithm, rival)
    low, high = min(curves), max(curves)
    shares = {side: count / tally.total for side, count in (("behind", len(tally.lost)), ("open", len(tally.open)))}
    sentence = (
        f"{label(algorithm)} is ahead of all others over {tally.won / tally.total:.0%} of the "
        f"{'normalized' if normalized else 'raw'} delays {formatting.delay(low)} to {formatting.delay(high)} (on a "
        f"logarithmic scale), behind one over {shares['behind']:.0%}, undecided over {shares['open']:.0%}; at the end "
        f"it is {amount(end)} above {label(rival)}, and above it {wins(end)}."
    )
    return ClaimCheck(tally.status(), sentence, check.kind)


def _among(evidence: Evidence, among: Sequence[str]) -> Evidence:
    if not among:
        return evidence
    kept = evidence.metrics[evidence.metrics["algorithm"].isin(among)]
    return Evidence(kept, evidence.aggregates, evidence.axes, evidence.experiment)


@claim_kind("lead")
def lead(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether an algorithm is further ahead than in another experiment: of the best of the others, and of them all."""
    other = evidence.others.get(check.baseline)
    algorithm = str(check.algorithm)
    if other is None:
        return unknown(check, f"{check.baseline} must have been reproduced in the same folder, and in the same way")
    ours, theirs = (_leads(check, found) for found in (evidence, other))
    if evidence.experiment.kind == "sweep":
        both = [point for point in ours if point in theirs]
        ours, theirs = ({point: some[point] for point in both} for some in (ours, theirs))
    if not ours or not theirs:
        return unknown(check, f"{label(algorithm)} and another algorithm must have been read, here and there")
    sides, parts = [], []
    for n, what in enumerate(("the best other", "the mean of the others")):
        here, there = (pd.concat([pair[n] for pair in some.values()], axis=1).mean(axis=1) for some in (ours, theirs))
        gap = paired.compare(here.to_dict(), there.to_dict())
        sides.append(status_of(gap.side))
        means = f"{formatting.accuracy(here.mean())} and {formatting.accuracy(there.mean())}"
        parts.append(f"{means} ahead of {what} (difference {amount(gap)}, larger here {wins(gap)})")
    sentence = f"Here and in {other.experiment.paper}, {label(algorithm)} is on average {' and '.join(parts)}."
    return ClaimCheck(combined(sides), sentence, check.kind)


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


@claim_kind("tuned")
def tuned(check: Check, evidence: Evidence) -> ClaimCheck:
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
        return unknown(check, f"{label(algorithm)} must have been read at {check.at}, next to another algorithm")
    rival = max(best, key=lambda other: float(best[other][1].mean()))
    at, line = best[rival]
    sides: dict[str, Side] = {}
    parts = []
    for point, own in mine.items():
        found = {other: paired.compare(own.to_dict(), values.to_dict()).side for other, (_, values) in best.items()}
        behind = "behind" in found.values()
        sides[point_name(point)] = "behind" if behind else "ahead" if set(found.values()) == {"ahead"} else "undecided"
        gap = paired.compare(own.to_dict(), line.to_dict())
        parts.append(f"{formatting.accuracy(own.mean())} at {point_name(point)} ({amount(gap)}, above {wins(gap)})")
    sentence = (
        f"{label(algorithm)} has {', '.join(parts)}; the best of the others, {label(rival)}, has "
        f"{formatting.accuracy(line.mean())} at its own best, {point_name(at)}."
    )
    return ClaimCheck(tally_of(sides).status(most=1), sentence, check.kind)
