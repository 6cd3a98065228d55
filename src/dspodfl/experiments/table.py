"""The table of a sweep or a reproduction: points by algorithms, and what its numbers are."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

import pandas as pd

from dspodfl.analysis import Column, Cost, Row, Table, comparison, formatting
from dspodfl.analysis import aggregates as aggregation
from dspodfl.analysis.figures import NAMES, axis_head, axis_name
from dspodfl.errors import InputError
from dspodfl.experiments.result import ExperimentResult
from dspodfl.network import COST_COLUMNS


def outcome_table(outcome: ExperimentResult, at: Cost | None = None) -> Table:
    """Return the table of a sweep or a reproduction.

    Args:
        outcome: What was measured.
        at: Read accuracies at this cost, and not where the outcome was read.

    Returns:
        The table, a column for each algorithm, and below it what its numbers are.

    Raises:
        InputError: ``at`` is given for a table of the paper, which is read at its own iterations or targets.
    """
    if at is not None and (outcome.kind.endswith("_table") or outcome.kind == "tuned"):
        raise InputError("--at", at.text, f"given with a run or a sweep; {outcome.name} is a table of its own kind")
    if outcome.kind == "curves" and not outcome.axes and len(outcome.metrics):
        config = tomllib.loads(outcome.config) if outcome.config else {}
        found = comparison.compare(outcome.metrics, config, at=at)
        return comparison.table(found, outcome.heading, config)
    if outcome.kind == "tuned":
        return tuned_table(outcome)
    aggregates = outcome.aggregates if at is None else at_cost(outcome.metrics, outcome.axes, at)
    rows = [*outcome.axes, *(c for c in ("iteration", "target") if c in aggregates and outcome.kind.endswith("table"))]
    algorithms = [str(name) for name in dict.fromkeys(aggregates["algorithm"])]
    columns = [Column(axis_head(name), left=True) for name in rows] or [Column("", left=True)]
    columns += [Column(NAMES.get(algorithm, algorithm)) for algorithm in algorithms]
    groups = aggregates.groupby(rows[0] if len(rows) == 1 else rows, sort=False) if rows else [("all", aggregates)]
    lines = []
    for point, group in groups:
        cells = {str(row["algorithm"]): cell(row) for _, row in group.iterrows()}
        names = [formatting.setting(v) for v in (point if isinstance(point, tuple) else (point,))]
        lines.append(Row((*names, *(cells.get(algorithm, formatting.MISSING) for algorithm in algorithms))))
    notes = _diverged(aggregates, rows)
    if outcome.config:
        notes += comparison.thinned(tomllib.loads(outcome.config))
    return Table(outcome.heading, tuple(columns), tuple(lines), "", caption(outcome.kind, aggregates), tuple(notes))


def tuned_table(outcome: ExperimentResult) -> Table:
    """Return the table of a tuned comparison: a row for each algorithm, the best at the first cost first.

    Args:
        outcome: What was measured.

    Returns:
        For each cost the accuracy, the place among all, and the point that was chosen.
    """
    found = outcome.aggregates
    pairs = dict.fromkeys(zip(found["cost"], found["cost_value"], strict=True))
    costs = [Cost(str(kind), float(value)) for kind, value in pairs]
    name = axis_name(str(found["tuned_axis"].iloc[0])) if len(found) else ""
    columns = [Column("", left=True)]
    for cost in costs:
        columns += [Column(f"accuracy at\n{cost.text}"), Column("rank"), Column(name)]
    order = list(found[found["cost"] == costs[0].kind].sort_values("rank")["algorithm"]) if costs else []
    rows = []
    for algorithm in order:
        mine = found[found["algorithm"] == algorithm].set_index("cost")
        cells = [NAMES.get(str(algorithm), str(algorithm))]
        for cost in costs:
            row = mine.loc[cost.kind]
            short = "*" if row["short"] else ""
            cells += [cell(row) + short, str(int(row["rank"])), f"{row['tuned']:g}{'!' if row['edge'] else ''}"]
        rows.append(Row(tuple(cells)))
    number = int(found["seeds"].max()) if len(found) else 0
    text = f"Accuracy: mean ± std over {formatting.seeds(number)}, each algorithm at the {name} that is best at this "
    text += "cost on other seeds. *: some runs end before this cost, and are read at their end. "
    text += "!: the first or last of the values that were tried."
    return Table(outcome.heading, tuple(columns), tuple(rows), "", text, tuple(_diverged(found, ["cost"])))


def at_cost(metrics: pd.DataFrame, axes: Sequence[str], at: Cost) -> pd.DataFrame:
    """Read a grid at a cost: each run at its first row whose cost is at least that."""
    if at.kind == "delay":
        return aggregation.at_delay(metrics, axes, at.value)
    return aggregation.at_end(metrics, axes, {point: at for point, _, _ in aggregation.by_run(metrics, axes)})


def cell(row: pd.Series[Any]) -> str:
    """Format one number of a table, with its spread, how many seeds got there, and the paper's number."""
    known = row.dropna()
    if "target" in row:
        late = formatting.delay_at_least(known.get("total_least"))
        text = formatting.delay(known["total_median"]) if "total_median" in known else late
        printed = f"\n(paper {formatting.delay(known['printed_total'])})" if "printed_total" in known else ""
    else:
        name = next((n for n in ("accuracy", "optimality_error", "loss") if f"{n}_mean" in known), "accuracy")
        text = formatting.spread(known.get(f"{name}_mean"), known.get(f"{name}_std"))
        ours, theirs = known.get("accuracy_mean"), known.get("printed_accuracy")
        away = "" if ours is None or theirs is None else f": {formatting.difference(ours - theirs)}"
        printed = "" if theirs is None else f"\n(paper {theirs:.2f}{away})"
    reached = known.get("reached")
    some = "" if reached is None or reached >= row["seeds"] else f" {formatting.reached(reached, row['seeds'])}"
    return text + some + printed


