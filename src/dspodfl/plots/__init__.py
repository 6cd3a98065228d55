"""Figures in the house style, from the tables of a result."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Literal

import matplotlib as mpl
import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

COLOURS = {
    "dspodfl": "#D55E00",
    "dgd": "#0072B2",
    "rg": "#009E73",
    "sporadic_sgd": "#CC79A7",
    "dfedavg": "#56B4E9",
}
"""One colour-blind-safe colour (Okabe and Ito) an algorithm, always the same."""
_OTHERS = ("#E69F00", "#000000", "#7F7F7F", "#8C564B", "#4B0082", "#6B8E23")
NAMES = {
    "dspodfl": "DSpodFL",
    "dgd": "DGD",
    "rg": "RG",
    "sporadic_sgd": "Sporadic SGDs",
    "dfedavg": "DFedAvg",
}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "dspodfl",
    "figure.dpi": 150,
}

LARGEST = 1e100
"""What is larger, or no number, is left out of a figure: axes overflow before floating point does."""


def colour(algorithm: str, others: list[str]) -> str:
    """The colour of an algorithm; those of one's own take further ones in order."""
    return COLOURS.get(algorithm) or _OTHERS[others.index(algorithm) % len(_OTHERS)]


def curve(runs: list[pd.DataFrame], x: str, y: str, *, log: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation over runs of y against x, on the range that all runs cover.

    Each run is interpolated linearly between its evaluated points, in x itself. A run that diverged would end the
    range where it did: the others are drawn without it, and it only where there is no other.
    """
    sound = [run for run in runs if not run["diverged"].any()]
    clean = [run.loc[(run[x] < LARGEST) & (run[y] < LARGEST)] for run in sound or runs]
    clean = [run.sort_values([x, "iteration"]) for run in clean if len(run)]
    if not clean:
        return np.array([]), np.array([]), np.array([])
    end = min(float(run[x].iloc[-1]) for run in clean)
    positive = [float(run.loc[run[x] > 0, x].min()) for run in clean if (run[x] > 0).any()]
    start = min(positive, default=0.0) if log else 0.0
    start = min(end, start)
    grid = np.geomspace(start, end, 400) if log and start > 0 else np.linspace(start, end, 400)
    values = np.array([np.interp(grid, run[x].to_numpy(), run[y].to_numpy(dtype=np.float64)) for run in clean])
    return grid, values.mean(axis=0), values.std(axis=0)


def accuracy_vs_delay(metrics: pd.DataFrame, title: str = "") -> Figure:
    """Accuracy (in regression, the error) against raw and normalized total delay: mean and 1-sigma band over seeds."""
    y, label, log_y = _quantity(metrics)
    algorithms = list(dict.fromkeys(metrics["algorithm"]))
    others = [a for a in algorithms if a not in COLOURS]
    panels = (("delay_total", "total delay, raw", True), ("delay_total_normalized", "total delay, normalized", False))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (x, name, log) in zip(axes, panels, strict=True):
            furthest = 0.0
            for algorithm in algorithms:
                rows = metrics[metrics["algorithm"] == algorithm]
                runs = [run for _, run in rows.groupby("seed")]
                grid, mean, std = curve(runs, x, y, log=log)
                if not len(grid):
                    continue
                furthest = max(furthest, float(grid[-1]))
                paint = colour(algorithm, others)
                diverged = int(rows.groupby("seed")["diverged"].any().sum())
                note = f" ({diverged} of {len(runs)} diverged)" if diverged else ""
                strong = algorithm == "dspodfl"
                axis.plot(
                    grid,
                    mean,
                    color=paint,
                    linewidth=2.2 if strong else 1.5,
                    zorder=3 if strong else 2,
                    label=NAMES.get(algorithm, algorithm) + note,
                )
                floor = np.maximum(mean - std, mean * 1e-3) if log_y else mean - std
                axis.fill_between(grid, floor, mean + std, color=paint, alpha=0.15, linewidth=0)
            axis.set_xlabel(name)
            if log and furthest > 0:
                axis.set_xscale("log")
            if log_y:
                axis.set_yscale("log")
        axes[0].set_ylabel(label)
        _legend(figure, axes)
        if title:
            axes[0].set_title(title, loc="left", fontsize=8, color="#555555")
    return figure


def _quantity(metrics: pd.DataFrame) -> tuple[str, str, bool]:
    """What to draw: accuracy, or for regression the optimality error where known, else the loss."""
    if metrics["accuracy"].notna().any():
        return "accuracy", "test accuracy, mean over clients", False
    if metrics["optimality_error"].notna().any():
        return "optimality_error", "‖θ̄ − θ*‖²", True
    return "loss", "test loss, mean over clients", False


def sweep(table: pd.DataFrame, axes: list[str], title: str = "") -> Figure:
    """A reading against what is varied: mean and 1-sigma band over seeds; a panel for each value of a second axis.

    Left, accuracy where the raw total delay first reaches the reading's (or at the end); right, at a normalized delay
    that all runs of the point got to. Open markers, with how many: points that not all seeds got to.
    """
    algorithms = list(dict.fromkeys(table["algorithm"]))
    others = [a for a in algorithms if a not in COLOURS]
    rest = [axis for axis in axes[1:] if table[axis].nunique() > 1]
    groups = list(table.groupby(rest, sort=False)) if rest else [((), table)]
    delay = float(table["delay"].iloc[0]) if "delay" in table else None
    sides = [("accuracy", "at the end" if delay is None else f"at raw total delay {delay:g}")]
    sides += [("normalized", "at a normalized delay all reach")] if "normalized_mean" in table else []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.5 * len(sides), 0.6 + 3.2 * len(groups)), layout="constrained")
        grid = figure.subplots(len(groups), len(sides), sharey=True, squeeze=False)
        for row, (point, rows) in zip(grid, groups, strict=True):
            named = ", ".join(
                f"{a} = {v}" for a, v in zip(rest, np.atleast_1d(np.array(point, dtype=object)), strict=True)
            )
            for axis, (column, side) in zip(row, sides, strict=True):
                _lines(axis, rows, axes[0], column, algorithms, others)
                head = title if row is grid[0] and axis is row[0] else ""
                own = f"{named}; {side}" if named else side
                axis.set_title(f"{head}\n{own}" if head else own, loc="left", fontsize=8, color="#555555")
            row[0].set_ylabel("test accuracy, mean over clients")
        for axis in grid[-1]:
            axis.set_xlabel(axes[0])
        _legend(figure, grid.ravel())
    return figure


def _legend(figure: Figure, axes: Any) -> None:
    """One legend for all panels, of whatever any of them shows."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    legend = figure.legend(
        list(found.values()), list(found), loc="outside upper center", ncols=min(5, max(1, len(found)))
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a $ in a name is a $


def _lines(axis: Any, rows: pd.DataFrame, x: str, column: str, algorithms: list[str], others: list[str]) -> None:
    """One line an algorithm, on a numeric axis where there is one."""
    values = list(dict.fromkeys(rows[x]))
    numeric = all(isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in values)
    places = {v: float(v) if numeric else float(n) for n, v in enumerate(values)}
    for algorithm in algorithms:
        mine = rows[(rows["algorithm"] == algorithm) & rows[f"{column}_mean"].notna()]
        if not len(mine):
            continue
        at = np.array([places[v] for v in mine[x]])
        mean, std = (mine[f"{column}_{what}"].to_numpy(float) for what in ("mean", "std"))
        paint, strong = colour(algorithm, others), algorithm == "dspodfl"
        axis.plot(
            at,
            mean,
            "-",
            color=paint,
            linewidth=2.2 if strong else 1.5,
            zorder=3 if strong else 2,
            label=NAMES.get(algorithm, algorithm),
        )
        axis.fill_between(at, mean - std, mean + std, color=paint, alpha=0.13, linewidth=0)
        some = (
            (mine["reached"] < mine["seeds"]).to_numpy() if column == "accuracy" and "reached" in mine else at < -np.inf
        )
        axis.plot(at[~some], mean[~some], "o", color=paint, markersize=4, zorder=4)
        axis.plot(at[some], mean[some], "o", color=paint, markersize=4.5, markerfacecolor="white", zorder=4)
        for place, value, reached, seeds in zip(
            at[some], mean[some], *(mine[c].to_numpy()[some] for c in ("reached", "seeds") if c in mine), strict=False
        ):
            axis.annotate(f"{reached}/{seeds}", (place, value), fontsize=6, xytext=(2, 4), textcoords="offset points")
    if not numeric:
        axis.set_xticks(list(places.values()), [str(v) for v in values])
    elif min(places.values()) > 0 and max(places.values()) / min(places.values()) >= 50:
        axis.set_xscale("log")


_PARTS: dict[str, tuple[str, Literal["full", "none"]]] = {
    "total": ("o", "full"),
    "processing": ("s", "full"),
    "transmission": ("D", "none"),
}
"""The marker of each part of a delay, and how it is filled."""


def delays(table: pd.DataFrame, axes: list[str], title: str = "") -> Figure:
    """Raw delay to target accuracies and its parts, medians over seeds; a line from quartile to quartile of the total.

    An arrow is where the runs of half of the seeds had ended without it; how many got there stands at the right.
    """
    algorithms = list(dict.fromkeys(table["algorithm"]))
    others = [a for a in algorithms if a not in COLOURS]
    targets = list(dict.fromkeys(table["target"]))
    rows = [(target, algorithm) for target in targets for algorithm in algorithms]
    groups = list(table.groupby(axes, sort=False)) if axes else [((), table)]
    printed = "printed_total" in table and table["printed_total"].notna().any()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.5 + 4.2 * len(groups), 1.5 + 0.34 * len(rows)), layout="constrained")
        panels = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
        for axis, (point, some) in zip(panels, groups, strict=True):
            found = some.set_index(["target", "algorithm"]).reindex(rows).apply(pd.to_numeric, errors="coerce")
            for y, (_, algorithm) in enumerate(rows):
                row, paint = found.iloc[y], colour(algorithm, others)
                low, high = row["total_quartile1"], row["total_quartile3"]
                if np.isfinite(low):
                    axis.plot([low, high if np.isfinite(high) else low], [y, y], color=paint, alpha=0.5, linewidth=2.5)
                for part, (marker, fill) in _PARTS.items():
                    if row[f"{part}_median"] > 0:
                        size = 7 if part == "total" else 5
                        axis.plot(row[f"{part}_median"], y, marker, color=paint, fillstyle=fill, markersize=size)
                if not np.isfinite(row["total_median"]) and row.get("total_least", 0) > 0:
                    axis.plot(row["total_least"], y, ">", color=paint, fillstyle="none", markersize=7)
                if printed:
                    axis.plot(row["printed_total"], y, "x", color="#333333", markersize=6)
                if row["reached"] < row["seeds"]:
                    text = f"{row['reached']:.0f} of {row['seeds']:.0f} seeds"
                    here = ("axes fraction", "data")
                    axis.annotate(text, (0.99, y - 0.28), xycoords=here, ha="right", va="center", fontsize=6)
            axis.set_xscale("log")
            axis.set_xlabel("raw delay")
            axis.set_title(_point(axes, point), loc="left", fontsize=8, color="#555555")
        names = [NAMES.get(a, a) + (f", {t:g}" if len(targets) > 1 else "") for t, a in rows]
        panels[0].set_yticks(range(len(rows)), names)
        panels[0].set_ylim(len(rows) - 0.5, -0.5)
        marks = [
            Line2D([], [], color="#555555", linestyle="", marker=m, fillstyle=f, label=part)
            for part, (m, f) in _PARTS.items()
        ]
        if table["total_median"].isna().any():
            marks.append(
                Line2D([], [], color="#555555", linestyle="", marker=">", fillstyle="none", label="total, at least")
            )
        if printed:
            marks.append(Line2D([], [], color="#333333", linestyle="", marker="x", label="total, printed in the paper"))
        figure.legend(
            handles=marks, loc="outside upper left", ncols=len(marks), fontsize=8, title=title, alignment="left"
        )
    return figure


