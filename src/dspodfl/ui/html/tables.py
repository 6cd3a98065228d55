"""Tables of a page: those that the terminal shows, and those of the paper's kinds with their parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from dspodfl.analysis import Column, Row, Table, comparison, formatting, median_run
from dspodfl.analysis.figures import axis_head, style
from dspodfl.experiments import Outcome, outcome_table


def of_outcome(outcome: Outcome) -> list[Table]:
    """Return the tables of a sweep, or of a figure or table of the paper."""
    if outcome.kind == "delay_table":
        return [delay_table(outcome)]
    found = [replace(outcome_table(outcome), title="")]  # the page has the title already
    if "normalized_mean" in outcome.aggregates and outcome.aggregates["normalized_mean"].notna().any():
        found.append(_normalized(outcome))
    return found


def of_run(metrics: pd.DataFrame, config: Mapping[str, Any], study: Mapping[str, Any]) -> Table:
    """Return the comparison of a run's algorithms, as the terminal shows it."""
    return comparison.table(comparison.compare(metrics, config, study), "", config)


def _normalized(outcome: Outcome) -> Table:
    aggregates = outcome.aggregates
    algorithms = [str(name) for name in dict.fromkeys(aggregates["algorithm"])]
    keys = [*outcome.axes, "normalized_delay"]
    points: dict[tuple[str, ...], dict[str, str]] = {}
    for row in aggregates.to_dict("records"):
        point = tuple(formatting.delay(row[k]) if k == "normalized_delay" else formatting.setting(row[k]) for k in keys)
        text = formatting.spread(row["normalized_mean"], row["normalized_std"])
        points.setdefault(point, {})[str(row["algorithm"])] = text
    rows = tuple(
        Row((*point, *(cells.get(a, formatting.MISSING) for a in algorithms))) for point, cells in points.items()
    )
    heads = [Column(axis_head(axis), left=True) for axis in outcome.axes] + [Column("normalized delay", left=True)]
    caption = (
        "Accuracy at the largest normalized delay that all runs of a point reach: mean ± standard deviation over "
        f"{formatting.seeds(int(aggregates['seeds'].max()))}."
    )
    return Table("", (*heads, *(Column(style.name(a)) for a in algorithms)), rows, "", caption)


def delay_table(outcome: Outcome) -> Table:
    """Return the delays to targets: the median total, and the parts of the run that has it, which add up."""
    aggregates = outcome.aggregates
    parts = median_run.parts(outcome.metrics, outcome.axes, aggregates)
    printed = [p for p in median_run.PARTS if f"printed_{p}" in aggregates and aggregates[f"printed_{p}"].notna().any()]
    rows = []
    for index, row in zip(aggregates.index, aggregates.to_dict("records"), strict=True):
        cells = [formatting.setting(row[axis]) for axis in outcome.axes]
        cells += [formatting.setting(row["target"]), style.name(str(row["algorithm"]))]
        for part in median_run.PARTS:
            value = float(parts.loc[index, part])
            cells.append(_delay(row, part, value) + _printed(row, part, value))
        cells.append(formatting.reached(row["reached"], row["seeds"]))
        rows.append(Row(tuple(cells)))
    columns = [Column(axis_head(axis), left=True) for axis in outcome.axes]
    columns += [Column("to accuracy", left=True), Column("algorithm", left=True)]
    columns += [Column(part) for part in (*median_run.PARTS, "reached")]
    seeds = int(aggregates["seeds"].max())
    caption = (
        f"Raw delay until the accuracy is first reached, over {formatting.seeds(seeds)}. Total: median [quartiles]. "
        "Processing and transmission: those of the run with the median total, so that they add up to it. A run that "
        "never got there is infinitely late; > where the runs of half of the seeds had ended without it."
    )
    if printed:
        caption += " Below it, the number printed in the paper, and ours as a multiple of it."
    return Table("", tuple(columns), tuple(rows), "", caption)


def _delay(row: Mapping[Any, Any], part: str, value: float) -> str:
    if not formatting.is_number(row["total_median"]):
        return formatting.delay_at_least(row.get("total_least")) if part == "total" else formatting.MISSING
    if part != "total":
        return formatting.delay(value)
    found = {name: row.get(f"total_{name}") for name in ("median", "quartile1", "quartile3")}
    return formatting.quartiles(found, int(row["seeds"]))


def _printed(row: Mapping[Any, Any], part: str, value: float) -> str:
    theirs = row.get(f"printed_{part}")
    if not formatting.is_number(theirs):
        return ""
    over = f" ({formatting.times(value / theirs)})" if formatting.is_number(value) and theirs else ""
    return f"\npaper {formatting.delay(theirs)}{over}"
