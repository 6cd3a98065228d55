"""Figures in the house style, from the tables of a result.

``runs`` draws the metrics of a study, ``grids`` sweeps and tables, ``graphs`` a network, ``theory`` bounds; ``style``
holds what they share.
"""

from __future__ import annotations

from dspodfl.analysis.figures.accuracy import accuracy_vs_delay, curve
from dspodfl.analysis.figures.graphs import network
from dspodfl.analysis.figures.grids import accuracies, delays, sweep
from dspodfl.analysis.figures.style import COLOURS, LARGEST, NAMES, STYLE, axis_head, axis_name, colour, picture

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
