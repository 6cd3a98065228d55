"""A result as a notebook shows it: the table of the comparison and the picture, as HTML."""

from __future__ import annotations

import base64
from html import escape
from typing import Any, Protocol

from matplotlib.figure import Figure

from dspodfl.analysis.figures import NAMES, picture


class Shown(Protocol):
    """What is shown of a result."""

    summary: dict[str, Any]

    @property
    def title(self) -> str: ...

    def plot(self) -> Figure: ...


def html(result: Shown) -> str:
    """Write the comparison as an HTML fragment: title, table, notes on the data, and the picture inside it.

    Every name that a user has chosen is escaped; the picture is a PNG in the text itself, so that a saved notebook
    shows it anywhere.
    """
    heads, rows = table(result.summary)
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in data_notes(result.summary))
    png = base64.b64encode(picture(result.plot(), "png")).decode("ascii")
    return (
        f"<p><b>{escape(result.title)}</b></p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"
        f'<img alt="accuracy against delay" src="data:image/png;base64,{png}" style="max-width: 100%">'
    )


def table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Give the heads and the rows of the comparison, one row per algorithm, as text."""
    algorithms = summary["algorithms"]
    classified = any(found["final_accuracy"]["mean"] is not None for found in algorithms.values())
    measures = {"final_accuracy": "accuracy"} if classified else {"final_loss": "loss"}
    if not classified:
        measures["final_optimality_error"] = "‖θ̄ − θ*‖²"
    targets = [t["accuracy"] for t in next(iter(algorithms.values()))["targets"]] if classified else []
    heads = ["algorithm", *measures.values(), *(f"delay to {target:g}" for target in targets), "delay in all", "seeds"]
    rows = []
    for name, found in algorithms.items():
        cells = [_spread(found[key]) for key in measures]
        cells += [_number(target["delay_total"]["median"]) for target in found["targets"] if classified]
        cells.append(_number(found["final_delay"]["delay_total"]["median"]))
        lost = f" ({found['diverged']} diverged)" if found["diverged"] else ""
        rows.append([NAMES.get(name, name) + lost, *cells, str(found["seeds"])])
    return heads, rows


def data_notes(summary: dict[str, Any]) -> list[str]:
    """Return notes on the data that were given, e.g. that test samples were split off."""
    seeds: dict[str, dict[str, Any]] = summary["study"].get("seeds", {})
    about: dict[str, Any] = next((found["data"] for found in seeds.values()), {})
    notes = [f"test samples: {about['test_split']}"] if about.get("test_split") else []
    return notes + ([f"splits not used: {', '.join(about['unused_splits'])}"] if about.get("unused_splits") else [])


def _spread(value: dict[str, float | None]) -> str:
    if value["mean"] is None:
        return "–"
    if value["std"] is None:  # one seed has no spread
        return f"{value['mean']:.3g}"
    return f"{value['mean']:.3g} ± {value['std']:.2g}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value < 1e5 else f"{value:.1e}"
