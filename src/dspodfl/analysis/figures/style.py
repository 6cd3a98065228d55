"""What all figures share: colours, dashes and markers of algorithms, names of axes, legends, titles and notes."""

from __future__ import annotations

import io
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import LogLocator, NullFormatter

from dspodfl.algorithms import ALGORITHMS, Dash
from dspodfl.analysis import formatting

_STYLES = {name: entry.style for name, entry in ALGORITHMS.items() if entry.style is not None}
COLOURS = {name: found.colour for name, found in _STYLES.items()}
"""One colour-blind-safe colour (Okabe and Ito) for each algorithm, always the same."""
_OTHER_COLOURS = ("#E69F00", "#000000", "#7F7F7F", "#8C564B", "#4B0082", "#6B8E23")

_OTHER_DASHES: tuple[Dash, ...] = (
    (0, (8, 2, 1, 2, 1, 2)),
    (0, (10, 3)),
    (0, (2, 1)),
    (0, (4, 1, 1, 1)),
    (0, (1, 3)),
)
_OTHER_MARKERS = ("P", "X", "*", "p", "h", "<", ">")

NAMES = {name: entry.label for name, entry in ALGORITHMS.items()}
"""Algorithms by name, as they are written in tables and figures."""
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
"""Matplotlib settings of every figure."""
FAINT = "#555555"
LARGEST = 1e100
"""What is larger, or no number, is left out of a figure: axes overflow before floating point does."""
_LONGEST_NAME, _WIDEST_HEAD = 40, 28
_LEGEND_SIZE, _NOTE_SIZE, _TITLE_SIZE = 8.5, 7.5, 9.0

AXES = {
    "train.learning_rate": "learning rate α",
    "train.learning_rate.value": "learning rate α",
    "learning_rate": "learning rate α",
    "train.learning_rate.gamma": "γ of the diminishing learning rate",
    "train.batch_size": "batch size (samples per SGD step)",
    "train.iterations": "iterations",
    "train.order": "order of mixing and SGD step",
    "train.dfedavg_period": "period D of DFedAvg (iterations)",
    "train.precision": "precision",
    "clients.count": "number of clients",
    "clients": "number of clients",
    "graph.kind": "graph",
    "graph.radius": "radius of the graph",
    "radius": "radius of the graph",
    "graph.p": "probability of a link in the graph",
    "graph.degree": "degree (links per client)",
    "graph.neighbours": "neighbours per client before rewiring",
    "graph.rewire": "probability of rewiring a link",
    "graph.weights": "mixing weights",
    "graph.dynamics.kind": "how the graph changes",
    "graph.dynamics.up": "probability that a link is up",
    "data.name": "data set",
    "data.partition.kind": "partition of the data",
    "data.partition.per_client": "labels per client",
    "labels": "labels per client",
    "data.partition.alpha": "concentration α of the partition",
    "data.partition.samples": "samples per client",
    "data.samples": "samples",
    "data.heterogeneity": "heterogeneity of the clients' data",
    "data.noise": "noise of the data (standard deviation)",
    "data.l2": "l2 regularization",
    "data.separation": "separation of the classes",
    "model.name": "model",
    "model.l2": "l2 regularization",
    "rates.sgd.law": "law of the SGD rates d",
    "rates.link.law": "law of the link rates b",
    "rates.sgd.value": "SGD rate d",
    "rates.link.value": "link rate b",
    "rates.sgd.a": "a of Beta(a, b) SGD rates d",
    "rates.sgd.b": "b of Beta(a, b) SGD rates d",
    "rates.link.a": "a of Beta(a, b) link rates b",
    "rates.link.b": "b of Beta(a, b) link rates b",
    "rates.sgd.mean": "mean of the SGD rates d before truncation",
    "rates.link.mean": "mean of the link rates b before truncation",
    "rates.sgd.std": "standard deviation of the SGD rates d before truncation",
    "rates.link.std": "standard deviation of the link rates b before truncation",
    "a": "a of Beta(a, a) rates",
    "mu": "mean μ of the rates before truncation",
    "sigma": "standard deviation σ of the rates before truncation",
    "rates.refresh": "iterations between redraws of the rates (0: never)",
    "rates.floor": "least rate",
    "rates.growth": "growth of the rates",
    "rates.link_draw": "how a link is drawn",
    "link_draw": "how a link is drawn",
    "seed": "seed",
}
"""What is varied, with units: keys of the configuration, and the names that experiments give them."""


def name(algorithm: str) -> str:
    """Return the name of an algorithm as figures and tables show it; a long one is cut in its middle.

    >>> name("dgd"), name("x" * 50)[:3], len(name("x" * 50))
    ('DGD', 'xxx', 40)
    """
    found = NAMES.get(algorithm) or shortened(algorithm)
    return f" {found}" if found.startswith("_") else found  # matplotlib leaves out labels that begin so


