"""Commands about grids of studies: sweep, reproduce, report."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dspodfl.errors import DataError, InputError, Interrupt, Interrupted, OutOfMemoryError
from dspodfl.study import for_command, say, spent
from dspodfl.ui.cli.options import number, whole
from dspodfl.ui.cli.run import importable
from dspodfl.ui.console.results import ERR, OUT, print_table

if TYPE_CHECKING:
    from dspodfl.analysis import Cost
    from dspodfl.config import Cell
    from dspodfl.experiments import Experiment, Outcome


Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only: no progress and no table.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (sweep, reproduce, report):
        app.command()(command)


def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration to vary.")],
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="KEY=V,V",
            help="Values of a key: table.key=value,value. Repeatable; the grid is the product.",
        ),
    ],
    at_delay: Annotated[
        float | None,
        typer.Option(help="Compare accuracies at this raw total delay; default: at the end.", parser=number),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a configuration key: table.key=value. Repeatable."),
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="A,B", help="Algorithms to compare, separated by commas.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Number of seeds.", parser=whole)] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Output folder; default: runs/<name>-sweep-<hash>."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a different grid in DIR.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run a study over a grid of settings; the same command resumes an interrupted sweep."""
    from dspodfl.analysis import METRICS
    from dspodfl.config import Axis, cells, load
    from dspodfl.experiments import Experiment, Read

    if at_delay is not None and not 0 < at_delay < float("inf"):
        raise InputError("--at-delay", at_delay, "a finite number above 0")
    names = None if algorithms is None else [name.strip() for name in algorithms.split(",") if name.strip()]
    importable(config)
    base = load(config, changes or [], algorithms=names, seeds=seeds).model_dump(exclude_unset=True)
    if at_delay is not None:
        base.setdefault("eval", {})["at_delay"] = [at_delay]
    axes = [Axis.parse(text) for text in over]
    grid = cells(base, axes, METRICS)
    experiment = Experiment(
        name=config.stem,
        title=f"{config.stem} over {', '.join(axis.name for axis in axes)}",
        paper="",
        kind="sweep",
        dataset=grid[0].config.data.name,
        seeds=grid[0].config.seeds,
        claim="",
        base=base,
        over=[{"name": axis.name, "values": [point.value for point in axis.points]} for axis in axes],
        read=Read(at_delay=at_delay),
    )
    digest = hashlib.sha256("".join(cell.digest for cell in grid).encode()).hexdigest()[:7]
    folder = out or Path("runs") / f"{config.stem}-sweep-{digest}"
    outcome = _carry_out(experiment, grid, folder, folder / "cells", device, overwrite, quiet)
    if not quiet:
        _print(outcome, folder)


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Names of experiments, or all.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Number of seeds; default: that of each experiment.", parser=whole)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use fewer seeds and points, and the bundled sample of Fashion-MNIST.")
    ] = False,
    device: Device = "auto",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Output folder, with a folder for each experiment.")
    ] = Path("reproduced"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a result of other settings in DIR.")] = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce figures and tables of the paper and check its claims; the same command resumes."""
    from dspodfl.engine import choose_device
    from dspodfl.experiments import definition as experiments
    from dspodfl.study.store import claim as usable

    if list_them or not names:
        for name in experiments.names():
            found = experiments.named(name)
            OUT.print(Text(f"  {name:<32} {found.paper:<28} {found.title}"), soft_wrap=True)
        if not list_them:
            raise InputError("NAME", "", "given: one or more of the names above, or all")
        return
    if seeds is not None and seeds < 1:
        raise InputError("--seeds", seeds, "an integer of at least 1")
    choose_device(device)
    wanted = experiments.names() if "all" in names else list(dict.fromkeys(names))
    chosen = [experiments.named(name) for name in wanted]
    chosen.sort(key=lambda e: any(check.baseline for check in e.check))  # after what they are compared with
    if quick:  # what has no bundled data is left out, and said
        left = [e.name for e in chosen if e.dataset != "fmnist"]
        chosen = [e for e in chosen if e.dataset == "fmnist"]
        if not chosen:
            raise InputError(
                "NAME", ", ".join(left), "an experiment on Fashion-MNIST, whose bundled sample --quick takes"
            )
        if left and not quiet:
            ERR.print(Text(f"left out by --quick, which has no data for them: {', '.join(left)}"), soft_wrap=True)
    for experiment in chosen:  # before anything is run
        usable(out / experiment.name, overwrite=True)
    started = time.monotonic()
    for place, experiment in enumerate(chosen, 1):
        if not quiet:
            ERR.print(Text(f"[{place}/{len(chosen)}] {experiment.name}: {experiment.title}"), soft_wrap=True)
        grid = experiment.cells(quick=quick, seeds=seeds)
        outcome = _carry_out(experiment, grid, out / experiment.name, out / "cells", device, overwrite, quiet, quick)
        if not quiet:
            _print(outcome, out / experiment.name)
    if not quiet:
        count = f"{len(chosen)} experiment{'s' if len(chosen) > 1 else ''}"
        ERR.print(Text(f"{count} in {time.monotonic() - started:.0f} s; see: dspodfl report {out}"))


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of runs, sweeps or reproductions.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="The page to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one self-contained HTML page: figures, tables, settings, provenance and checks of the paper's claims."""
    from dspodfl.study.store import write
    from dspodfl.ui.html.page import compose

    made = compose(folders)
    content = made.html
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, content.encode(errors="backslashreplace"))
    except OSError as error:
        raise InputError("--out", str(out), f"a file that can be written ({error.strerror})") from None
    for reason in made.skipped:
        ERR.print(Text(f"skipped {reason}"), soft_wrap=True)
    say(f"wrote {out}")


