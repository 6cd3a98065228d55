"""Pictures of runs: accuracy (in regression, the error) against what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dspodfl import network
from dspodfl.analysis import formatting
from dspodfl.analysis.figures import style
from dspodfl.analysis.figures.style import LARGEST, STYLE
from dspodfl.network import Budget

_POINTS = 400
_LOG_FROM = 5.0
"""Where the algorithms' ends differ by this factor the axis is logarithmic: no curve is a vertical line."""
_DECADES = 1e3
"""A logarithmic axis shows at most this factor below the first end and beyond the median one."""
_OVERSHOOT = 1.1
_MARKED = 5
"""Ends of single runs are marked up to this number of seeds; more would hide the curves."""

COSTS = {kind.column: kind.axis for kind in network.COSTS.values()}
"""What runs are drawn against: column -> its name, and what it means."""


def budget_text(budget: Budget) -> str:
    """Name a budget: ``total delay, raw: 10,000``."""
    text = formatting.size(budget.value) if budget.column == "bytes" else formatting.delay(budget.value)
    return f"{COSTS[budget.column][0]}: {text}"


def curve(runs: list[pd.DataFrame], x: str, y: str, *, log: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and standard deviation over runs of y against x, on the range that all runs cover.

    Each run is interpolated linearly between its evaluated points, in x itself. A run that diverged would end the
    range where it did: the others are averaged without it, and it is taken only where there is no other.

    Args:
        runs: The rows of each run.
        x: The column along which runs are averaged.
        y: The column that is averaged.
        log: Whether the points are equally spaced on a logarithmic axis; they then begin at the first positive x.

    Returns:
        Points, means and standard deviations (ddof 1; zero for one run), each (400,); empty where there is nothing.
    """
    sound = [run for run in runs if not run["diverged"].any()]
    clean = [rows for run in sound or runs if len(rows := _finite(run, x, y))]
    if not clean:
        return np.array([]), np.array([]), np.array([])
    end = min(float(run[x].iloc[-1]) for run in clean)
    positive = [float(run.loc[run[x] > 0, x].min()) for run in clean if (run[x] > 0).any()]
    start = min(positive, default=0.0) if log else 0.0
    start = min(end, start)
    grid = np.geomspace(start, end, _POINTS) if log and start > 0 else np.linspace(start, end, _POINTS)
    values = np.array([np.interp(grid, run[x].to_numpy(float), run[y].to_numpy(float)) for run in clean])
    std = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(grid))
    return grid, values.mean(axis=0), std


def _thinned(runs: list[pd.DataFrame], x: str, y: str, *, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over those runs that go further than the shortest, as far as half of them do."""
    clean = [rows for run in runs if len(rows := _finite(run, x, y))]
    ends = np.sort([float(run[x].iloc[-1]) for run in clean])
    start, end = (ends[0], ends[len(ends) // 2]) if len(ends) > 1 else (0.0, 0.0)
    if not end > start * (1 + 1e-9):
        return np.array([]), np.array([])
    grid = np.geomspace(start, end, _POINTS // 2) if log and start > 0 else np.linspace(start, end, _POINTS // 2)
    values = np.array([np.interp(grid, run[x].to_numpy(float), run[y].to_numpy(float), right=np.nan) for run in clean])
    return grid, np.nanmean(values, axis=0)


def _finite(run: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """The rows that can be drawn, in order of x."""
    return run.loc[(run[x] < LARGEST) & (run[y] < LARGEST)].sort_values([x, "iteration"])


@dataclass(eq=False)
class _Runs:
    """The runs of one algorithm: those that are averaged, and those that are only marked."""

    algorithm: str
    averaged: list[pd.DataFrame]
    apart: list[pd.DataFrame]
    label: str
    overshoot: float = 0.0
    """The largest cost of a last row, in budgets."""


@dataclass(eq=False)
class _Panel:
    """One panel: its axis, and what was drawn into it that the note explains."""

    axis: Axes
    column: str
    limit: float | None
    ends: dict[str, float] = field(default_factory=dict)
    """Where half of the runs of an algorithm have ended."""
    thin: int = 0
    dots: int = 0
    crosses: int = 0
    clipped: int = 0


def accuracy_vs_delay(metrics: pd.DataFrame, title: str = "", budget: Budget | None = None) -> Figure:
    """Draw accuracy (in regression, the error) against raw and normalized total delay.

    With a budget its own panel spans it from 0 for every algorithm, and a run's last row, the first at or beyond the
    budget, is drawn at the budget: the curve ends at the number that tables call final. The other panels span what was
    reached. Runs that ended before the budget are not averaged with those that did not: they are counted in the
    legend, and a cross marks where they ended.

    Args:
        metrics: The rows of ``metrics.parquet``.
        title: A line over the figure.
        budget: What the runs were run to, with ``column`` and ``value``; None where all have one number of iterations.

    Returns:
        The figure: a panel for bytes or iterations where these are the budget, then raw and normalized delay.
    """
    y, label, log_y = _quantity(metrics)
    algorithms = [str(a) for a in dict.fromkeys(metrics["algorithm"])]
    others = style.custom(algorithms)
    groups = [_grouped(a, metrics[metrics["algorithm"] == a], budget) for a in algorithms]
    columns = list(dict.fromkeys((*([budget.column] if budget else []), "delay_total", "delay_total_normalized")))
    if budget is not None and budget.column == "delay_total_normalized":
        columns.reverse()
    with mpl.rc_context(STYLE):
        # The last tick of a panel and the first of the next stay apart.
        figure = Figure(figsize=(4.6 * len(columns), 3.7), layout=ConstrainedLayoutEngine(wspace=0.06))
        axes = figure.subplots(1, len(columns), sharey=True)
        panels = [
            _Panel(axis, column, float(budget.value) if budget and budget.column == column else None)
            for axis, column in zip(axes, columns, strict=True)
        ]
        for panel in panels:
            _draw(panel, groups, others, y, log_y)
        axes[0].set_ylabel(label)
        style.legend(figure, *style.handles(axes), title)
        style.note(figure, *_notes(metrics, groups, panels, budget))
    return figure


def _quantity(metrics: pd.DataFrame) -> tuple[str, str, bool]:
    """What to draw: accuracy, or for regression the optimality error where known, else the loss."""
    if metrics["accuracy"].notna().any():
        return "accuracy", "test accuracy, mean over clients", False
    if metrics["optimality_error"].notna().any():
        return "optimality_error", "distance to the optimum ‖θ̄ − θ*‖²", True
    return "loss", "test loss, mean over clients", False


def _grouped(algorithm: str, rows: pd.DataFrame, budget: Budget | None) -> _Runs:
    runs = [_ended(run, budget) for _, run in rows.groupby("seed")]
    diverged = [run for run in runs if run["diverged"].any()]
    sound = [run for run in runs if not run["diverged"].any()]
    early = [run for run in sound if budget and float(run[budget.column].max()) < budget.value * (1 - 1e-12)]
    complete = [run for run in sound if not any(run is other for other in early)]
    averaged = complete or sound or runs
    notes = [
        f"{len(some)} of {len(runs)} {what}"
        for some, what in ((diverged, "diverged"), (early, "ended before the budget"))
        if some
    ]
    label = style.name(algorithm) + (f" ({', '.join(notes)})" if notes else "")
    apart = [run for run in (*diverged, *early) if not any(run is other for other in averaged)]
    ends = [float(run[budget.column].max()) / budget.value for run in complete] if budget else []
    return _Runs(algorithm, averaged, apart, label, max(ends, default=0.0))


def _ended(run: pd.DataFrame, budget: Budget | None) -> pd.DataFrame:
    """A run up to its last row: the first at or beyond the budget."""
    run = run.sort_values("iteration")
    if budget is None:
        return run
    beyond = np.flatnonzero((run[budget.column] >= budget.value).to_numpy())
    return run.iloc[: beyond[0] + 1] if len(beyond) else run


def _draw(panel: _Panel, groups: Sequence[_Runs], others: Sequence[str], y: str, log_y: bool) -> None:
    axis, x = panel.axis, panel.column
    placed = {group.algorithm: [_placed(run, panel) for run in group.averaged] for group in groups}
    panel.ends = {a: end for a, runs in placed.items() if (end := _middle_end(runs, x, y)) > 0}
    log = panel.limit is None and len(panel.ends) > 0 and _ratio(panel.ends.values()) >= _LOG_FROM
    left, right = _window(panel, placed, log)
    for group in groups:
        line_style = style.line(group.algorithm, others)
        grid, mean, std = curve(placed[group.algorithm], x, y, log=log)
        every = (5 + 11 * (groups.index(group) % 5), 55)
        axis.plot(grid, mean, label=group.label, markevery=every, **line_style)
        if not len(grid):
            continue
        _band(axis, grid, mean, std, line_style, y, log_y)
        further, rest = _thinned(placed[group.algorithm], x, y, log=log)
        axis.plot(
            further, rest, color=line_style["color"], linewidth=0.8, linestyle=line_style["linestyle"], label="_rest"
        )
        panel.thin += len(further) > 0
        if grid[-1] > right * (1 + 1e-9):
            panel.clipped += 1
            _mark(axis, right, float(np.interp(right, grid, mean)), line_style, ">")
        for run in placed[group.algorithm] if len(placed[group.algorithm]) <= _MARKED else ():
            _end(panel, run, y, line_style, (float(grid[-1]), right), ".")
        for run in group.apart:
            _end(panel, _placed(run, panel), y, line_style, (-1.0, right), "x")
    name, meaning = COSTS[x]
    axis.set_xlabel(f"{name}\n({meaning})" if meaning else name)
    if log:
        axis.set_xscale("log")
        if 0 < left < right:
            style.logarithmic(axis.xaxis, left, right, formatting.size if x == "bytes" else None)
    if right > left:
        axis.set_xlim(left, right)
    if x in ("bytes", "iteration") and not log:
        axis.xaxis.set_major_formatter(lambda value, _: formatting.size(value) if x == "bytes" else f"{value:,.0f}")
    elif not log:
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    if not log:
        axis.locator_params(axis="x", nbins=6)
    if log_y:
        axis.set_yscale("log")


def _placed(run: pd.DataFrame, panel: _Panel) -> pd.DataFrame:
    """A run whose last row is at the budget and not beyond, in the budget's own panel."""
    if panel.limit is None:
        return run
    return run.assign(**{panel.column: run[panel.column].clip(upper=panel.limit)})


def _middle_end(runs: list[pd.DataFrame], x: str, y: str) -> float:
    ends = sorted(float(rows[x].iloc[-1]) for run in runs if len(rows := _finite(run, x, y)))
    return ends[len(ends) // 2] if ends else 0.0


def _ratio(ends: Any) -> float:
    return float(max(ends) / min(ends))


def _window(panel: _Panel, placed: Mapping[str, list[pd.DataFrame]], log: bool) -> tuple[float, float]:
    """The range of the axis: no single huge delay takes it all."""
    if panel.limit is not None:
        return 0.0, panel.limit
    ends = list(panel.ends.values())
    if not ends:
        return 0.0, 0.0
    x = panel.column
    last = [float(run[x].max()) for runs in placed.values() for run in runs if len(run)]
    if not log:
        return 0.0, min(max(last), 1.25 * max(ends))
    firsts = [float(run.loc[run[x] > 0, x].min()) for runs in placed.values() for run in runs if (run[x] > 0).any()]
    right = min(max(last), _DECADES * float(np.median(ends)), 2 * max(ends))
    return max(min(firsts), min(ends) / _DECADES), right


def _band(
    axis: Axes, grid: np.ndarray, mean: np.ndarray, std: np.ndarray, line_style: Mapping[str, Any], y: str, log_y: bool
) -> None:
    low, high = mean - std, mean + std
    if log_y:
        low = np.maximum(low, mean * 1e-3)
    if y == "accuracy":
        low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
    axis.fill_between(grid, low, high, color=line_style["color"], alpha=0.13, linewidth=0)


def _end(
    panel: _Panel,
    run: pd.DataFrame,
    y: str,
    line_style: Mapping[str, Any],
    bounds: tuple[float, float],
    marker: str,
) -> None:
    """Mark where a run ends, if that is beyond its curve's end; by an arrow at the edge if it is beyond the axis."""
    rows = _finite(run, panel.column, y)
    if not len(rows):
        return
    at, value = float(rows[panel.column].iloc[-1]), float(rows[y].iloc[-1])
    drawn_to, right = bounds
    if at <= drawn_to * (1 + 1e-9):
        return
    if at > right * (1 + 1e-9):
        panel.clipped += 1
        at, marker = right, ">"
    elif marker == "x":
        panel.crosses += 1
    else:
        panel.dots += 1
    _mark(panel.axis, at, value, line_style, marker)


def _mark(axis: Axes, at: float, value: float, line_style: Mapping[str, Any], marker: str) -> None:
    axis.plot(
        [at],
        [value],
        marker,
        color=line_style["color"],
        markersize=5 if marker == "." else 6,
        zorder=4,
        clip_on=False,
        label="_end",
    )


def _notes(
    metrics: pd.DataFrame, groups: Sequence[_Runs], panels: Sequence[_Panel], budget: Budget | None
) -> list[str]:
    """What the figure shows, in sentences."""
    notes = [style.spread_text(int(metrics["seed"].nunique()))]
    if budget is not None:
        notes.append(f"Runs end where they reach the budget ({budget_text(budget)}).")
    if any(panel.thin for panel in panels):
        notes.append("Curves go as far as all seeds do; thin: the mean over those that go on, at least half of them.")
    if any(panel.dots for panel in panels):
        notes.append("Dots: ends of single runs.")
    if any(panel.crosses for panel in panels):
        notes.append("Crosses: ends of runs that diverged or ended early; the mean is without them.")
    if any(panel.clipped for panel in panels):
        notes.append("Arrows at the edge: runs that end beyond the axis.")
    far = max(groups, key=lambda group: group.overshoot)
    if far.overshoot > _OVERSHOOT:
        most = f"{style.name(far.algorithm).strip()}, {formatting.times(far.overshoot)} the budget"
        notes.append(f"Last rows beyond the budget are drawn at it (the farthest: {most}).")
    return notes
