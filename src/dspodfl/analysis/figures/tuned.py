"""Pictures of tuned comparisons: accuracy against several costs, a row of panels for each family of algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dspodfl.analysis import formatting
from dspodfl.analysis.costs import Cost
from dspodfl.analysis.figures import style
from dspodfl.analysis.figures.accuracy import COSTS
from dspodfl.analysis.figures.style import STYLE

REFERENCES = ("dspodfl", "dgd")
"""Algorithms that every panel shows, in grey where they are not of its family."""
_GREYS = {"dspodfl": ("#444444", "-"), "dgd": ("#8A8A8A", (0, (4, 2)))}
_LINES = (
    ("#0072B2", "-"),
    ("#D55E00", (0, (5, 1.5))),
    ("#009E73", (0, (1, 1))),
    ("#CC79A7", (0, (6, 1.5, 1, 1.5))),
    ("#E69F00", "-"),
    ("#56B4E9", (0, (3, 1))),
    ("#000000", (0, (1, 2))),
)
_RANGE = 300.0
"""Axes begin this factor before the value that is read."""
_POINTS = 200


def tuned(metrics: pd.DataFrame, table: pd.DataFrame, axes: Sequence[str], title: str = "") -> Figure:
    """Draw accuracy against each cost, a column each; a row for each point of the axis that is not tuned.

    Each algorithm is drawn at the point that was chosen for the cost of the column, as the mean over the seeds that
    are read. DSpodFL and DGD stand in every row in grey. The right edge of a panel is where the table is read.

    Args:
        metrics: Rows by point, algorithm, seed and evaluated iteration.
        table: What was chosen and read, by `dspodfl.experiments`.
        axes: The columns of what is varied.
        title: A line over the figure.

    Returns:
        The figure.
    """
    over = str(table["tuned_axis"].iloc[0])
    rest = next((axis for axis in axes if axis != over), None)
    families = list(dict.fromkeys(table[rest])) if rest else [""]
    pairs = dict.fromkeys(zip(table["cost"], table["cost_value"], strict=True))
    costs = [Cost(str(kind), float(value)) for kind, value in pairs]
    read = sorted(metrics["seed"].unique())[: int(table["seeds"].max())]
    runs = _by_point(metrics[metrics["seed"].isin(read)], over)
    with mpl.rc_context(STYLE):
        size = (3.3 * len(costs) + 1.7, 0.5 + 1.75 * len(families))
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.03, hspace=0.02))
        grid = figure.subplots(len(families), len(costs), sharey=True, sharex="col", squeeze=False)
        for family, line in zip(families, grid, strict=True):
            here = table[table[rest] == family] if rest else table
            own = [str(algorithm) for algorithm in dict.fromkeys(here["algorithm"])]
            for cost, axis in zip(costs, line, strict=True):
                chosen = table[table["cost"] == cost.kind].set_index("algorithm")["tuned"].to_dict()
                _panel(axis, {str(a): runs[str(a), float(point)] for a, point in chosen.items()}, own, cost)
            style.heading(line[0], str(family))
            line[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7, handlelength=2.4)
            line[0].set_ylabel("test accuracy", fontsize=8)
        for cost, axis in zip(costs, grid[-1], strict=True):
            axis.set_xlabel(COSTS[cost.column][0], fontsize=8)
        if title:
            figure.suptitle(style.wrapped(title, size[0], 9.0, 3), x=0.012, ha="left", fontsize=9)
        style.note(figure, *_notes(len(read), over, costs))
    return figure


def _by_point(metrics: pd.DataFrame, over: str) -> dict[tuple[str, float], list[pd.DataFrame]]:
    """The runs of each algorithm at each point of the axis that is tuned."""
    out: dict[tuple[str, float], list[pd.DataFrame]] = {}
    key: Any
    for key, run in metrics.groupby(["algorithm", over, "seed"], sort=False):
        out.setdefault((str(key[0]), float(key[1])), []).append(run)
    return out


def _panel(axis: Axes, runs: Mapping[str, list[pd.DataFrame]], own: Sequence[str], cost: Cost) -> None:
    """One family against one cost."""
    axis.set_xscale("log")
    least = cost.value / _RANGE
    grid = np.geomspace(least, cost.value, _POINTS)
    for algorithm in [*(name for name in REFERENCES if name in runs and name not in own), *own]:
        mine = algorithm in own
        colour, dash = _LINES[own.index(algorithm) % len(_LINES)] if mine else _GREYS[algorithm]
        width, above = (1.4, 3) if mine else (0.9, 2)
        look: dict[str, Any] = {"color": colour, "linestyle": dash, "linewidth": width, "zorder": above}
        axis.plot(grid, _mean(runs[algorithm], cost, grid), label=style.name(algorithm), **look)
    axis.set_xlim(least, cost.value)
    style.logarithmic(axis.xaxis, least, cost.value, formatting.size if cost.kind == "bytes" else None)
    axis.tick_params(labelsize=7)


def _mean(runs: Sequence[pd.DataFrame], cost: Cost, grid: np.ndarray) -> np.ndarray:
    """The mean accuracy of the runs that do not diverge, as the table reads them, as far as all of them go."""
    sound = [run.sort_values("iteration") for run in runs if not run["diverged"].astype(bool).any()]
    lines = [np.interp(grid, run[cost.column], run["accuracy"], right=np.nan) for run in sound]
    return np.mean(lines, axis=0) if lines else np.full(len(grid), np.nan)


def _notes(seeds: int, over: str, costs: Sequence[Cost]) -> list[str]:
    where = ", ".join(cost.text for cost in costs)
    return [
        f"Mean over {formatting.seeds(seeds)}; each algorithm at the {style.axis_name(over)} that is best at the right "
        f"edge of the column ({where}) on other seeds. "
        "Straight between evaluated iterations, and as far as all seeds go; without runs that diverge.",
        "Grey: DSpodFL (solid) and DGD (dashed), in every row.",
    ]
