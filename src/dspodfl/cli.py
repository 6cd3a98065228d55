"""The command line: parse, build, iterate, write."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dspodfl import theory_commands
from dspodfl._version import __version__
from dspodfl.commands import importable, register
from dspodfl.errors import ConfigError, DataError, InputError, OutOfMemoryError

if TYPE_CHECKING:
    from dspodfl.plan import Plan
    from dspodfl.results import Result

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Decentralized federated learning on uneven, unreliable devices: simulate and compare.",
)
_out = Console(width=None if sys.stdout.isatty() else 160)  # a table in a file or a pipe is never cut short
_err = Console(stderr=True)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key: table.key=value, a TOML value. Repeatable."),
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"dspodfl {__version__}")
        raise typer.Exit


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="A study; without one, the paper's default setting.")
    ] = None,
    changes: Set = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="A,B", help="Which algorithms, separated by commas.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="How many seeds.", parser=int)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write; default runs/<name>-<date>-<hash>.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a result that is already in DIR.")] = False,
    save_models: Annotated[
        bool, typer.Option("--save-models", help="Also write the final models (safetensors).")
    ] = False,
    record_events: Annotated[
        bool, typer.Option("--record-events", help="Also write what fired (events.npz), for replay.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table; errors only.")] = False,
) -> None:
    """Run a study: print the comparison, write tables and pictures."""
    show = not (quiet or as_json)
    names = None if algorithms is None else [name.strip() for name in algorithms.split(",") if name.strip()]
    try:
        from dspodfl.config import load
        from dspodfl.results import claim
        from dspodfl.simulation import Simulation

        importable(config)
        settled = load(config, changes or [], algorithms=names, seeds=seeds)
        folder = out or _default_folder(config, settled)
        claim(folder, overwrite=overwrite)
        meter = _Meter(settled.train.iterations, show)
        simulation = Simulation(
            settled, device=device, record_events=record_events, tick=meter.tick, on_plan=meter.plan
        )
    except KeyboardInterrupt:
        raise _interrupted("before anything was measured; nothing was written") from None
    interrupted, too_large = False, None
    try:
        with meter:
            for update in simulation:
                meter.show(update.rows)
    except KeyboardInterrupt:
        interrupted = True
    except OutOfMemoryError as error:
        too_large = error
    if not simulation.measured:
        if too_large:
            raise too_large
        raise _interrupted("before anything was measured; nothing was written")
    try:
        result = simulation.result()
        result.save(folder, overwrite=True, models=save_models)
    except KeyboardInterrupt:
        raise _interrupted(f"while writing {folder}") from None
    if as_json:
        typer.echo(json.dumps({"out": str(folder), **result.summary}, ensure_ascii=False))
    elif show:
        _print_result(result)
        _print_places(folder)
    if too_large:
        raise OutOfMemoryError(f"{too_large}; what was measured until then is in {folder}")
    if interrupted:
        done = result.summary["study"]["iterations_done"]
        raise _interrupted(f"after iteration {done:,}; what was measured so far is in {folder}")


def _interrupted(when: str) -> typer.Exit:
    _err.print(Text(f"interrupted {when}"), soft_wrap=True)
    return typer.Exit(130)


@app.command()
def init(file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write.")]) -> None:
    """Write a fully commented configuration, the defaults."""
    from dspodfl.config import template

    try:
        with file.open("x", encoding="utf-8") as handle:
            handle.write(template())
    except FileExistsError:
        raise InputError("file", str(file), "a file that does not exist yet") from None
    except OSError as error:
        raise InputError("file", str(file), f"a file that can be written ({error.strerror})") from None
    typer.echo(f"wrote {file}; run it with: dspodfl run {file}")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to check.")], changes: Set = None
) -> None:
    """Validate a configuration: every key, and that graph, rates, data and model can be built."""
    from dspodfl.config import load
    from dspodfl.config.build import build

    importable(file)
    settled, study, settings = build(load(file, changes or []))
    graph = settings[0].rates.graph
    typer.echo(
        f"{file}: valid. {len(study.runs)} runs ({len(settled.algorithms)} algorithms × {settled.seeds} seeds) of "
        f"{graph.n} clients, {study.model.parameters:,} parameters, {study.iterations:,} iterations"
    )


@app.command("list")
def list_names() -> None:
    """Show what can be named in a configuration, one line each."""
    for title, rows in _catalogue().items():
        _out.print(f"[bold]{title}[/bold]")
        width = max(len(name) for name in rows)
        for name, line in rows.items():
            _out.print(Text(f"  {name:<{width}}  {line}"), soft_wrap=True)


@app.command()
def show(directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]) -> None:
    """Print a finished run and draw its pictures anew."""
    from dspodfl.results import Result

    result = Result.load(directory)
    try:
        result.draw(directory)
    except OSError as error:
        raise InputError("directory", str(directory), f"a folder that can be written ({error.strerror})") from None
    _print_result(result)
    _print_places(directory)


register(app)
theory_commands.register(app)


def main() -> None:
    """Run the command line: exit code 2 and one plain message for wrong input, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show θ shows ?
    try:
        app()
    except (InputError, ConfigError, DataError, OutOfMemoryError) as error:
        for line in str(error).splitlines():
            _err.print(Text(f"error: {line}"), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _default_folder(config: Path | None, settled: Any) -> Path:
    name = config.stem if config else "default"
    digest = hashlib.sha256(settled.model_dump_json().encode()).hexdigest()[:7]
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{digest}"


class _Speed(ProgressColumn):
    """Iterations of the whole study per second."""

    def render(self, task: Task) -> Text:
        """The speed so far."""
        speed = task.finished_speed or task.speed
        return Text("  –  it/s" if speed is None else f"{speed:,.0f} it/s")


class _Meter:
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
            console=_err,
            disable=not visible,
            transient=True,
        )
        self._iterations = iterations
        self._task = self._bar.add_task("", total=iterations)
        self._shown = 0.0
        self._latest: dict[str, dict[int, float]] = {}

    def __enter__(self) -> _Meter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def plan(self, plan: Plan) -> None:
        """Count the iterations of all waves, and say so where memory made them smaller."""
        self._bar.update(self._task, total=self._iterations * len(plan.done + plan.left))
        if plan.halvings:
            sizes = ", ".join(str(len(wave)) for wave in plan.left)
            _err.print(Text(f"out of memory: going on with smaller waves (runs: {sizes})"), soft_wrap=True)

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


