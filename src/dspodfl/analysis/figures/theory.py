"""Figures of the theory: the bound next to a measured run, and how it changes with a setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dspodfl.analysis import formatting
from dspodfl.analysis.figures import style
from dspodfl.analysis.figures.style import LARGEST, STYLE

MEASURED, EXACT, PRINTED, GAP = "#D55E00", "#0072B2", "#CC79A7", "#009E73"
LABELS = {"optimality_error": "‖θ̄ − θ*‖²", "consensus_error": "‖Θ − 1θ̄‖²"}
"""Errors that have a bound, by column, as they are written in figures."""
LINES = {
    "bound": ("exact recursion ν ← Φν + Ψ", EXACT, "-", 1.6),
    "printed": ("printed closed form, not a bound", PRINTED, "--", 1.4),
    "gap": ("gap (I − Φ)⁻¹Ψ", GAP, ":", 1.4),
}
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.2)), (0, (5, 2, 1, 2)), (0, (9, 3)), (0, (2, 3)))
"""The values of a second axis."""


def bound_trajectory(table: pd.DataFrame, title: str = "") -> Figure:
    """Draw errors against iterations: the measured mean with 2 standard errors, bounds and gap.

    Args:
        table: A row for each algorithm and iteration, with the columns ``algorithm``, ``iteration`` and for both errors
            ``<error>_bound``, ``_printed`` and ``_gap``; where it was measured, also ``<error>`` and ``<error>_error``.
        title: A line over the figure.

    Returns:
        The figure: a row of two panels for each algorithm.
    """
    algorithms = list(dict.fromkeys(table["algorithm"]))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.7 + 2.7 * len(algorithms)), layout="constrained")
        grid = figure.subplots(len(algorithms), 2, squeeze=False, sharex=True)
        for row, algorithm in zip(grid, algorithms, strict=True):
            rows = table[table["algorithm"] == algorithm]
            for axis, (name, label) in zip(row, LABELS.items(), strict=True):
                _errors(axis, rows, name)
                axis.set_ylabel(label)
                style.heading(axis, style.name(str(algorithm)))
        for axis in grid[-1]:
            axis.set_xlabel("iteration")
        style.legend(figure, *style.handles(list(grid.ravel())), title)
        measured = any(name in table and table[name].notna().any() for name in LABELS)
        style.note(figure, "Band: ±2 standard errors of the measured mean over seeds." if measured else "")
    return figure


def _errors(axis: Any, rows: pd.DataFrame, name: str) -> None:
    k = rows["iteration"].to_numpy(float)
    drawn = False
    for line, (label, paint, dash, width) in LINES.items():
        y = _clean(rows.get(f"{name}_{line}"), len(k))
        if np.isfinite(y).any():
            axis.plot(k, y, dash, color=paint, linewidth=width, label=label)
            drawn = True
    y = _clean(rows.get(name), len(k))
    if np.isfinite(y).any():
        error = rows[f"{name}_error"].to_numpy(float)
        axis.plot(k, y, color=MEASURED, linewidth=2.0, label="measured, mean over seeds", zorder=3)
        axis.fill_between(k, np.maximum(y - 2 * error, y * 1e-2), y + 2 * error, color=MEASURED, alpha=0.2, linewidth=0)
        drawn = True
    if drawn:
        axis.set_yscale("log")
    else:
        axis.annotate("no bound, nothing measured", (0.5, 0.5), xycoords="axes fraction", ha="center", color="#555555")


def _clean(values: pd.Series | None, count: int) -> np.ndarray:
    """Numbers that a logarithmic axis can show."""
    y = np.full(count, np.nan) if values is None else values.to_numpy(float).copy()
    with np.errstate(invalid="ignore"):
        y[~((y > 0) & (y < LARGEST))] = np.nan
    return y


Panels = Mapping[str, tuple[str, bool]]
"""Columns of a sweep that are drawn: the label of each, and whether its axis may be logarithmic."""


def bound_sweep(table: pd.DataFrame, axes: list[str], panels: Panels, title: str = "") -> Figure:
    """Draw columns of a sweep against its first axis.

    Colour and marker are those of the algorithm, as in every figure; dashes tell the values of further axes apart.
    Categories are not joined by lines.

    Args:
        table: A row for each point and algorithm.
        axes: The columns of what is varied.
        panels: The columns that are drawn, with their labels (`dspodfl.theory.assess.BOUND_PANELS`).
        title: A line over the figure.

    Returns:
        The figure: a panel for each of them that changes over the grid; the first where none does.
    """
    rest = axes[1:]
    keys = ["algorithm", *rest]
    shown = [name for name in panels if (table.groupby(keys)[name].nunique() > 1).any()] or list(panels)[:1]
    at, numeric = style.places(list(dict.fromkeys(table[axes[0]])))
    points = list(dict.fromkeys(tuple(row) for row in table[rest].itertuples(index=False))) if rest else [()]
    with mpl.rc_context(STYLE):
        columns = 2 if len(shown) == 4 else min(3, len(shown))
        height = -(-len(shown) // columns)
        figure = Figure(figsize=(max(6.0, 3.5 * columns + 0.4), 0.9 + 2.7 * height), layout="constrained")
        grid = figure.subplots(height, columns, squeeze=False).ravel()
        for axis, name in zip(grid, shown, strict=False):
            _quantity(axis, table, name, panels[name], (axes[0], rest), (at, numeric), points)
        for axis in grid[len(shown) :]:
            axis.set_axis_off()
        drawn, labels = _sweep_legend(table, rest, points, numeric)
        style.legend(figure, drawn, labels, title)
        style.note(figure, "Computed from the theorems, worst of the seeds; nothing is trained.")
    return figure


def _quantity(
    axis: Any,
    table: pd.DataFrame,
    name: str,
    panel: tuple[str, bool],
    columns: tuple[str, list[str]],
    placed: tuple[dict[Any, float], bool],
    points: list[tuple[Any, ...]],
) -> None:
    """One panel: a line for each algorithm and point of the further axes."""
    (first, rest), (at, numeric), (label, log) = columns, placed, panel
    algorithms = [str(a) for a in dict.fromkeys(table["algorithm"])]
    groups = list(table.groupby(["algorithm", *rest], sort=False))
    for number, (key, rows) in enumerate(groups):
        algorithm, *where = key if isinstance(key, tuple) else (key,)
        line_style = _line_style(str(algorithm), algorithms, points.index(tuple(where)), len(points))
        y = rows[name].to_numpy(float)
        y = np.where(np.isfinite(y) & (np.abs(y) < LARGEST) & ((y > 0) | (not log)), y, np.nan)
        x = np.array([at[v] for v in rows[first]])
        if numeric:
            order = np.argsort(x, kind="stable")
            axis.plot(x[order], y[order], **line_style)
        else:
            axis.plot(x + style.dodge(number, len(groups)), y, **(line_style | {"linestyle": "none"}))
    positive = table.loc[table[name] > 0, name]
    if log and len(positive) and positive.max() / positive.min() >= 5:
        axis.set_yscale("log")
    style.scale(axis, at, numeric)
    axis.set_ylabel(label)
    axis.set_xlabel(style.axis_name(first), parse_math=False)


def _line_style(algorithm: str, algorithms: list[str], point: int, points: int) -> dict[str, Any]:
    """The line of an algorithm at a point of the further axes: its dashes, and lighter from point to point."""
    line_style = style.line(algorithm, style.custom(algorithms))
    if points > 1:
        line_style["linestyle"] = _DASHES[point % len(_DASHES)]
        line_style["alpha"] = 1.0 - 0.55 * point / (points - 1)
    return line_style


def _sweep_legend(
    table: pd.DataFrame, rest: list[str], points: list[tuple[Any, ...]], numeric: bool
) -> tuple[list[Any], list[str]]:
    """Algorithms first, by colour and marker; then the points of further axes, by dashes."""
    algorithms = [str(a) for a in dict.fromkeys(table["algorithm"])]
    drawn, labels = [], []
    for algorithm in algorithms:
        line_style = style.line(algorithm, style.custom(algorithms))
        dash = "none" if not numeric else "-" if len(points) > 1 else line_style["linestyle"]
        drawn.append(Line2D([], [], **(line_style | {"linestyle": dash})))
        labels.append(style.name(algorithm))
    for n, point in enumerate(points if len(points) > 1 else ()):
        line_style = _line_style(algorithms[0], algorithms, n, len(points)) | {"color": "#333333"}
        drawn.append(Line2D([], [], **(line_style if numeric else line_style | {"linestyle": "none", "marker": "o"})))
        text = (f"{style.axis_name(key)}: {formatting.setting(value)}" for key, value in zip(rest, point, strict=True))
        labels.append(", ".join(text))
        if numeric:
            drawn[-1].set_marker("")
    return drawn, labels