def _point(axes: list[str], point: Any) -> str:
    """The values of a group, by name."""
    return ", ".join(f"{a} = {v}" for a, v in zip(axes, np.atleast_1d(np.array(point, dtype=object)), strict=True))


def accuracies(table: pd.DataFrame, axes: list[str], title: str = "") -> Figure:
    """Accuracy after numbers of iterations, with the printed numbers as crosses where there are any."""
    algorithms = list(dict.fromkeys(table["algorithm"]))
    others = [a for a in algorithms if a not in COLOURS]
    iterations = list(dict.fromkeys(table["iteration"]))
    groups = list(table.groupby(axes, sort=False)) if axes else [((), table)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.8 * len(groups) + 1, 3.8), layout="constrained")
        panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
        for axis, (point, rows) in zip(panels, groups, strict=True):
            for n, algorithm in enumerate(algorithms):
                mine = rows[rows["algorithm"] == algorithm].set_index("iteration").reindex(iterations)
                at = np.arange(len(iterations)) + (n - (len(algorithms) - 1) / 2) * 0.12
                mean, std = (mine[f"accuracy_{c}"].to_numpy(float) for c in ("mean", "std"))
                paint = colour(algorithm, others)
                axis.errorbar(at, mean, std, fmt="o", color=paint, markersize=4, label=NAMES.get(algorithm, algorithm))
                if "printed_accuracy" in mine:
                    axis.plot(at, mine["printed_accuracy"].to_numpy(float), "x", color=paint, markersize=6)
            axis.set_xticks(range(len(iterations)), [f"{k:,}" for k in iterations])
            axis.set_xlabel("iterations")
            named = _point(axes, point)
            note = "crosses: as printed in the paper" if "printed_accuracy" in rows else ""
            head = title if axis is panels[0] else ""
            own = "; ".join(filter(None, (named, note)))
            axis.set_title("\n".join(filter(None, (head, own))), loc="left", fontsize=8, color="#555555")
        panels[0].set_ylabel("test accuracy, mean over clients")
        _legend(figure, panels)
    return figure


