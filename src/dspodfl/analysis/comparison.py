"""A comparison as a table: values at the common cost, multiples of the best, one sentence, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dspodfl.analysis import formatting
from dspodfl.analysis import statistics as paired
from dspodfl.analysis.costs import Cost
from dspodfl.analysis.measures import ACCURACY, ERROR, Measure
from dspodfl.analysis.standings import Comparison, Standing, compare
from dspodfl.analysis.tables import Column, Row, Table
from dspodfl.analysis.targets import TargetCost

__all__ = ["Comparison", "compare", "sentence", "table", "thinned"]


def sentence(found: Comparison) -> str:
    """Describe in one sentence or two which algorithm leads, by how much, and whether the seeds decide it."""
    if not any(standing.values for standing in found.standings):
        diverged = all(len(standing.diverged) == standing.seeds for standing in found.standings)
        return "Every run diverged." if diverged else f"No run gets to {found.at.text}."
    if not found.leads:
        return ""
    lead, *others = found.leads
    first, second, by = lead.first, lead.second, lead.difference
    where = f"{'So far, at' if not found.complete and not found.explicit else 'At'} {found.at.text}"
    measured = "" if found.measure is ACCURACY else f" in {found.measure.label}"
    if by.mean < 0:
        return f"{where} no algorithm leads all others{measured} over the seeds that it shares with them."
    amount = found.measure.spread(by.mean, by.half)
    wins = f"it wins in {by.wins} of {formatting.seeds(by.pairs)}"
    if by.ties == by.pairs:
        head = f"{where} {first.name} and {second.name} are level{measured}."
    elif by.half is None:
        head = (
            f"{where} {first.name} leads by {amount} over {second.name}{measured}; with one seed there is no interval "
            "to say whether that is chance."
        )
    elif by.side == "ahead":
        head = f"{where} {first.name} is ahead of {second.name} by {amount}{measured}; {wins}."
    else:
        head = f"{where} {first.name} leads by {amount} over {second.name}{measured}; {wins}, which does not decide it."
    behind = [each.second.name for each in others if each.difference.side == "ahead"]
    also = " also" if by.side == "ahead" else ""
    return head + (f" It is{also} ahead of {_listed(behind)}." if behind else "")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def table(found: Comparison, title: str = "", config: Mapping[str, Any] | None = None) -> Table:
    """Lay a comparison out: the value at the common cost, then the cost of each target as a multiple of the best.

    Args:
        found: The comparison.
        title: What was run.
        config: The resolved configuration: where it thins evaluation, the table says so.

    Returns:
        The table: a row for each algorithm, one sentence that sums it up, a caption and notes.
    """
    iterations = found.at.kind == "iterations"
    columns = [Column("algorithm", left=True), Column(f"{found.measure.label} at\n{found.at.text}")]
    with_loss = found.measure is ERROR and any(s.loss for s in found.standings)
    columns += [Column("loss")] if with_loss else []
    best = [_best([s.targets[n] for s in found.standings]) for n in range(len(found.targets))]
    columns += [Column(_head(found, target, best[n])) for n, target in enumerate(found.targets)]
    columns += [Column("delay\nin all")] if iterations else []
    rows = []
    for standing in found.standings:
        cells = [standing.name, _value(standing, found.measure)]
        if with_loss:
            cells.append(formatting.spread(standing.mean_loss, paired.deviation(np.array([*standing.loss.values()]))))
        cells += [_times(cost, best[n], standing.seeds, found.cost) for n, cost in enumerate(standing.targets)]
        cells += [formatting.delay(standing.delay)] if iterations else []
        remark = f"{len(standing.diverged)} diverged" if standing.diverged else ""
        rows.append(Row(tuple(cells), remark))
    notes = [note for standing in found.standings for note in _notes(standing, found)]
    notes += [f"no run reaches {_listed([formatting.setting(t) for t in found.missed])}"] if found.missed else []
    notes += thinned(config or {}, found.evaluated)
    if found.by_iterations and iterations and len(found.standings) > 1:
        notes.append(
            "equal iterations cost the algorithms different delays; at an equal delay: dspodfl show --at delay=VALUE"
        )
    return Table(title, tuple(columns), tuple(rows), sentence(found), _caption(found), tuple(notes))


def _head(found: Comparison, target: float, best: float | None) -> str:
    name = found.cost.name.replace("normalized delay", "norm. delay")
    unit = f"\n1× = {found.cost.number(best)}" if best else ""
    return f"{name} to\n{formatting.setting(target)}{unit}"


def _best(costs_: Sequence[TargetCost]) -> float | None:
    known = [cost.median for cost in costs_ if cost.median is not None]
    return min(known) if known else None


def _value(standing: Standing, measure: Measure) -> str:
    text = measure.spread(standing.mean, standing.std)
    missing = len(standing.values) < standing.seeds
    return f"{text} {formatting.reached(len(standing.values), standing.seeds)}" if missing else text


def _times(cost: TargetCost, best: float | None, seeds: int, kind: Cost) -> str:
    """A cost as a multiple of the best, or as it is where the best is 0 or unknown."""

    def text(value: float) -> str:
        return formatting.times(value / best) if best else kind.number(value)

    found = text(cost.median) if cost.median is not None else f"> {text(cost.least)}"
    return found if cost.reached == seeds else f"{found} {formatting.reached(cost.reached, seeds)}"


def _notes(standing: Standing, found: Comparison) -> list[str]:
    """Name the runs that have no part in the value at the common cost, with the cost that they reached."""
    out = []
    if standing.diverged:
        iteration, cost = min(standing.diverged.values())
        place = f"iteration {iteration:,}"
        place += "" if found.at.kind == "iterations" else f", {replace(found.at, value=cost).text}"
        where = f"at {place}" if len(standing.diverged) == 1 else f"from {place} on"
        out.append(f"{standing.name} {_seeds(list(standing.diverged))} diverged {where}")
    if standing.late and standing.read_at is not None:
        place = replace(found.at, value=standing.read_at).text
        out.append(
            f"{standing.name} was not evaluated between {found.at.text} and {place}, where it is read: not ranked"
        )
    reasons = {
        "budget": ("ended at", " (budget)"),
        "cap": ("ended at", " (cap)" if found.budget is not None else ""),
        None: ("so far at", " (not finished)"),
    }
    for reason, (verb, why) in reasons.items():
        late = {short.seed: short.cost for short in standing.short if short.ended_by == reason}
        if late:
            low, high = (found.at.number(end(late.values())) for end in (min, max))
            ends = low if low == high else f"{low} to {high}"
            name = "" if found.at.kind == "bytes" else f"{found.at.name} "
            whole = found.at.number(found.at.value)
            out.append(f"{standing.name} {_seeds(list(late))} {verb} {name}{ends} of {whole}{why}")
    return out


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"seeds {_listed([str(s) for s in seeds])}" if len(seeds) <= 6 else f"in {len(seeds)} seeds"


def _caption(found: Comparison) -> str:
    """What the numbers are."""
    label = found.measure.label
    spread = f"mean ± std over {formatting.seeds(found.seeds)}" if found.seeds > 1 else "of 1 seed"
    if found.at.kind == "iterations":
        total = "" if found.iterations is None else f" of {formatting.count(found.iterations)}"
        where = f"after {formatting.count(found.at.value)}{total} iterations"
    else:
        where = f"where the {found.at.meaning} first reaches {found.at.number(found.at.value)}"
    parts = [f"{label[0].upper()}{label[1:]}: {spread}, {where}"]
    if found.targets:
        parts.append(f"×: median {found.cost.meaning} to the {label}, as a multiple of the best")
    counts = [len(s.values) < s.seeds or any(t.reached < s.seeds for t in s.targets) for s in found.standings]
    if any(counts):
        parts.append("n/m: n of m seeds got there; the others count as infinitely late (>: at least)")
    if any(lead.difference.half is not None for lead in found.leads):
        parts.append("± of a lead: 95% interval of the paired differences over seeds")
    return ". ".join(parts) + "."


def thinned(config: Mapping[str, Any], evaluated: Mapping[str, Any] | None = None) -> list[str]:
    """Return notes on how many samples and clients were evaluated, where the configuration limits them.

    Args:
        config: The resolved configuration.
        evaluated: What ``summary.json`` says was evaluated, where that is known; at most all there is.

    Returns:
        One note, or none where every sample and client was evaluated.

    >>> thinned({"eval": {"clients": 5}})
    ['evaluated on 5 clients only (eval.clients)']
    """
    evaluation = config.get("eval")
    evaluation = evaluation if isinstance(evaluation, Mapping) else {}
    if evaluated is not None:
        if evaluated.get("note") is None:
            return []
        evaluation = {key: evaluation.get(key) and evaluated.get(key) for key in ("samples", "clients")}
    parts = [
        f"{formatting.setting(evaluation[key])} {what}"
        for key, what in (("samples", "test samples"), ("clients", "clients"))
        if evaluation.get(key)
    ]
    return [f"evaluated on {' and '.join(parts)} only ({_keys(evaluation)})"] if parts else []


def _keys(evaluation: Mapping[str, Any]) -> str:
    return ", ".join(f"eval.{key}" for key in ("samples", "clients") if evaluation.get(key))