def _print_result(result: Result) -> None:
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
    _out.print(Text(result.title), soft_wrap=True)
    _out.print(table)
    seeds = next(iter(algorithms.values()))["seeds"]
    _out.print(
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


def _print_places(folder: Path) -> None:
    _out.print(Text(f"picture: {folder / 'accuracy_vs_delay.png'}"), soft_wrap=True)
    _out.print(Text(f"tables:  {folder}"), soft_wrap=True)


def _catalogue() -> dict[str, dict[str, str]]:
    """Everything that has a name, with the first line of its description."""
    from dspodfl.config import data_tables, graph_tables, model_tables, rate_tables, schema
    from dspodfl.config.explain import catalogue
    from dspodfl.mixing import WEIGHTS
    from dspodfl.schedule import SCHEDULES

    return {
        "algorithms": dict(SCHEDULES),
        "graphs (graph.kind)": catalogue(graph_tables.Graph),
        "changing graphs (graph.dynamics.kind)": catalogue(graph_tables.Dynamics),
        "weights (graph.weights)": dict(WEIGHTS),
        "laws (rates.sgd.law, rates.link.law)": catalogue(rate_tables.Law),
        "datasets (data.name)": catalogue(data_tables.Data),
        "partitions (data.partition.kind)": catalogue(data_tables.Partition),
        "models (model.name, or model.factory)": catalogue(model_tables.Model),
        "learning rates (train.learning_rate.kind)": catalogue(schema.LearningRate),
    }


if __name__ == "__main__":
    main()