def caption(kind: str, aggregates: pd.DataFrame) -> str:
    """Say what the numbers of a table are.

    Args:
        kind: The kind of the experiment: ``sweep``, ``curves``, ``accuracy_table`` or ``delay_table``.
        aggregates: Its aggregates.
    """
    if not len(aggregates):
        return ""
    number = int(aggregates["seeds"].max())
    seeds = formatting.seeds(number)
    some = bool((aggregates["reached"] < aggregates["seeds"]).any())
    printed = any(str(name).startswith("printed_") and aggregates[name].notna().any() for name in aggregates)
    if kind == "delay_table":
        median = f"median over {seeds}" if number > 1 else f"of {seeds}"
        text = f"Raw total delay until the target accuracy is first reached: {median}"
        late = "n/m: n of m seeds reached it, the others count as infinitely late (>: at least)"
        compared = "in brackets: the paper's number"
    else:
        over = f"mean ± std over {seeds}" if number > 1 else f"of {seeds}"
        text = f"{quantity(aggregates)}: {over}, {_where(kind, aggregates)}"
        late = "n/m: n of m seeds got there without diverging, and the mean is over those"
        compared = "in brackets: the paper's number, and ours less that"
    return ". ".join([text, *([late] if some else []), *([compared] if printed else [])]) + "."


def quantity(aggregates: pd.DataFrame) -> str:
    """Name what a table of means shows: accuracy; in regression the distance to the optimum, else the loss.

    Args:
        aggregates: A row for each point and algorithm.

    Returns:
        The name, as figures and captions write it.

    >>> quantity(pd.DataFrame({"accuracy_mean": [float("nan")], "loss_mean": [0.3]}))
    'Loss'
    """
    for name, label in (("accuracy", "Accuracy"), ("optimality_error", "‖θ̄ − θ*‖²"), ("loss", "Loss")):
        if f"{name}_mean" in aggregates and aggregates[f"{name}_mean"].notna().any():
            return label
    return "Accuracy"


def _where(kind: str, aggregates: pd.DataFrame) -> str:
    """Where the runs of a table were read."""
    if kind == "accuracy_table":
        return "after numbers of iterations"
    if "delay" in aggregates:
        return f"where the raw total delay first reaches {formatting.delay(aggregates['delay'].iloc[0])}"
    if "budget" in aggregates and aggregates["budget"].isin(list(COST_COLUMNS)).any():
        known = aggregates[aggregates["budget"].isin(list(COST_COLUMNS))]
        costs = {(row["budget"], float(row["budget_value"])) for _, row in known.iterrows()}
        if len(costs) == 1 and len(known) == len(aggregates):
            at = Cost(*costs.pop())
            return f"where the {at.meaning} first reaches {at.number(at.value)}"
        return "where each run has spent the budget of its point"
    last = sorted({int(value) for value in aggregates["iteration"]})
    return f"after {formatting.count(last[0])} iterations" if len(last) == 1 else "after the last iteration of each run"


def _diverged(aggregates: pd.DataFrame, rows: Sequence[str]) -> list[str]:
    """Count the runs that diverged, by algorithm and point."""
    if "diverged" not in aggregates:
        return []
    lost = aggregates[aggregates["diverged"].fillna(0) > 0]
    places = []
    for _, row in lost.iterrows():
        at = ", ".join(f"{axis_name(name)}: {formatting.setting(row[name])}" for name in rows)
        count = formatting.reached(row["diverged"], row["seeds"])
        places.append(f"{NAMES.get(str(row['algorithm']), str(row['algorithm']))} {count}{f' at {at}' if at else ''}")
    more = f" and at {len(places) - 6} more" if len(places) > 6 else ""
    return [f"diverged: {'; '.join(places[:6])}{more}"] if places else []