def _carry_out(
    experiment: Experiment,
    grid: list[Cell],
    folder: Path,
    store: Path,
    device: str,
    overwrite: bool,
    quiet: bool,
    quick: bool = False,
) -> Outcome:
    """Run what is not finished of a grid, and write what it came to."""
    from dspodfl.experiments import Outcome, Sweep, claim
    from dspodfl.study.store import claim as usable

    content = {
        "name": experiment.name,
        "axes": experiment.axes,
        "read": experiment.read.model_dump(),
        "cells": {cell.digest: dict(cell.point) for cell in grid},
    }
    usable(folder, overwrite=True)
    progress = for_command(quiet)
    run = Sweep(grid, experiment.axes, store, device, progress=progress)
    with progress:
        run.prepare()
    former = {cell.former_digest: cell.digest for cell in grid if cell.former_digest is not None}
    claim(folder, content, overwrite=overwrite, former=former)
    if run.finished and not quiet:
        ERR.print(Text(f"{len(run.finished)} of {len(grid)} cells were finished before"), soft_wrap=True)
    try:
        with Interrupt(), progress:
            for _ in run:
                pass
    except (Interrupted, OutOfMemoryError) as error:
        done = f"{len(run.finished)} of {len(grid)} cells are finished and kept in {store}"
        if isinstance(error, OutOfMemoryError):
            raise OutOfMemoryError(f"{error}; {done}") from None
        ERR.print(Text(f"interrupted; {done}: the same command resumes it"), soft_wrap=True)
        raise typer.Exit(error.code) from None
    about = run.about() | {"quick": quick}
    outcome = Outcome.of(experiment, grid, run.metrics(), about, folder)
    try:
        with run.timing.during("writing"):
            outcome.save(folder)
    except OSError as error:
        raise DataError(f"{folder}: the result could not be written ({error})") from error
    if not quiet and run.timing.total > 1.0:
        ERR.print(Text(spent(run.timing.seconds)), soft_wrap=True)
    return outcome


def _print(outcome: Outcome, folder: Path) -> None:
    """Print the table, the claim checks and where the files are."""
    print_outcome(outcome)
    OUT.print(Text(f"picture: {folder / 'figure.png'}"), soft_wrap=True)
    OUT.print(Text(f"tables:  {folder}"), soft_wrap=True)


def print_outcome(outcome: Outcome, at: Cost | None = None) -> None:
    """Print the table of a sweep or a reproduction, and the claim checks.

    Args:
        outcome: What was measured.
        at: The cost to read at; by default where the outcome was read. Claim checks are of the default alone.
    """
    from dspodfl.experiments import outcome_table

    print_table(outcome_table(outcome, at))
    for found in outcome.checks if at is None else []:
        OUT.print(Text(f"  {found.status}: {found.sentence}"), soft_wrap=True)
