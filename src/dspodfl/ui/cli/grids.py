"""Commands about grids of studies: sweep, reproduce, report."""

from __future__ import annotations

import hashlib
import time
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dspodfl.errors import DataError, InputError, Interrupt, Interrupted, LostRankError, OutOfMemoryError
from dspodfl.study import for_command, say, spent
from dspodfl.ui.cli.launch import check_ranks, launch
from dspodfl.ui.cli.options import (
    Algorithms,
    Device,
    MaxRestarts,
    Output,
    Quiet,
    Ranks,
    Seeds,
    Set,
    names_in,
)
from dspodfl.ui.cli.run import importable
from dspodfl.ui.console.results import ERR, OUT, print_table

if TYPE_CHECKING:
    from dspodfl.analysis import Cost
    from dspodfl.config import Cell, Config
    from dspodfl.engine import Transport
    from dspodfl.experiments import Experiment, ExperimentResult, GridFolder, Sweep

_AGAIN = "the same command resumes it"
_AT_HAND = ("fmnist", "ridge")
"""The data that --quick needs no download for: a sample of them is bundled, or they are drawn."""


@dataclass(frozen=True)
class SweepOptions:
    """The options of ``dspodfl sweep``."""

    config: Path
    over: list[str]
    at_delay: float | None = None
    changes: list[str] = field(default_factory=list)
    algorithms: list[str] | None = None
    seeds: int | None = None
    device: str = "auto"
    output: Output = field(default_factory=Output)
    resolved: str | None = None
    """The configuration as TOML, once it was read and changed: ranks get it from their launcher."""

    def load(self) -> Config:
        """Read the configuration that is varied."""
        from dspodfl.config import Config, load

        importable(self.config)
        if self.resolved is not None:
            return Config(**tomllib.loads(self.resolved))
        return load(self.config, self.changes, algorithms=self.algorithms, seeds=self.seeds)


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of ``dspodfl reproduce``."""

    names: list[str]
    seeds: int | None = None
    quick: bool = False
    device: str = "auto"
    output: Output = field(default_factory=Output)


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
        typer.Option(help="Compare accuracies at this raw total delay; default: at the end."),
    ] = None,
    changes: Set = None,
    algorithms: Algorithms = None,
    seeds: Seeds = None,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Output folder; default: runs/<name>-sweep-<hash>."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a different grid in DIR.")] = False,
    ranks: Ranks = None,
    max_restarts: MaxRestarts = 0,
    quiet: Quiet = False,
) -> None:
    """Run a study over a grid of settings; the same command resumes an interrupted sweep."""
    output = Output(out, overwrite, quiet)
    options = SweepOptions(config, over, at_delay, changes or [], names_in(algorithms), seeds, device, output)
    if at_delay is not None and not 0 < at_delay < float("inf"):
        raise InputError("--at-delay", at_delay, "a finite number above 0")
    if ranks is not None or max_restarts:
        from dspodfl.config import dumps

        count = check_ranks(ranks)
        options = replace(options, resolved=dumps(options.load().model_dump(exclude_unset=True)))
        raise typer.Exit(_launched("sweep", options, count, max_restarts))
    sweep_command(options)


def sweep_command(options: SweepOptions) -> None:
    """Run a sweep; rank 0 of several shows and writes."""
    from dspodfl.analysis import METRICS
    from dspodfl.config import Axis, cells
    from dspodfl.experiments import Experiment, Read

    config, at_delay = options.config, options.at_delay
    base = options.load().model_dump(exclude_unset=True)
    if at_delay is not None:
        base.setdefault("eval", {})["at_delay"] = [at_delay]
    axes = [Axis.parse(text) for text in options.over]
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
    folder = options.output.out or Path("runs") / f"{config.stem}-sweep-{digest}"
    ranks = _Ranks.join(options.device, options.output)
    outcome = ranks.run(experiment, grid, folder, folder / "cells")
    ranks.leave()
    if outcome is not None and ranks.shows:
        _print(outcome, folder)


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Names of experiments, or all.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Number of seeds; default: that of each experiment.", min=1)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use fewer seeds and points, and the bundled sample of Fashion-MNIST.")
    ] = False,
    device: Device = "auto",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Output folder, with a folder for each experiment.")
    ] = Path("reproduced"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a result of other settings in DIR.")] = False,
    ranks: Ranks = None,
    max_restarts: MaxRestarts = 0,
    quiet: Quiet = False,
) -> None:
    """Reproduce figures and tables of the paper and check its claims; the same command resumes."""
    from dspodfl.experiments import definition as experiments

    if list_them or not names:
        for name in experiments.names():
            found = experiments.named(name)
            OUT.print(Text(f"  {name:<32} {found.paper:<28} {found.title}"), soft_wrap=True)
        if not list_them:
            raise InputError("NAME", "", "given: one or more of the names above, or all")
        return
    options = ReproduceOptions(names, seeds, quick, device, Output(out, overwrite, quiet))
    if ranks is not None or max_restarts:
        raise typer.Exit(_launched("reproduce", options, check_ranks(ranks), max_restarts))
    reproduce_command(options)


def reproduce_command(options: ReproduceOptions) -> None:
    """Run experiments of the paper; rank 0 of several shows and writes."""
    from dspodfl.engine import choose_device
    from dspodfl.experiments import GridFolder
    from dspodfl.study import agreed

    out = options.output.out or Path("reproduced")
    choose_device(options.device)
    selected, left = _selected(options)
    ranks = _Ranks.join(options.device, options.output)
    show = ranks.shows
    if left and show:
        ERR.print(Text(f"left out by --quick, which has no data for them: {', '.join(left)}"), soft_wrap=True)
    for experiment in selected:  # before anything is run
        agreed(ranks.team, lambda name=experiment.name: GridFolder(out / name).check())  # type: ignore[misc]
    started = time.monotonic()
    for place, experiment in enumerate(selected, 1):
        if show:
            ERR.print(Text(f"[{place}/{len(selected)}] {experiment.name}: {experiment.title}"), soft_wrap=True)
        grid = experiment.cells(quick=options.quick, seeds=options.seeds)
        outcome = ranks.run(experiment, grid, out / experiment.name, out / "cells", options.quick)
        if outcome is not None and show:
            _print(outcome, out / experiment.name)
    ranks.leave()
    if show:
        count = f"{len(selected)} experiment{'s' if len(selected) > 1 else ''}"
        ERR.print(Text(f"{count} in {time.monotonic() - started:.0f} s; see: dspodfl report {out}"))


def _selected(options: ReproduceOptions) -> tuple[list[Experiment], list[str]]:
    """The experiments that are named, and the names of those that --quick leaves out: it has no data for them."""
    from dspodfl.experiments import definition as experiments

    given = [part for name in options.names for part in (experiments.paper_names() if name == "all" else [name])]
    wanted = list(dict.fromkeys(given))
    selected = [experiments.named(name) for name in wanted]
    selected.sort(key=lambda e: any(check.baseline for check in e.check))  # after what they are compared with
    if not options.quick:
        return selected, []
    left = [e.name for e in selected if e.dataset not in _AT_HAND]
    selected = [e for e in selected if e.dataset in _AT_HAND]
    if not selected:
        raise InputError("NAME", ", ".join(left), "an experiment on Fashion-MNIST, whose bundled sample --quick takes")
    return selected, left


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


def _launched(command: str, options: SweepOptions | ReproduceOptions, ranks: int, max_restarts: int) -> int:
    try:
        return launch(command, options, ranks, max_restarts)
    except LostRankError as error:
        raise LostRankError(f"{error}; {_AGAIN}") from None


@dataclass(frozen=True, eq=False)
class _Ranks:
    """This process, alone or among those that run a grid together."""

    team: Transport
    device: str
    output: Output

    @staticmethod
    def join(device: str, output: Output) -> _Ranks:
        """Join the other ranks, if there are any."""
        from dspodfl.engine.transport import torch_distributed as distributed

        team, device = distributed.join(device)
        return _Ranks(team, device, output)

    @property
    def shows(self) -> bool:
        """Whether this process prints anything but errors."""
        return self.team.rank == 0 and self.output.prints

    def leave(self) -> None:
        """Leave the group of ranks."""
        self.team.leave()

    def run(
        self, experiment: Experiment, grid: list[Cell], folder: Path, store: Path, quick: bool = False
    ) -> ExperimentResult | None:
        """Run what is not finished of a grid and, on rank 0, write and return the result."""
        from dspodfl.experiments import ExperimentResult, GridFolder

        first = self.team.rank == 0
        with GridFolder(folder) as files:
            run = self._run(experiment, grid, files, store)
        if not first:
            return None
        outcome = ExperimentResult.of(experiment, grid, run.metrics(), run.about() | {"quick": quick}, folder)
        try:
            with run.timing.during("writing"):
                outcome.save(folder)
        except OSError as error:
            raise DataError(f"{folder}: the result could not be written ({error})") from error
        if self.shows and run.timing.total > 1.0:
            ERR.print(Text(spent(run.timing.seconds)), soft_wrap=True)
        return outcome

    def _run(self, experiment: Experiment, grid: list[Cell], files: GridFolder, store: Path) -> Sweep:
        """Claim the folder, and run the cells that are not finished."""
        from dspodfl.experiments import Sweep
        from dspodfl.study import agreed

        team, first = self.team, self.team.rank == 0
        agreed(team, files.check)
        progress, interrupt = for_command(not self.shows), Interrupt()
        stop = lambda: bool(interrupt.received)  # noqa: E731
        run = Sweep(grid, experiment.axes, store, self.device, progress=progress, folder=files, stop=stop, team=team)
        with progress:
            run.prepare()
        team.set_timeout(grid[0].config.scale.timeout)
        former = {cell.former_digest: cell.digest for cell in grid if cell.former_digest is not None}
        content = {
            "name": experiment.name,
            "axes": experiment.axes,
            "read": experiment.read.model_dump(),
            "cells": {cell.digest: dict(cell.point) for cell in grid},
        }
        overwrite = self.output.overwrite
        agreed(team, lambda: files.claim(content, overwrite=overwrite, former=former) if first else None)
        if run.finished and self.shows:
            ERR.print(Text(f"{len(run.finished)} of {len(grid)} cells were finished before"), soft_wrap=True)
        error: Interrupted | OutOfMemoryError | None = None
        try:
            with interrupt, progress, interrupt.deferred():
                for _ in run:
                    pass
        except (Interrupted, OutOfMemoryError) as found:
            error = found
        if error is None and not run.stopped and not team.any(stop()):
            return run
        done = f"{len(run.finished)} of {len(grid)} cells are finished and kept in {store}"
        if isinstance(error, OutOfMemoryError):
            raise OutOfMemoryError(f"{error}; {done}") from None
        if first:
            ERR.print(Text(f"interrupted; {done}: {_AGAIN}"), soft_wrap=True)
        raise typer.Exit(getattr(error or interrupt.received, "code", 130)) from None


def _print(outcome: ExperimentResult, folder: Path) -> None:
    """Print the table, the claim checks and where the files are."""
    print_outcome(outcome)
    OUT.print(Text(f"picture: {folder / 'figure.png'}"), soft_wrap=True)
    OUT.print(Text(f"tables:  {folder}"), soft_wrap=True)


def print_outcome(outcome: ExperimentResult, at: Cost | None = None) -> None:
    """Print the table of a sweep or a reproduction, and the claim checks.

    Args:
        outcome: What was measured.
        at: The cost to read at; by default where the outcome was read. Claim checks are of the default alone.
    """
    from dspodfl.experiments import outcome_table

    print_table(outcome_table(outcome, at))
    for found in outcome.checks if at is None else []:
        OUT.print(Text(f"  {found.status}: {found.sentence}"), soft_wrap=True)
