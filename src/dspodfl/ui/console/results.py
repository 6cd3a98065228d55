"""What is printed of a run: the comparison, where its files are, and how to resume it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dspodfl.analysis import formatting, tables
from dspodfl.study import PICTURES, say, terminal

if TYPE_CHECKING:
    from dspodfl.analysis import Cost
    from dspodfl.study import Result

OUT, ERR = terminal.OUT, terminal.ERR


def resume_advice(folder: Path) -> str:
    """The command that resumes the run in a folder."""
    return f"resume with: dspodfl run --resume {shlex.quote(str(folder))}"


def print_complete(result: Result, folder: Path, show: bool, as_json: bool) -> None:
    """Report that nothing is left to do, and print the result."""
    if as_json:
        say(json.dumps({"out": str(folder), **result.record()}, ensure_ascii=False))
    elif show:
        ERR.print(Text(f"the run in {folder} is complete; nothing is left to do"), soft_wrap=True)
        print_result(result)
        print_places(folder)


def print_result(result: Result, at: Cost | None = None) -> None:
    """Print the comparison of a run, one line an algorithm.

    Args:
        result: The run.
        at: The cost to read at; by default the budget, or the end of the iterations where there is none.
    """
    from dspodfl.analysis import compare, table

    about, config = result.summary["study"], result.config
    print_table(table(compare(result.metrics, config, about, at), result.title, config))
    OUT.print(Text(_effort(about)), soft_wrap=True)


def _effort(about: Mapping[str, Any]) -> str:
    """How long a run took, and on what."""
    seconds, speed = (about.get(key) for key in ("wall_seconds", "run_iterations_per_second"))
    if about.get("source") == "nodes":
        missing = about.get("models_missing", 0)
        lost = f"; {missing:,} model{' is' if missing == 1 else 's are'} missing" if missing else ""
        return f"trained by nodes, evaluated on {about.get('device')}, {about.get('precision')}{lost}"
    return (
        f"{formatting.seconds(seconds)}, {formatting.rate(speed)} run-iterations/s on {about.get('device')}, "
        f"{about.get('precision')}"
    )


def print_table(table: tables.Table) -> None:
    """Print a table, and below it what it comes to.

    Where the window is too narrow, the spread of a number goes below it; where that is not enough, lines are longer
    than the window: no number is cut short.
    """
    shown, wide = _rich(table, " ± ")
    if wide > OUT.width:
        shown, wide = _rich(table, "\n± ")
    if table.title:
        OUT.print(Text(table.title))
    terminal.Console(OUT.stream, width=max(OUT.width, wide)).print(shown)
    for text in (table.sentence, table.caption, *table.notes):
        if text:
            OUT.print(Text(text))


def _rich(table: tables.Table, plus: str) -> tuple[Table, int]:
    """A table for the terminal, and how wide it is."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        shown.add_column(Text(column.head), justify="left" if column.left else "right", no_wrap=True)
    for row in table.rows:
        first = row.cells[0] + (f"\n  {row.remark}" if row.remark else "")
        shown.add_row(Text(first), *(Text(cell.replace(" ± ", plus)) for cell in row.cells[1:]))
    return shown, Measurement.get(OUT, OUT.options.update(max_width=10_000), shown).maximum


def print_unfinished(result: Result, folder: Path) -> None:
    """Print how far an unfinished run is, and how to resume it."""
    from dspodfl.study.store import CheckpointStore, lock

    about = result.summary["study"]
    if about["complete"]:
        return
    holder = lock.holder(folder)
    measured = f"it was last measured at iteration {about['iterations_done']:,} of {about['iterations']:,}"
    if holder is not None:
        OUT.print(Text(f"running: process {holder} is at it; {measured}"), soft_wrap=True)
        return
    if about.get("source") == "nodes":
        how = "collect it again once its nodes are further: dspodfl nodes collect"
        OUT.print(Text(f"unfinished: {measured}; {how}"), soft_wrap=True)
        return
    start, damaged = CheckpointStore(folder).newest_iteration()
    where = "no checkpoint was written yet" if start is None else f"its newest checkpoint is of iteration {start:,}"
    note = f" ({'; '.join(damaged)})" if damaged else ""
    OUT.print(Text(f"unfinished: {measured}; {where}{note}; {resume_advice(folder)}"), soft_wrap=True)


def print_places(folder: Path, drawn: bool = True) -> None:
    """Where the picture and the tables are."""
    if drawn:
        OUT.print(Text(f"picture: {folder / PICTURES[0].files[0]}"), soft_wrap=True)
    OUT.print(Text(f"tables:  {folder}"), soft_wrap=True)
