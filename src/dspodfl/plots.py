"""Figures in the house style, from the tables of a result."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

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
        handles, labels = axes[0].get_legend_handles_labels()
        legend = figure.legend(handles, labels, loc="outside upper center", ncols=min(5, max(1, len(labels))))
        for text in legend.get_texts():
            text.set_parse_math(False)  # a $ in a name is a $
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
