"""What a run shows: its progress, the comparison, where things lie, and how to go on."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dspodfl.plan import Plan
    from dspodfl.results import Result

OUT = Console(width=None if sys.stdout.isatty() else 240)  # a table in a file or a pipe is never cut short
ERR = Console(stderr=True)


def how_to_resume(folder: Path) -> str:
    """The command that goes on with the run in a folder."""
    return f"go on with: dspodfl run --resume {shlex.quote(str(folder))}"


def print_complete(result: Result, folder: Path, show: bool, as_json: bool) -> None:
    """Nothing is left to do: say so, and what it came to."""
    if as_json:
        typer.echo(json.dumps({"out": str(folder), **result.record()}, ensure_ascii=False))
    elif show:
        ERR.print(Text(f"the run in {folder} is complete; nothing is left to do"), soft_wrap=True)
        print_result(result)
        print_places(folder)


class _Speed(ProgressColumn):
    """Iterations of the whole study per second."""

    def render(self, task: Task) -> Text:
        """The speed so far."""
        speed = task.finished_speed or task.speed
        return Text("  –  it/s" if speed is None else f"{speed:,.0f} it/s")


class Meter:
    """Live progress: iteration, speed, time left, and the current accuracy of each algorithm."""

    def __init__(self, iterations: int, visible: bool) -> None:
        self._bar = Progress(
            TextColumn("iteration"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            _Speed(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=ERR,
            disable=not visible,
            transient=True,
        )
        self._iterations = iterations
        self._task = self._bar.add_task("", total=iterations)
        self._shown = 0.0
        self._latest: dict[str, dict[int, float]] = {}

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def plan(self, plan: Plan) -> None:
        """Count the iterations of all waves, and say so where memory made them smaller."""
        self._bar.update(self._task, total=self._iterations * len(plan.done + plan.left))
        if plan.halvings:
            sizes = ", ".join(str(len(wave)) for wave in plan.left)
            ERR.print(Text(f"out of memory: going on with smaller waves (runs: {sizes})"), soft_wrap=True)

    def tick(self, iteration: int) -> None:
        """Move the bar, ten times a second at most."""
        now = time.monotonic()
        if now - self._shown > 0.1:
            self._shown = now
            self._bar.update(self._task, completed=iteration)

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Say the accuracies (for regression, the losses) that were just measured, averaged over seeds."""
        for row in rows:
            value = row["loss"] if row["accuracy"] is None else row["accuracy"]
            if value is not None:
                self._latest.setdefault(row["algorithm"], {})[row["seed"]] = value
        means = {name: sum(values.values()) / len(values) for name, values in self._latest.items()}
        self._bar.update(self._task, description="  ".join(f"{name} {mean:.3f}" for name, mean in means.items()))


def print_result(result: Result) -> None:
    """The comparison, one line an algorithm."""
    from dspodfl.plots import NAMES

    about, algorithms = result.summary["study"], result.summary["algorithms"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("algorithm", no_wrap=True)
    classified = bool(result.metrics["accuracy"].notna().any())
    targets = [t["accuracy"] for t in next(iter(algorithms.values()))["targets"]] if classified else []
    heads = ["accuracy", *(f"delay\nto {target:g}" for target in targets)] if classified else ["loss", "‖θ̄ − θ*‖²"]
    for head in (*heads, "delay\nin all"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, found in algorithms.items():
        cells = [_pm(found["final_accuracy"])] if classified else []
        cells += [] if classified else [_pm(found["final_loss"]), _pm(found["final_optimality_error"])]
        for target in found["targets"] if classified else []:
            reached = "" if target["reached"] == found["seeds"] else f" {target['reached']}/{found['seeds']}"
            cells.append(_number(target["delay_total"]["median"]) + reached)
        cells.append(_number(found["final_delay"]["delay_total"]["median"]))
        note = f" ({found['diverged']} diverged)" if found["diverged"] else ""
        table.add_row(NAMES.get(name, name) + note, *cells)
    OUT.print(Text(result.title), soft_wrap=True)
    OUT.print(table)
    seeds = next(iter(algorithms.values()))["seeds"]
    OUT.print(
        Text(
            f"after {about['iterations_done']:,} of {about['iterations']:,} iterations; mean ± std over {seeds} "
            f"seed{'' if seeds == 1 else 's'}; "
            "delays are raw totals, median over seeds (n/m: reached by n of m runs, the others count as infinite)"
            f"\n{about['wall_seconds']:.1f} s, {_speed(about['run_iterations_per_second'])} run-iterations/s on "
            f"{about['device']}, {about['precision']}"
        ),
        soft_wrap=True,
    )


def _pm(value: dict[str, float | None]) -> str:
    if value["mean"] is None or value["std"] is None:
        return "–"
    plain = value["mean"] == 0 or 1e-3 <= abs(value["mean"]) < 1e4
    return f"{value['mean']:.3f} ± {value['std']:.3f}" if plain else f"{value['mean']:.2e} ± {value['std']:.1e}"


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value < 1e5 else f"{value:.1e}"


def print_unfinished(result: Result, folder: Path) -> None:
    """Where a run stands that has something left to do, and how to go on with it."""
    from dspodfl import lock
    from dspodfl.checkpoint import Store

    about = result.summary["study"]
    if about["complete"]:
        return
    holder = lock.holder(folder)
    stands = f"it was last measured at iteration {about['iterations_done']:,} of {about['iterations']:,}"
    if holder is not None:
        OUT.print(Text(f"running: process {holder} is at it; {stands}"), soft_wrap=True)
        return
    start, damaged = Store(folder).newest_iteration()
    where = "no checkpoint was written yet" if start is None else f"its newest checkpoint is of iteration {start:,}"
    note = f" ({'; '.join(damaged)})" if damaged else ""
    OUT.print(Text(f"unfinished: {stands}; {where}{note}; {how_to_resume(folder)}"), soft_wrap=True)


def print_places(folder: Path, drawn: bool = True) -> None:
    """Where the picture and the tables are."""
    if drawn:
        OUT.print(Text(f"picture: {folder / 'accuracy_vs_delay.png'}"), soft_wrap=True)
    OUT.print(Text(f"tables:  {folder}"), soft_wrap=True)