def network(setting: Mapping[str, Any], title: str = "") -> Figure:
    """The graph of one seed: node size by d_i, edge width by b_ij."""
    d, b, edges = (np.asarray(setting[key]) for key in ("d", "b", "edges"))
    positions = setting.get("positions")
    places = _places(len(d), edges) if positions is None else np.asarray(positions)
    labels = setting.get("labels")
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(5.4, 5), layout="constrained")
        axis = figure.subplots()
        lines = LineCollection(
            [places[list(edge)] for edge in edges],
            linewidths=(0.3 + 4.0 * b).tolist(),
            colors="#0072B2",
            alpha=0.45,
            zorder=1,
        )
        axis.add_collection(lines)
        axis.scatter(
            places[:, 0], places[:, 1], s=40 + 460 * d, color="#D55E00", edgecolors="white", linewidths=1.0, zorder=2
        )
        if len(d) <= 60:
            for i, place in enumerate(places):
                name = labels[i] if labels is not None else str(i)
                axis.annotate(str(name), place, ha="center", va="center", fontsize=7, zorder=3, parse_math=False)
        axis.set_aspect("equal")
        axis.set_axis_off()
        axis.margins(0.1)
        axis.set_title(f"{title}node size: d (SGD rate), edge width: b (link rate)", fontsize=8, color="#555555")
    return figure


def picture(figure: Figure, form: str) -> bytes:
    """A figure as ``png`` or ``svg``; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):  # the names inside an SVG are made from its hashsalt
        figure.savefig(buffer, format=form, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()


def _places(n: int, edges: np.ndarray) -> np.ndarray:
    """Where to draw clients that have no positions: near their neighbours, or in a circle where there are many."""
    graph = nx.empty_graph(n)
    graph.add_edges_from(edges.tolist())
    found = nx.kamada_kawai_layout(graph) if n <= 100 and nx.is_connected(graph) else nx.circular_layout(graph)
    return np.array([found[i] for i in range(n)]).reshape(n, 2)
