"""``python -m benchmarks.markdown FILE.json…``: reports as the tables of docs/performance.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import nodes
from benchmarks.rows import Report
from benchmarks.table import duration, rates


def markdown(report: Report) -> str:
    """The machine, its rates and the rows of a report."""
    program = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    threads = f", {report.machine.threads} threads" if report.kind == "cpu" else ""
    lines = [
        f"{report.machine.name}{threads}; {program}. {rates(report.machine)}.",
        "",
        "| | time | careful loop takes | research loop takes | floor | × floor | target | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report.rows:
        loops = ("–" if value is None else f"{value:.3g}×" for value in (row.careful, row.research))
        verdict = {True: "met", False: "**not met**", None: ""}[row.met]
        per = "" if row.per in ("", "iteration") else f", per {row.per}"
        cells = (
            row.what.strip() + per,
            duration(row.seconds),
            *loops,
            duration(row.floor),
            f"{row.over_floor:.2f}",
            row.target,
            verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    notes = list(dict.fromkeys(note for row in report.rows for note in row.notes))
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def _table(file: Path) -> str:
    """The table of a file: that of nodes is a list of figures, others are reports."""
    text = file.read_text()
    return nodes.markdown(nodes.read(text)) if text.lstrip().startswith("[") else markdown(Report.read(file))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.markdown", description="Reports as Markdown tables.")
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE.json", help="what python -m benchmarks --json wrote"
    )
    given = parser.parse_args(arguments)
    try:
        print("\n\n".join(_table(file) for file in given.files))
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"not a report of the benchmarks: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