def shortened(text: str, longest: int = _LONGEST_NAME) -> str:
    """Cut a long text in its middle, so that its beginning and its end stay."""
    text = clean(text)
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def clean(text: str) -> str:
    """Replace what no font can draw: line breaks and other control characters.

    >>> clean("a" + chr(10) + "b" + chr(27))
    'a b�'
    """
    plain = (" " if c.isspace() else "�" if unicodedata.category(c)[0] == "C" else c for c in text)
    return "".join(plain)


def axis_name(key: str) -> str:
    """Return the name of an axis of a grid, with its unit.

    Args:
        key: The key of the configuration that is varied, or the name that an experiment gives it.

    Returns:
        Its name in `AXES`; of an unknown key its last part, and the key in brackets.

    >>> axis_name("graph.radius"), axis_name("model.hidden_units"), axis_name("mine")
    ('radius of the graph', 'hidden units (model.hidden_units)', 'mine')
    """
    if key in AXES:
        return AXES[key]
    key = shortened(key, 80)
    last = key.rpartition(".")[2].replace("_", " ")
    return last if last == key else f"{last} ({key})"


def axis_head(key: str) -> str:
    r"""Return `axis_name` as the head of a column, in short lines.

    Args:
        key: As for `axis_name`.

    Returns:
        Lines of at most 28 characters; the unit begins a new one.

    >>> axis_head("train.batch_size"), axis_head("rates.sgd.mean")
    ('batch size\n(samples per SGD step)', 'mean of the SGD rates d\nbefore truncation')
    """
    lines = axis_name(key).replace(" (", "\n(").split("\n")
    return "\n".join(part for line in lines for part in textwrap.wrap(line, _WIDEST_HEAD))


def colour(algorithm: str, others: Sequence[str]) -> str:
    """Return the colour of an algorithm, the same in every figure.

    Args:
        algorithm: Its name or label.
        others: The algorithms of the figure that have no colour in `COLOURS`, in order; see `custom`.

    Returns:
        The colour, as ``#RRGGBB``.

    >>> colour("mine", ["mine"])
    '#E69F00'
    """
    return COLOURS.get(algorithm) or _OTHER_COLOURS[list(others).index(algorithm) % len(_OTHER_COLOURS)]


def line(algorithm: str, others: Sequence[str]) -> dict[str, Any]:
    """Return colour, dashes, marker and width of an algorithm's line.

    Dashes and marker together differ between any two of the registered algorithms and the first 35 custom ones.
    """
    if algorithm in _STYLES:
        dash, marker = _STYLES[algorithm].dash, _STYLES[algorithm].marker
    else:
        at = list(others).index(algorithm)
        dash, marker = _OTHER_DASHES[at % len(_OTHER_DASHES)], _OTHER_MARKERS[at % len(_OTHER_MARKERS)]
    strong = algorithm == "dspodfl"
    return {
        "color": colour(algorithm, others),
        "linestyle": dash,
        "linewidth": 2.2 if strong else 1.5,
        "marker": marker,
        "markersize": 4.5,
        "markeredgewidth": 0.6,
        "markeredgecolor": "white",
        "zorder": 3 if strong else 2,
    }


def custom(algorithms: Sequence[str]) -> list[str]:
    """Return those of the algorithms that have no style of their own, in order."""
    return [algorithm for algorithm in algorithms if algorithm not in COLOURS]


# --- legends, titles, notes -------------------------------------------------------------------------------------


def handles(axes: Iterable[Axes]) -> tuple[list[Artist], list[str]]:
    """Return what any of the panels shows, each once: two of one name but different style are two."""
    found: dict[tuple[str, ...], tuple[Artist, str]] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            line_style = (
                str(mpl.artist.getp(handle, what)) for what in ("color", "marker") if hasattr(handle, f"get_{what}")
            )
            found.setdefault((label, *line_style), (handle, label))
    return [handle for handle, _ in found.values()], [label for _, label in found.values()]


