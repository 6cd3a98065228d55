"""Pictures of grids of studies: sweeps, delays to targets, accuracies after iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dspodfl.analysis import formatting
from dspodfl.analysis.figures import style
from dspodfl.analysis.figures.accuracy import budget_text
from dspodfl.analysis.figures.style import STYLE
from dspodfl.network import Budget

_TALLEST = 60.0
"""Inches: what is higher cannot be drawn."""


def sweep(table: pd.DataFrame, axes: list[str], title: str = "", budget: Budget | None = None) -> Figure:
    """Draw accuracies against what is varied: means over seeds, with a band or bars of one standard deviation.

    For regression, which has no accuracies, distances to the optimum take their place, or losses; as in the table.
    Numbers are joined by lines, categories are not. A row of panels for each value of further axes. Left, accuracy
    where the raw total delay first reaches the reading's (or at the end); right, at a normalized delay that all runs of
    the point reached. Open markers, with how many: points that not all seeds reached.

    Args:
        table: A row for each point and algorithm, with ``accuracy_mean``, ``accuracy_std`` (or ``loss_…``,
            ``optimality_error_…``), ``seeds``, ``reached``.
        axes: The columns of what is varied.
        title: A line over the figure.
        budget: What the runs were run to.

    Returns:
        The figure.
    """
    algorithms = [str(a) for a in dict.fromkeys(table["algorithm"])]
    rest = [axis for axis in axes[1:] if table[axis].nunique() > 1]
    groups = list(table.groupby(rest, sort=False)) if rest else [((), table)]
    measure, label, log_y = _measure(table)
    sides = [(measure, _where(table, budget))]
    if measure == "accuracy" and "normalized_mean" in table:  # which is an accuracy: regression has none
        sides.append(("normalized", "at a normalized delay that all runs of a point reach"))
    _, numeric = style.places(list(dict.fromkeys(table[axes[0]])))
    with mpl.rc_context(STYLE):
        each = min(2.9, _TALLEST / len(groups))
        figure = Figure(figsize=(4.6 * max(len(sides), 1) + 0.4, 0.9 + each * len(groups)), layout="constrained")
        grid = figure.subplots(len(groups), len(sides), sharey=True, squeeze=False)
        for row, (point, rows) in zip(grid, groups, strict=True):
            for axis, (column, side) in zip(row, sides, strict=True):
                _points(axis, rows, axes[0], column, algorithms)
                style.heading(axis, "; ".join(filter(None, (_point(rest, point), side))))
            row[0].set_ylabel(label)
            if log_y:
                row[0].set_yscale("log")
        for axis in grid[-1]:
            axis.set_xlabel(style.axis_name(axes[0]), parse_math=False)
        style.legend(figure, *style.handles(list(grid.ravel())), title)
        style.note(figure, *_sweep_notes(table, numeric))
    return figure


def _measure(table: pd.DataFrame) -> tuple[str, str, bool]:
    """What is drawn: accuracy; for regression the distance to the optimum where it is known, else the loss."""
    for column, label in (
        ("accuracy", "test accuracy,\nmean over clients"),
        ("optimality_error", "distance to the optimum\n‖θ̄ − θ*‖²"),
        ("loss", "test loss,\nmean over clients"),
    ):
        values = pd.to_numeric(table[f"{column}_mean"], errors="coerce") if f"{column}_mean" in table else pd.Series()
        if values.notna().any():
            return column, label, column == "optimality_error" and bool((values.dropna() > 0).all())
    return "accuracy", "test accuracy,\nmean over clients", False


def _where(table: pd.DataFrame, budget: Budget | None) -> str:
    """Where accuracies are read."""
    if "delay" in table and table["delay"].notna().any():
        return f"where the raw total delay first reaches {formatting.delay(float(table['delay'].dropna().iloc[0]))}"
    if "budget_value" in table and table["budget_value"].nunique() > 1:
        return "at the end of each run, the budget of its point"
    if budget is not None:
        return f"at the end of each run, its budget ({budget_text(budget)})"
    if "iteration" in table and table["iteration"].nunique() == 1:
        return f"after {formatting.count(table['iteration'].iloc[0])} iterations"
    return "at the end of each run"


def _sweep_notes(table: pd.DataFrame, numeric: bool) -> list[str]:
    seeds = int(table["seeds"].max()) if "seeds" in table and len(table) else 1
    notes = [style.spread_text(seeds, "band" if numeric else "bars")]
    if "reached" in table and (table["reached"] < table["seeds"]).any():
        notes.append("Open markers: not all seeds got there (n/m), the mean is over those that did.")
    return notes


def _points(axis: Axes, rows: pd.DataFrame, x: str, column: str, algorithms: Sequence[str]) -> None:
    """One line for each algorithm where the axis has numbers, points side by side where it has categories."""
    at, numeric = style.places(list(dict.fromkeys(rows[x])))
    others = style.custom(algorithms)
    for number, algorithm in enumerate(algorithms):
        mine = rows[(rows["algorithm"] == algorithm) & rows[f"{column}_mean"].notna()]
        line_style = style.line(algorithm, others)
        label = style.name(algorithm)
        if not len(mine):
            axis.plot([], [], label=f"{label} (no values)", **line_style)
            continue
        offset = 0.0 if numeric else style.dodge(number, len(algorithms))
        place = np.array([at[v] for v in mine[x]]) + offset
        mean = mine[f"{column}_mean"].to_numpy(float)
        std = np.nan_to_num(mine[f"{column}_std"].to_numpy(float))
        some = np.zeros(len(mine), bool)
        if column != "normalized" and "reached" in mine:
            some = (mine["reached"] < mine["seeds"]).to_numpy()
        if numeric:
            order = np.argsort(place, kind="stable")
            axis.plot(place[order], mean[order], label=label, **line_style)
            low, high = mean - std, mean + std
            if column in ("accuracy", "normalized"):
                low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
            axis.fill_between(
                place[order],
                (np.maximum(low, 1e-3 * mean) if column == "optimality_error" else low)[order],
                high[order],
                color=line_style["color"],
                alpha=0.13,
                linewidth=0,
            )
        else:
            axis.errorbar(
                place, mean, std, label=label, capsize=2, elinewidth=1.2, **(line_style | {"linestyle": "none"})
            )
        axis.plot(
            place[some],
            mean[some],
            linestyle="none",
            marker=line_style["marker"],
            color=line_style["color"],
            markerfacecolor="white",
            markersize=5,
            zorder=4,
        )
        for here, value, row in zip(place[some], mean[some], mine[some].to_dict("records"), strict=True):
            text = formatting.reached(row["reached"], row["seeds"])
            axis.annotate(text, (here, value), fontsize=6, xytext=(3, 4), textcoords="offset points")
    style.scale(axis, at, numeric)


_PARTS = ("processing", "transmission")
_LOG_FROM = 5.0


def delays(table: pd.DataFrame, axes: list[str], title: str = "", parts: pd.DataFrame | None = None) -> Figure:
    """Draw raw delays to target accuracies: the median total, and how it divides into processing and transmission.

    Two panels for each point. Left, the median total over seeds, with a line from quartile to quartile; an arrow is
    where half of the seeds' runs had ended without reaching the target. Right, the parts of that total, which add up to
    it: those of the run that has the median total (of the two in the middle, their mean).

    Args:
        table: A row for each point, target and algorithm, as ``readings.to_targets`` gives it.
        axes: The columns of what is varied.
        title: A line over the figure.
        parts: Index as the table's, columns ``processing`` and ``transmission``: the parts of the median run. Without
            them a total is divided in the ratio of the parts' own medians.

    Returns:
        The figure.
    """
    algorithms = [str(a) for a in dict.fromkeys(table["algorithm"])]
    targets = list(dict.fromkeys(table["target"]))
    rows = [(target, algorithm) for target in targets for algorithm in algorithms]
    divided = table.assign(share=_shares(table, parts))
    groups = list(divided.groupby(axes, sort=False)) if axes else [((), divided)]
    printed = "printed_total" in table and bool(table["printed_total"].notna().any())
    seeds = int(table["seeds"].max())
    with mpl.rc_context(STYLE):
        size = (1.6 + 5.4 * len(groups), min(1.1 + 0.34 * len(rows), _TALLEST))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(1, 2 * len(groups), sharey=True, squeeze=False, width_ratios=[3, 2] * len(groups))[0]
        left, right, log = _range(divided)
        for n, (point, some) in enumerate(groups):
            total, share = grid[2 * n], grid[2 * n + 1]
            found = some.set_index(["target", "algorithm"]).reindex(rows).apply(pd.to_numeric, errors="coerce")
            for y, (_, algorithm) in enumerate(rows):
                line_style = style.line(algorithm, style.custom(algorithms))
                _total(total, y, found.iloc[y], line_style, right, printed)
                _share(share, y, found.iloc[y], line_style["color"])
            if log:
                total.set_xscale("log")
                style.logarithmic(total.xaxis, left, right, formatting.delay)
            else:
                total.xaxis.set_major_formatter(lambda value, _: formatting.delay(value))
                total.locator_params(axis="x", nbins=5)
            total.set_xlim(left, right)
            total.set_xlabel("raw delay\n(an event takes 1/its rate; mean over clients)")
            style.heading(total, _point(axes, point))
            _share_axis(share)
        names = [style.name(a) + (f", to {formatting.setting(t)}" if len(targets) > 1 else "") for t, a in rows]
        grid[0].set_yticks(range(len(rows)), names, parse_math=False)
        grid[0].set_ylim(len(rows) - 0.5, -0.5)
        style.legend(figure, *_delay_legend(divided, printed, seeds), title)
        style.note(figure, *_delay_notes(targets, seeds, divided))
    return figure


def _shares(table: pd.DataFrame, parts: pd.DataFrame | None) -> np.ndarray:
    """The share of processing in each total."""
    if parts is not None:
        found = [parts[part].reindex(table.index).to_numpy(float) for part in _PARTS]
    else:
        found = [pd.to_numeric(table[f"{part}_median"], errors="coerce").to_numpy(float) for part in _PARTS]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(found[0] / (found[0] + found[1]))


def _range(table: pd.DataFrame) -> tuple[float, float, bool]:
    """The range of totals, arrows and printed numbers, and whether it is logarithmic; a quartile beyond is cut."""
    total = pd.to_numeric(table["total_median"], errors="coerce")
    values = [total, *(pd.to_numeric(table[c], errors="coerce") for c in ("printed_total",) if c in table)]
    if "total_least" in table:
        values.append(pd.to_numeric(table["total_least"], errors="coerce")[total.isna()])
    known = pd.concat(values)
    known = known[np.isfinite(known) & (known > 0)]
    if not len(known):
        return 0.0, 1.0, False
    low, high = float(known.min()), float(known.max())
    if high / low < _LOG_FROM:
        return 0.0, 1.12 * high, False
    return low / 1.6, high * 1.6, True


def _total(axis: Axes, y: int, row: pd.Series[Any], line_style: dict[str, Any], right: float, printed: bool) -> None:
    total, least = row["total_median"], row.get("total_least", np.nan)
    low, high = row.get("total_quartile1", np.nan), row.get("total_quartile3", np.nan)
    paint = line_style["color"]
    if np.isfinite(low):
        end = high if np.isfinite(high) else right
        axis.plot([low, end], [y, y], color=paint, alpha=0.45, linewidth=4, solid_capstyle="butt")
    if np.isfinite(total):
        axis.plot(total, y, marker=line_style["marker"], color=paint, markersize=7, linestyle="none", zorder=4)
    elif least > 0:
        axis.plot(least, y, marker=">", color=paint, fillstyle="none", markersize=7, linestyle="none", zorder=4)
    if printed:
        axis.plot(row["printed_total"], y, "x", color="#222222", markersize=6, zorder=5)


def _share(axis: Axes, y: int, row: pd.Series[Any], paint: str) -> None:
    share, total = row["share"], row["total_median"]
    text = formatting.delay(total) if np.isfinite(total) else formatting.delay_at_least(row.get("total_least"))
    if np.isfinite(total) and np.isfinite(share):
        axis.barh(y, share, 0.6, color=paint, linewidth=0)
        axis.barh(y, 1 - share, 0.6, left=share, facecolor="white", edgecolor=paint, hatch="/////", linewidth=0.8)
        text += f" = {share:.0%} + {1 - share:.0%}"
    if row["reached"] < row["seeds"]:
        text += f" ({formatting.reached(row['reached'], row['seeds'])} seeds)"
    axis.annotate(text, (1.04, y), va="center", fontsize=7, annotation_clip=False)


def _share_axis(axis: Axes) -> None:
    axis.set_xlim(0, 2.1)
    axis.set_xticks([0, 0.5, 1], ["0%", "50%", "100%"])
    axis.set_xlabel("parts of the median run's delay", loc="left")
    axis.grid(visible=False)
    axis.spines["bottom"].set_bounds(0, 1)


def _delay_legend(table: pd.DataFrame, printed: bool, seeds: int) -> tuple[list[Any], list[str]]:
    plain: dict[str, Any] = {"color": style.FAINT, "linestyle": "none", "markersize": 7}
    marks: list[tuple[Any, str]] = [
        (Line2D([], [], marker="o", **plain), "total, median over seeds" if seeds > 1 else "total")
    ]
    if seeds > 1:
        marks.append((Line2D([], [], color=style.FAINT, alpha=0.45, linewidth=4), "quartiles of the total"))
    if table["total_median"].isna().any():
        marks.append((Line2D([], [], marker=">", fillstyle="none", **plain), "total, at least"))
    if printed:
        marks.append((Line2D([], [], color="#222222", linestyle="", marker="x"), "total, printed in the paper"))
    marks.append((Patch(facecolor=style.FAINT), "processing (SGD steps)"))
    marks.append((Patch(facecolor="white", edgecolor=style.FAINT, hatch="/////"), "transmission"))
    return [handle for handle, _ in marks], [label for _, label in marks]


def _delay_notes(targets: Sequence[float], seeds: int, table: pd.DataFrame) -> list[str]:
    to = " and ".join(formatting.setting(target) for target in targets)
    notes = [f"Delay until the accuracy first reaches {to}, over {formatting.seeds(seeds)}."]
    if seeds > 1:
        notes.append(
            "Processing and transmission are those of the run with the median total, and add up to it; the median of "
            "each part alone would not."
        )
    if (table["reached"] < table["seeds"]).any():
        notes.append("A run that never reaches the target counts as infinitely late; n/m: n of m reached it.")
    return notes


def _point(axes: Sequence[str], point: Any) -> str:
    """The values of a group, by name."""
    values = point if isinstance(point, tuple) else (point,)
    return ", ".join(f"{style.axis_name(a)}: {formatting.setting(v)}" for a, v in zip(axes, values, strict=True))


def accuracies(table: pd.DataFrame, axes: list[str], title: str = "") -> Figure:
    """Draw accuracies after numbers of iterations, with the printed numbers as crosses where there are any.

    Args:
        table: A row for each point, algorithm and iteration, as ``readings.at_iterations`` gives it.
        axes: The columns of what is varied.
        title: A line over the figure.

    Returns:
        The figure.
    """
    algorithms = [str(a) for a in dict.fromkeys(table["algorithm"])]
    others = style.custom(algorithms)
    iterations = list(dict.fromkeys(table["iteration"]))
    groups = list(table.groupby(axes, sort=False)) if axes else [((), table)]
    printed = "printed_accuracy" in table and bool(table["printed_accuracy"].notna().any())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.8 * len(groups) + 1.4, 3.6), layout="constrained")
        panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
        for axis, (point, rows) in zip(panels, groups, strict=True):
            for n, algorithm in enumerate(algorithms):
                mine = rows[rows["algorithm"] == algorithm].set_index("iteration").reindex(iterations)
                at = np.arange(len(iterations)) + style.dodge(n, len(algorithms))
                mean, std = (pd.to_numeric(mine[f"accuracy_{c}"]).to_numpy(float) for c in ("mean", "std"))
                line_style = style.line(algorithm, others) | {"linestyle": "none"}
                axis.errorbar(
                    at, mean, np.nan_to_num(std), label=style.name(algorithm), capsize=2, elinewidth=1.2, **line_style
                )
                if printed:
                    axis.plot(
                        at, mine["printed_accuracy"].to_numpy(float), "x", color="#222222", markersize=6, zorder=5
                    )
            axis.set_xticks(range(len(iterations)), [formatting.count(k) for k in iterations])
            axis.set_xlim(-0.5, len(iterations) - 0.5)
            axis.set_xlabel("iterations")
            style.heading(axis, _point(axes, point))
        panels[0].set_ylabel("test accuracy, mean over clients")
        drawn, labels = style.handles(panels)
        if printed:
            drawn.append(Line2D([], [], color="#222222", linestyle="", marker="x"))
            labels.append("printed in the paper")
        style.legend(figure, drawn, labels, title)
        seeds = int(table["seeds"].max()) if "seeds" in table else 1
        style.note(figure, style.spread_text(seeds, "bars"))
    return figure
