"""Figures in the house style, from the tables of a result.

``runs`` draws the metrics of a study, ``grids`` sweeps and tables, ``graphs`` a network, ``theory`` bounds; ``style``
holds what they share.
"""

from __future__ import annotations

import io
import warnings

import matplotlib as mpl
from matplotlib.figure import Figure

from dspodfl.plots.graphs import network
from dspodfl.plots.grids import accuracies, delays, sweep
from dspodfl.plots.runs import accuracy_vs_delay, curve
from dspodfl.plots.style import COLOURS, LARGEST, NAMES, STYLE, axis_head, axis_name, colour

__all__ = [
    "COLOURS",
    "LARGEST",
    "NAMES",
    "STYLE",
    "accuracies",
    "accuracy_vs_delay",
    "axis_head",
    "axis_name",
    "colour",
    "curve",
    "delays",
    "network",
    "picture",
    "sweep",
]


def picture(figure: Figure, form: str) -> bytes:
    """Return a figure as ``png`` or ``svg``; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():  # the names inside an SVG are made from its hashsalt
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # it is drawn as an empty box
        figure.savefig(buffer, format=form, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()