def legend(
    figure: Figure, drawn: Sequence[Artist], labels: Sequence[str], title: str = "", columns: int | None = None
) -> Legend:
    """Put the title and one legend above all panels, in columns that fit into the figure's width.

    The figure grows by the rows that the legend needs beyond the first.
    """
    width = figure.get_figwidth()
    columns = columns or fitting(labels, width)
    rows = -(-len(labels) // columns) if labels else 0
    head = wrapped(title, width, _TITLE_SIZE, 3)
    grown = max(0, rows - 1) * 0.19 + head.count("\n") * 0.17
    figure.set_figheight(figure.get_figheight() + grown)
    # Filled row by row, in reading order; matplotlib fills column by column.
    order = [n for column in range(columns) for n in range(column, len(labels), columns)]
    made = figure.legend(
        [drawn[n] for n in order],
        [labels[n] for n in order],
        loc="outside upper left",
        ncols=columns,
        fontsize=_LEGEND_SIZE,
        title=head or None,
        title_fontsize=_TITLE_SIZE,
        alignment="left",
        handlelength=3.2,
    )
    for text in (*made.get_texts(), made.get_title()):
        text.set_parse_math(False)  # a $ in a name is a $
    return made


def fitting(labels: Sequence[str], width: float) -> int:
    """Return how many columns of labels fit into a width in inches."""
    longest = max((columns_of(label) for label in labels), default=1)
    each = _LEGEND_SIZE * (0.62 * longest + 3.2 + 0.8 + 2.2) / 72
    return max(1, min(len(labels) or 1, int((width - 0.2) / each)))


def columns_of(text: str) -> int:
    """Return the width of a text in characters; those of East Asia are two wide."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrapped(text: str, width: float, size: float, lines: int = 12) -> str:
    """Break a text into lines that fit into a width in inches."""
    text = clean(text)
    wide = max(20, int(width * 72 / (0.56 * size) * (len(text) + 1) / (columns_of(text) + 1)))
    return "\n".join(textwrap.wrap(text, wide, max_lines=lines, placeholder=" …"))


def note(figure: Figure, *sentences: str) -> None:
    """Explain the numbers of a figure at its foot."""
    text = " ".join(sentence for sentence in sentences if sentence)
    if text:
        text = wrapped(text, figure.get_figwidth(), _NOTE_SIZE)
        figure.set_figheight(figure.get_figheight() + 0.14 * (text.count("\n") + 1))
        made = figure.supxlabel(text, x=0.012, ha="left", fontsize=_NOTE_SIZE, color=FAINT)
        made.set_parse_math(False)


def heading(axis: Axes, text: str) -> None:
    """Put a small heading over a panel."""
    made = axis.set_title(wrapped(text, 4.4, 8, 3), loc="left", fontsize=8, color=FAINT)
    made.set_parse_math(False)


def spread_text(seeds: int, what: str = "band") -> str:
    """Describe a mean and its band or bars.

    >>> spread_text(3), spread_text(1, "bars")
    ('Mean over 3 seeds; band: ±1 standard deviation over seeds.', 'One seed: no bars.')
    """
    if seeds < 2:
        return f"One seed: no {what}."
    return f"Mean over {formatting.seeds(seeds)}; {what}: ±1 standard deviation over seeds."


# --- axes -------------------------------------------------------------------------------------------------------


def places(values: Sequence[Any]) -> tuple[dict[Any, float], bool]:
    """Return where the values of an axis are drawn, and whether they are numbers; others are at 0, 1, 2."""
    numeric = all(isinstance(v, int | float | np.number) and not isinstance(v, bool | np.bool_) for v in values)
    return {v: float(v) if numeric else float(n) for n, v in enumerate(values)}, numeric


def scale(axis: Axes, at: dict[Any, float], numeric: bool) -> None:
    """Set the ticks of an axis of values: names, or numbers that are logarithmic where they span a factor of 20."""
    if not numeric:
        texts = [shortened(formatting.setting(value), 24) for value in at]
        long = sum(map(len, texts)) > 40
        axis.set_xticks(
            list(at.values()),
            texts,
            rotation=30 if long else 0,
            ha="right" if long else "center",
            parse_math=False,
        )
        axis.set_xlim(-0.5, len(at) - 0.5)
        return
    low, high = min(at.values()), max(at.values())
    if low > 0 and high / low >= 20:
        axis.set_xscale("log")
        room = (high / low) ** 0.04
        axis.set_xlim(low / room, high * room)
    elif high > low:
        axis.set_xlim(low - 0.04 * (high - low), high + 0.04 * (high - low))


def dodge(number: int, count: int, width: float = 0.6) -> float:
    """Return how far the ``number``-th of ``count`` algorithms is moved aside, so that bars do not cover each other."""
    return 0.0 if count < 2 else (number / (count - 1) - 0.5) * width


def logarithmic(axis: Axis, left: float, right: float, text: Callable[[float], str] | None = None) -> None:
    """Label an axis that is logarithmic from `left` to `right` at few places, so that no two labels overlap."""
    decades = np.log10(right / left)
    steps = (1.0, 2.0, 5.0) if decades <= 1.6 else (1.0, 3.0) if decades <= 2.5 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(lambda value, _: text(value) if text else f"{value:,.10g}")


def picture(figure: Figure, form: str) -> bytes:
    """Return a figure as an image file; the same figure gives the same bytes.

    Args:
        figure: The figure.
        form: ``png`` or ``svg``.

    Returns:
        The content of the file.
    """
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():  # the names inside an SVG are made from its hashsalt
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # it is drawn as an empty box
        figure.savefig(buffer, format=form, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()
