"""The report as a table, in a terminal or a pipe."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.machine import Machine
from benchmarks.rows import Report, Row

_SUPERSCRIPTS = str.maketrans("0123456789,", "⁰¹²³⁴⁵⁶⁷⁸⁹˒")
_STEADY = 1.2
"""Rates at the start and at the end that are further apart than this say that the machine was not ours alone."""
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def show(report: Report, console: Console | None = None) -> None:
    """Print the machine's rates, the rows and their footnotes."""
    console = console or Console(width=None if sys.stdout.isatty() else 180)
    machine = report.machine
    program = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    for line in (
        f"{machine.name}, {machine.threads} threads; {program}",
        rates(machine),
    ):
        console.print(line, markup=False, highlight=False)
    if report.after is not None:
        moved = max(_apart(machine.bandwidth, report.after.bandwidth), *map(_apart, *_both(machine, report.after)))
        warning = "; something else took the machine's time: measure again" if moved > _STEADY else ""
        console.print(f"at the end: {rates(report.after)}{warning}", markup=False, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in ("time", "careful loop", "research loop", "floor", "× floor"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("target", overflow="fold")
    table.add_column("", no_wrap=True)
    notes: list[str] = []
    for row in report.rows:
        table.add_row(*_cells(row, notes))
    console.print(table, markup=False, highlight=False)
    for number, note in enumerate(notes, 1):
        console.print(f"{str(number).translate(_SUPERSCRIPTS)} {note}", markup=False, highlight=False)
    for name, why in report.failed.items():
        console.print(f"not measured: {name} ({why})", markup=False, highlight=False)


def _cells(row: Row, notes: list[str]) -> tuple[str | Text, ...]:
    for note in row.notes:
        if note not in notes:
            notes.append(note)
    marks = ",".join(str(notes.index(note) + 1) for note in row.notes).translate(_SUPERSCRIPTS)
    per = "" if row.per == "iteration" else f", per {row.per}" if row.per else ""
    verdict = {True: "met", False: "not met", None: ""}[row.met]
    return (
        Text(f"{row.what}{per}{marks}"),
        duration(row.seconds),
        _times(row.careful),
        _times(row.research),
        duration(row.floor),
        f"{row.over_floor:.2f}",
        Text(row.target),
        verdict,
    )


def rates(machine: Machine) -> str:
    """The machine's own rates in a line."""
    products = ", ".join(f"{precision} {rate / 1e12:.3g} TFLOP/s" for precision, rate in machine.rates.items())
    return f"copying {machine.bandwidth / 1e9:.4g} GB/s (read + written); products: {products}"


def _both(one: Machine, other: Machine) -> tuple[list[float], list[float]]:
    return list(one.rates.values()), list(other.rates.values())


def _apart(one: float, other: float) -> float:
    return max(one, other) / min(one, other)


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3g}×"


def duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> duration(0.00123)
    '1.23 ms'
    """
    size, unit = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return f"{seconds / size:.3g} {unit}"
