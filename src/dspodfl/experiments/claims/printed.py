"""Claims about the numbers that the paper prints: how near the measured ones are."""

from __future__ import annotations

import pandas as pd

from dspodfl.analysis import formatting
from dspodfl.experiments.claims.base import SOME, ClaimCheck, claim_kind, label, unknown
from dspodfl.experiments.definition import Check, Experiment
from dspodfl.experiments.evidence import Evidence

_FEW = 3
"""Numbers that are not met are all named up to this many."""
CLOSE = 0.025
"""How far an accuracy may be from a printed one, or one standard deviation."""


def with_printed(aggregates: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """Add the paper's printed numbers to aggregates.

    Args:
        aggregates: A row for each point and algorithm, and iteration or target.
        experiment: The experiment, with the numbers that the paper prints.

    Returns:
        The aggregates with further columns, ``printed_…``, NaN where the paper prints no number.
    """
    printed = pd.DataFrame([p.model_dump(exclude_none=True) for p in experiment.printed])
    if printed.empty:
        return aggregates
    keys = [key for key in ("algorithm", "iteration", "target") if key in printed and key in aggregates]
    return aggregates.merge(printed.rename(columns=lambda c: c if c in keys else f"printed_{c}"), how="left", on=keys)


@claim_kind("within")
def within(check: Check, evidence: Evidence) -> ClaimCheck:
    """Whether printed accuracies are met within a tolerance."""
    found = evidence.aggregates
    known = found.dropna(subset=["accuracy_mean", "printed_accuracy"]) if "printed_accuracy" in found else found[:0]
    if not len(known):
        return unknown(check, "no printed accuracy was measured")
    away = (known["accuracy_mean"] - known["printed_accuracy"]).abs()
    allowed = known["accuracy_std"].astype(float).fillna(0.0).clip(lower=CLOSE)
    met = away <= allowed
    worst = known.loc[(away - allowed).sort_values(ascending=False, kind="stable").index]
    lacking = int((~met).sum())
    few = 0 < lacking <= _FEW
    numbers = [
        f"{label(row['algorithm'])} at {row['iteration']:,}: "
        f"{formatting.spread(row['accuracy_mean'], row['accuracy_std'])} against {row['printed_accuracy']:.2f}"
        for _, row in worst[: lacking if few else 1].iterrows()
    ]
    sentence = (
        f"{int(met.sum())} of {len(known)} printed accuracies are met within {CLOSE} or one standard deviation; "
        f"{'not' if few else 'the furthest is'} {', '.join(numbers)}."
    )
    share = float(met.mean())
    return ClaimCheck(
        "holds" if share == 1 else "holds in part" if share >= SOME else "does not hold", sentence, check.kind
    )
