"""Figures of the theory: the bound over a measured run, and how it moves with a setting."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dspodfl.plots import COLOURS, LARGEST, NAMES, STYLE, colour

MEASURED, EXACT, PRINTED, GAP = "#D55E00", "#0072B2", "#CC79A7", "#009E73"
LABELS = {"optimality_error": "‖θ̄ − θ*‖²", "consensus_error": "‖Θ − 1θ̄‖²"}
LINES = {
    "bound": ("exact recursion ν ← Φν + Ψ", EXACT, "-", 1.6),
    "printed": ("printed closed form, not a bound", PRINTED, "--", 1.4),
    "gap": ("gap (I − Φ)⁻¹Ψ", GAP, ":", 1.4),
}
_FAMILY = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


def course(table: pd.DataFrame, title: str = "") -> Figure:
    """Errors against iterations, a row of panels an algorithm: measured mean and 2 standard errors, bounds, gap.

    Columns: algorithm, iteration, and for both errors <error>_bound, _printed, _gap, and, where it was measured,
    <error> and <error>_error.
    """
    algorithms = list(dict.fromkeys(table["algorithm"]))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.7 + 2.7 * len(algorithms)), layout="constrained")
        grid = figure.subplots(len(algorithms), 2, squeeze=False, sharex=True)
        for row, algorithm in zip(grid, algorithms, strict=True):
            rows = table[table["algorithm"] == algorithm]
            for axis, (name, label) in zip(row, LABELS.items(), strict=True):
                _errors(axis, rows, name)
                axis.set_title(f"{NAMES.get(algorithm, algorithm)}: {label}", loc="left", fontsize=9)
            row[0].set_ylabel("squared error")
        for axis in grid[-1]:
            axis.set_xlabel("iteration")
        _legend(figure, grid.ravel(), title)
    return figure


def _errors(axis: Any, rows: pd.DataFrame, name: str) -> None:
    k = rows["iteration"].to_numpy(float)
    drawn = False
    for line, (label, paint, style, width) in LINES.items():
        y = _clean(rows.get(f"{name}_{line}"), len(k))
        if np.isfinite(y).any():
            axis.plot(k, y, style, color=paint, linewidth=width, label=label)
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


PANELS = {
    "rho_tilde": ("ρ̃, contraction of mixing", False),
    "largest_rate": ("largest α with ρ(Φ) < 1", True),
    "radius": ("ρ(Φ), linear rate", False),
    "gap_optimality": ("gap of ‖θ̄ − θ*‖²", True),
    "gap_consensus": ("gap of ‖Θ − 1θ̄‖²", True),
}
"""Columns of a sweep that are drawn, what they are called, and whether their axis is logarithmic."""


def sweep(table: pd.DataFrame, axes: list[str], title: str = "") -> Figure:
    """Columns of a sweep against its first axis; a line for each algorithm and value of the other axes."""
    keys = ["algorithm", *axes[1:]]
    moving = {name for name in PANELS if (table.groupby(keys)[name].nunique() > 1).any()}
    shown = [name for name in PANELS if name in moving] or ["rho_tilde"]
    algorithms = list(dict.fromkeys(table["algorithm"]))
    others = [a for a in algorithms if a not in COLOURS]
    rest = axes[1:]
    values = list(dict.fromkeys(table[axes[0]]))
    numeric = all(isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in values)
    place = {v: float(v) if numeric else float(n) for n, v in enumerate(values)}
    with mpl.rc_context(STYLE):
        columns = 2 if len(shown) == 4 else min(3, len(shown))
        height = -(-len(shown) // columns)
        figure = Figure(figsize=(3.4 * columns + 0.4, 0.8 + 2.8 * height), layout="constrained")
        grid = figure.subplots(height, columns, squeeze=False).ravel()
        for axis, name in zip(grid, shown, strict=False):
            label, log = PANELS[name]
            for n, (point, rows) in enumerate(table.groupby(keys, sort=False)):
                algorithm, *where = (str(part) for part in point)
                words = ", ".join(f"{key} = {value}" for key, value in zip(rest, where, strict=True))
                own = NAMES.get(algorithm, algorithm) if len(algorithms) > 1 or not words else ""
                paint = _FAMILY[n % len(_FAMILY)] if rest else colour(algorithm, others)
                y = rows[name].to_numpy(float)
                y = np.where(y > 0, y, np.nan) if log else y
                x = [place[v] for v in rows[axes[0]]]
                axis.plot(
                    x, y, "o-", color=paint, markersize=3.5, linewidth=1.5, label=", ".join(filter(None, (own, words)))
                )
            positive = table.loc[table[name] > 0, name]
            if log and len(positive) and positive.max() / positive.min() >= 5:
                axis.set_yscale("log")
            if not numeric:
                axis.set_xticks(list(place.values()), [str(v) for v in values])
            elif min(place.values()) > 0 and max(place.values()) / min(place.values()) >= 20:
                axis.set_xscale("log")
            axis.set_title(label, loc="left", fontsize=9)
            axis.set_xlabel(axes[0])
        for axis in grid[len(shown) :]:
            axis.set_axis_off()
        _legend(figure, grid, title)
    return figure


def _legend(figure: Figure, axes: Any, title: str) -> None:
    """One legend below the title for all panels."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=8, color="#555555")
    legend = figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=min(4, max(1, len(found)))
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
