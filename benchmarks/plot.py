"""``python -m benchmarks.plot FILE.json… --out FILE.png``: cost against the number of clients."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.clients import KEY
from benchmarks.rows import Report, Row
from dspodfl.analysis.figures import STYLE, picture

COLOURS = {"cpu": "#0072B2", "gpu": "#D55E00"}


def series(reports: Sequence[Report]) -> dict[str, tuple[str, list[Row]]]:
    """Kind -> (name of the device, rows by the number of clients); of several of a kind the last that has any."""
    found = {}
    for report in reports:
        rows = sorted(
            (row for row in report.rows if row.key.startswith(f"{KEY}/")), key=lambda row: row.more["clients"]
        )
        if rows:
            threads = f", {report.machine.threads} cores" if report.kind == "cpu" else ""
            found[report.kind] = (f"{report.machine.name}{threads}", rows)
    return found


def draw(reports: Sequence[Report]) -> Figure:
    """Time of an iteration, and its share of one client, on logarithmic axes; floors are dashed."""
    panels: tuple[tuple[str, Callable[[float, int], float]], ...] = (
        ("time of an iteration, ms", lambda seconds, clients: 1e3 * seconds),
        ("time of an iteration per client, µs", lambda seconds, clients: 1e6 * seconds / clients),
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        axes = figure.subplots(1, 2)
        for axis, (label, value) in zip(axes, panels, strict=True):
            for kind, (name, rows) in series(reports).items():
                clients = [row.more["clients"] for row in rows]
                times = [value(row.seconds, n) for row, n in zip(rows, clients, strict=True)]
                floors = [value(row.floor, n) for row, n in zip(rows, clients, strict=True)]
                axis.plot(clients, times, "o-", color=COLOURS[kind], linewidth=1.8, markersize=4, label=name)
                axis.plot(clients, floors, "--", color=COLOURS[kind], linewidth=1.0, label="its floor")
            axis.set_xscale("log")
            axis.set_yscale("log")
            low, high = (math.log10(limit) for limit in axis.get_ylim())
            axis.set_ylim(10.0 ** math.floor(low), 10.0 ** math.ceil(high))
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.set_xlabel("clients")
            axis.set_ylabel(label)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        axes[0].set_title("svm, batch 16, torus, one DGD iteration", loc="left", fontsize=8, color="#555555")
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plot", description="Cost against the number of clients."
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE.json", help="what python -m benchmarks --json wrote"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    given = parser.parse_args(arguments)
    try:
        reports = [Report.read(file) for file in given.files]
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"not a report of the benchmarks: {error}")
    if not series(reports):
        parser.error("no report has rows of cost against clients")
    given.out.write_bytes(picture(draw(reports), "png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
