"""The picture of a network: clients, links and their rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import networkx as nx
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from dspodfl.analysis import formatting
from dspodfl.analysis.figures import style
from dspodfl.analysis.figures.style import STYLE

_LABELLED = 60
"""Up to this number of clients there is room for their names."""
_LINKS = 20_000
"""More links than these cannot be distinguished; this number of them is drawn, evenly chosen."""
_ARROWS = 2_000
"""Arcs that are drawn of a directed graph, at most; each is an object of its own."""
_SCALE = (0.1, 0.5, 1.0)
"""The rates that the legend shows."""
_CLIENTS = LinearSegmentedColormap.from_list("rates", ["#FBE3CF", "#E8853A", "#7A2E00"])
_LINK_COLOUR = "#0072B2"


def network(setting: Mapping[str, Any], title: str = "") -> Figure:
    """Draw the graph of one seed: nodes by d (size and colour), links by b (width), with a scale for both.

    Args:
        setting: ``d`` (clients,), ``b`` (links,), ``edges`` (links, 2), and where known ``positions`` (clients, 2) and
            ``labels`` (clients,). Of a directed graph also ``arcs`` (links, 2) and ``back`` (links,): each direction
            is an arrow, as wide as its own rate.
        title: Put before the numbers of clients and links.

    Returns:
        The figure. Names of clients are left out where more than 60 have no room for them; of more than 20,000 links
        that many are drawn, and the figure says so.
    """
    d, b, edges = (np.asarray(setting[key]) for key in ("d", "b", "edges"))
    positions = setting.get("positions")
    at = node_places(len(d), edges) if positions is None else np.asarray(positions)
    labels = setting.get("labels")
    largest, widest = _sizes(len(d), len(edges))
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(6, 5.6), layout="constrained")
        axis = figure.subplots()
        arcs = setting.get("arcs")
        if arcs is None:
            shown, whole = _links(axis, at, b, edges, widest), len(edges)
        else:
            rates, radius = np.stack([b, np.asarray(setting["back"])], axis=1), np.sqrt(_area(d, largest) / np.pi)
            shown, whole = _arrows(axis, at, rates, edges, np.asarray(arcs), widest, radius), int(np.sum(arcs))
        axis.scatter(
            at[:, 0],
            at[:, 1],
            s=_area(d, largest),
            c=d,
            cmap=_CLIENTS,
            norm=Normalize(0, 1),
            edgecolors="#333333",
            linewidths=0.6 if len(d) <= _LABELLED else 0.25,
            zorder=2,
        )
        if len(d) <= _LABELLED:
            _names(axis, at, [str(i) for i in range(len(d))] if labels is None else [str(name) for name in labels], d)
        axis.set_aspect("equal")
        axis.set_axis_off()
        axis.margins(0.08)
        if len(d) > _LABELLED:
            bar = ScalarMappable(Normalize(0, 1), _CLIENTS)
            figure.colorbar(bar, ax=axis, shrink=0.5, pad=0.01, label="SGD rate d").outline.set_linewidth(0.4)
        text = f"{_counted(len(d), 'client')}, {_counted(whole, 'link' if arcs is None else 'arc')}"
        some = f" ({formatting.count(shown)} of them drawn)" if shown < whole else ""
        style.legend(figure, *_legend(largest, widest), f"{title}{text}{some}", columns=len(_SCALE))
        style.note(
            figure,
            "d: probability of an SGD step of a client in an iteration.",
            "b: probability of an exchange over a link in an iteration.",
        )
    return figure


def _counted(number: int, what: str) -> str:
    return f"{formatting.count(number)} {what}{'' if number == 1 else 's'}"


def _sizes(clients: int, links: int) -> tuple[float, float]:
    """The area of a node of rate 1 in square points, and the width of a link of rate 1 in points."""
    return float(np.clip(16_000 / max(1, clients), 6, 420)), float(np.clip(24 / np.sqrt(max(1, links)), 0.5, 4.5))


def _area(d: np.ndarray, largest: float) -> np.ndarray:
    return largest * (0.12 + 0.88 * d)


def _width(b: np.ndarray, widest: float) -> np.ndarray:
    return widest * (0.08 + 0.92 * b)


def _links(axis: Axes, at: np.ndarray, b: np.ndarray, edges: np.ndarray, widest: float) -> int:
    """Draw the links; returns how many."""
    chosen = np.arange(len(edges))
    if len(edges) > _LINKS:
        chosen = np.linspace(0, len(edges) - 1, _LINKS).astype(int)
    faint = float(np.clip(13 / np.sqrt(max(1, len(chosen))), 0.07, 0.55))
    axis.add_collection(
        LineCollection(
            at[edges[chosen]] if len(chosen) else [],
            linewidths=_width(b[chosen], widest).tolist(),
            colors=_LINK_COLOUR,
            alpha=faint,
            zorder=1,
        )
    )
    return len(chosen)


def _arrows(
    axis: Axes, at: np.ndarray, b: np.ndarray, edges: np.ndarray, arcs: np.ndarray, widest: float, radius: np.ndarray
) -> int:
    """Draw the arcs as bent arrows, so that both directions of a link are seen; returns how many."""
    link, way = np.nonzero(arcs)
    if len(link) > _ARROWS:
        some = np.linspace(0, len(link) - 1, _ARROWS).astype(int)
        link, way = link[some], way[some]
    faint = float(np.clip(18 / np.sqrt(max(1, len(link))), 0.3, 0.7))
    for ends, backwards, rate in zip(edges[link].tolist(), way.tolist(), b[link, way].tolist(), strict=True):
        source, target = reversed(ends) if backwards else ends
        arrow = FancyArrowPatch(
            tuple(at[source]),
            tuple(at[target]),
            arrowstyle="-|>",
            mutation_scale=10,
            connectionstyle="arc3,rad=0.08",
            shrinkA=float(radius[source]),
            shrinkB=float(radius[target]),
            linewidth=float(_width(np.array(rate), widest)),
            color=_LINK_COLOUR,
            alpha=faint,
            zorder=1,
        )
        axis.add_patch(arrow)
    return len(link)


def _names(axis: Axes, at: np.ndarray, names: list[str], d: np.ndarray) -> None:
    """Names next to their nodes, on a white rim: neither hides the other."""
    largest, _ = _sizes(len(at), 0)
    radius = np.sqrt(_area(d, largest) / np.pi)
    for name, place, away in zip(names, at, radius, strict=True):
        text = axis.annotate(
            style.shortened(name, 16),
            place,
            xytext=(0.75 * away + 1, 0.75 * away + 1),
            textcoords="offset points",
            ha="left",
            va="bottom",
            fontsize=7.5 if len(at) <= 30 else 6,
            zorder=4,
            parse_math=False,
        )
        text.set_path_effects([patheffects.withStroke(linewidth=2, foreground="white")])


def _legend(largest: float, widest: float) -> tuple[list[Any], list[str]]:
    """Nodes and links of a few rates, as large as they are drawn."""
    nodes = [
        Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            markersize=float(np.sqrt(_area(np.array(rate), largest))),
            markerfacecolor=_CLIENTS(rate),
            markeredgecolor="#333333",
            markeredgewidth=0.5,
        )
        for rate in _SCALE
    ]
    links = [Line2D([], [], color=_LINK_COLOUR, linewidth=float(_width(np.array(rate), widest))) for rate in _SCALE]
    names = [f"d = {rate:g}" for rate in _SCALE], [f"b = {rate:g}" for rate in _SCALE]
    return [*nodes, *links], [*names[0], *names[1]]


def node_places(n: int, edges: np.ndarray) -> np.ndarray:
    """Return where to draw clients that have no positions: near their neighbours, or in a circle where there are many.

    Args:
        n: The number of clients.
        edges: The links, (links, 2).

    Returns:
        Positions, (n, 2).
    """
    graph = nx.empty_graph(n)
    graph.add_edges_from(edges.tolist())
    if n <= 100 and n > 0 and nx.is_connected(graph):
        found = nx.kamada_kawai_layout(graph)
    elif n <= 400 and len(edges) and nx.is_connected(graph):
        found = nx.spring_layout(graph, seed=0, pos=nx.circular_layout(graph))
    else:
        found = nx.circular_layout(graph)
    return np.array([found[i] for i in range(n)]).reshape(n, 2)
