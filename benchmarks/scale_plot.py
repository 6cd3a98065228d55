"""The picture of `benchmarks.scale`: how fast more ranks are, and what an iteration is made of."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from dspodfl.analysis.figures import COLOURS, NAMES, STYLE

_PHASES = {
    "compute": "#0072B2",
    "events": "#009E73",
    "minibatches": "#56B4E9",
    "send": "#E69F00",
    "wait": "#D55E00",
    "rest": "#999999",
}


def draw(report: dict[str, Any]) -> Figure:
    """Speed-up against ranks (dashed: perfect), phases of an iteration, traffic sent against predicted."""
    rows = report["rows"]
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 3.6), layout="constrained")
        speed, phases, traffic = figure.subplots(1, 3, width_ratios=[1, 1.25, 1])
        ranks = sorted({row["ranks"] for row in rows})
        speed.plot(ranks, ranks, "--", color="#999999", linewidth=1.0, label="perfect")
        for name in names:
            for kind, line in (("strong", "o-"), ("weak", "s:")):
                some = [row for row in rows if (row["algorithm"], row["kind"]) == (name, kind)]
                some = sorted(some, key=lambda row: row["ranks"])
                colour = COLOURS.get(name, "#000000")
                for ratio, look, what in (("relief", {"alpha": 1.0}, ""), ("speedup", {"alpha": 0.35}, ", clock")):
                    scale = [row[ratio] * (1 if kind == "strong" else row["ranks"]) for row in some]
                    label = f"{NAMES.get(name, name)}, {kind}{what}"
                    where = [row["ranks"] for row in some]
                    speed.plot(where, scale, line, color=colour, markersize=4, label=label, **look)
        speed.set_xticks(ranks)
        speed.set_xlabel("ranks, one thread each")
        speed.set_ylabel("speed-up (pale: by the clock)")
        speed.legend(loc="upper left", fontsize=6.5)
        _phases(phases, [row for row in rows if row["kind"] == "strong"])
        sent = [row for row in rows if row["ranks"] > 1 and row["kind"] == "strong"]
        for row in sent:
            label = f"{NAMES.get(row['algorithm'], row['algorithm'])}, {row['ranks']} ranks"
            colour = COLOURS.get(row["algorithm"], "#000000")
            traffic.plot(row["bytes_predicted"] / 1e6, row["bytes"] / 1e6, "o", color=colour, label=label)
        most = 1.15 * max(row["bytes"] for row in sent) / 1e6
        traffic.plot([0, most], [0, most], "--", color="#999999", linewidth=1.0, label="as predicted")
        traffic.set_xlim(0, most)
        traffic.set_ylim(0, most)
        traffic.set_xlabel("MB an iteration, predicted from the rates")
        traffic.set_ylabel("MB an iteration, sent")
        traffic.legend(loc="upper left")
        clients = max(row["clients"] for row in rows)
        title = f"svm, {clients:,} clients (strong), geometric graph; {report['machine']}, {report['cores']} cores"
        figure.suptitle(title, x=0.01, ha="left", fontsize=8, color="#555555")
    return figure


def _phases(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Milliseconds of each phase of an iteration, stacked."""
    for place, row in enumerate(rows):
        parts = dict(row["phases"])
        total = row["median"]
        if "compute" not in parts:  # one rank: whatever is not drawing events
            parts["compute"] = total - sum(parts.values())
        parts["rest"] = max(0.0, total - sum(parts.values()))
        left = 0.0
        for name, colour in _PHASES.items():
            width = 1e3 * parts.get(name, 0.0)
            axis.barh(place, width, left=left, color=colour, height=0.6, label=name if place == 1 else None)
            left += width
    labels = [f"{NAMES.get(r['algorithm'], r['algorithm'])}, {r['ranks']}" for r in rows]
    axis.set_yticks(range(len(rows)), labels)
    axis.invert_yaxis()
    axis.set_xlabel("ms an iteration (the slower rank)")
    axis.set_axisbelow(True)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=7)
