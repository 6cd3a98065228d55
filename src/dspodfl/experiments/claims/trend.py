"""Claims about how accuracy, or a margin, changes along the points of a grid."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dspodfl.analysis import formatting
from dspodfl.analysis import statistics as paired
from dspodfl.experiments.claims.base import (
    ClaimCheck,
    Status,
    amount,
    claim_kind,
    label,
    rise_over,
    status_of,
    tally_of,
    toward,
    unknown,
)
from dspodfl.experiments.definition import Check
from dspodfl.experiments.evidence import Evidence, at_points, margin_over_best


@claim_kind("rises", "falls")
def trend(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether accuracy rises, or falls, along the points."""
    frames = at_points(check, evidence)
    algorithms = dict.fromkeys(str(a) for frame in frames.values() for a in frame.columns)
    chosen = [check.algorithm] if check.algorithm else list(algorithms)
    found = {}
    for algorithm in chosen:
        lines = [f[algorithm] for f in frames.values() if algorithm in f and f[algorithm].notna().any()]
        if len(lines) >= 3:
            found[str(algorithm)] = rise_over(lines)
    if not found:
        return unknown(check, "at least three points are needed to see a trend")
    tally = tally_of({a: toward(rise, check.kind) for a, rise in found.items()})
    parts = ", ".join(f"{label(a)} {amount(rise)}" for a, rise in found.items())
    undecided = f", undecided for {len(tally.open)}" if tally.open else ""
    sentence = (
        f"Accuracy {check.kind} with {' and '.join(evidence.axes)} for {tally.won} of {tally.total}{undecided} (change "
        f"from the first point to the last along a straight line: {parts})."
    )
    return ClaimCheck(tally.status(), sentence, check.kind)


@claim_kind("gap")
def gap(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether the margin over the best of the others grows, or shrinks, along the points."""
    algorithm = str(check.algorithm)
    margins = [margin_over_best(frame, algorithm) for frame in at_points(check, evidence).values()]
    known = [margin for margin in margins if margin is not None and margin.notna().any()]
    if len(known) < 3:
        return unknown(check, "at least three points with another algorithm are needed")
    rise = rise_over(known)
    sentence = (
        f"The margin of {label(algorithm)} over the best other goes from {formatting.difference(known[0].mean())} to "
        f"{formatting.difference(known[-1].mean())} with {' and '.join(evidence.axes)} (change along a straight line: "
        f"{amount(rise)})."
    )
    return ClaimCheck(status_of(toward(rise, check.direction or "rises")), sentence, check.kind)


@claim_kind("steadier")
def steadier(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether an algorithm varies less over the points than the others do."""
    found, algorithm = _range(check, evidence), str(check.algorithm)
    if algorithm not in found or len(found) < 2:
        return unknown(check, f"{label(algorithm)} and another algorithm must have been read at two points at least")
    own = found.pop(algorithm)
    gaps = {other: paired.compare(line.to_dict(), own.to_dict()) for other, line in found.items()}
    tally = tally_of({other: gap.side for other, gap in gaps.items()})
    ordered = sorted(found, key=lambda other: float(found[other].mean()))
    parts = ", ".join(
        f"{label(a)} by {formatting.accuracy(found[a].mean())} (difference {amount(gaps[a])})" for a in ordered
    )
    sentence = (
        f"{label(algorithm)} varies by {formatting.accuracy(own.mean())} over {' and '.join(evidence.axes)}, less than "
        f"{tally.won} of {tally.total} others{f', undecided against {len(tally.open)}' if tally.open else ''}: {parts}."
    )
    return ClaimCheck(tally.status(most=1), sentence, check.kind)


@claim_kind("flat")
def flat(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether an algorithm varies by no more than a given amount over the points."""
    algorithm = str(check.algorithm)
    line = _range(check, evidence).get(algorithm)
    if line is None:
        return unknown(check, f"{label(algorithm)} must have been read at two points at least")
    found = paired.difference(line.to_list())
    if found.low is None or found.high is None or found.low <= check.within < found.high:
        status: Status = "cannot be told"
    elif found.high <= check.within:
        status = "holds"
    else:
        status = "holds in part" if found.mean <= 2 * check.within else "does not hold"
    sentence = (
        f"{label(algorithm)} varies by {amount(found).removeprefix('+')} over {' and '.join(evidence.axes)}; "
        f"{formatting.setting(check.within)} is allowed."
    )
    return ClaimCheck(status, sentence, check.kind)


def _range(check: Check, evidence: Evidence) -> dict[str, pd.Series[Any]]:
    """Algorithm -> seed -> how far its accuracy is, at the best point of its mean, above that at the worst."""
    frames = [frame for frame in at_points(check, evidence).values() if len(frame.columns)]
    out = {}
    for algorithm in dict.fromkeys(str(a) for frame in frames for a in frame.columns):
        lines = [f[algorithm] for f in frames if algorithm in f and f[algorithm].notna().any()]
        if len(lines) >= 2 and len(lines) == len(frames):
            out[algorithm] = max(lines, key=lambda line: line.mean()) - min(lines, key=lambda line: line.mean())
    return out
