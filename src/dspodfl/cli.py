"""The command line: parse, build, iterate, write."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dspodfl._version import __version__
from dspodfl.commands import register
from dspodfl.display import ERR, OUT, Meter, how_to_resume, print_complete, print_places, print_result, print_unfinished
from dspodfl.errors import ConfigError, DataError, InputError, LostRankError, OutOfMemoryError

if TYPE_CHECKING:
    from dspodfl.config import Config
    from dspodfl.keeper import Keeper
    from dspodfl.resume import Unfinished

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Decentralized federated learning on uneven, unreliable devices: simulate and compare.",
)

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
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Go on with the run in DIR, which was interrupted or died, as it was asked for."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Run on N processes of this machine; torchrun does it on many.", parser=int),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            metavar="N", help="With --ranks: start anew so often, from the last checkpoint, if one dies.", parser=int
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table; errors only.")] = False,
) -> None:
    """Run a study: print the comparison, write tables and pictures.

    Ctrl-C and SIGTERM put away where it stands, and write what was measured (exit codes 130 and 143); a run that was
    interrupted, or died, is gone on with by --resume.
    """
    names = None if algorithms is None else [name.strip() for name in algorithms.split(",") if name.strip()]
    how = {"changes": changes or [], "algorithms": names, "seeds": seeds}
    if ranks is not None or max_restarts:
        flags = {"overwrite": overwrite, "save-models": save_models, "record-events": record_events}
        flags |= {"json": as_json, "quiet": quiet}
        raise typer.Exit(_on_ranks(ranks, max_restarts, config, how, device, out, resume, flags))
    from dspodfl import distributed
    from dspodfl.interrupt import Interrupt, Interrupted

    first = distributed.rank() == 0
    show = first and not (quiet or as_json)
    with ExitStack() as ends:
        interrupt = ends.enter_context(Interrupt())
        try:
            from dspodfl.results import Result
            from dspodfl.resume import begun, complete
            from dspodfl.scale import agreed
            from dspodfl.simulation import Simulation

            team, device = distributed.join(device)
            if resume is None and out is not None and distributed.restarts():
                # What stands there is what this very run left when one of its processes died.
                resume, out, overwrite = (out, None, False) if begun(out) else (None, out, True)
            if resume is not None and complete(resume):
                if first:
                    print_complete(Result.load(resume), resume, show, as_json)
                return
            options = {"models": save_models, "record": record_events, "beside": ""}
            if resume is None:
                settled, keeper, before = agreed(team, lambda: _new(config, how, out, overwrite, options, ends, first))
            else:
                there, elsewhere = resume, out is not None or overwrite
                settled, keeper, before = agreed(
                    team, lambda: _unfinished(config, how, there, elsewhere, options, ends, first)
                )
            team.patience(settled.scale.timeout)
            folder, record = team.share(keeper and keeper.folder), bool(options["record"])
            meter = Meter(settled.train.iterations, show)
            simulation = Simulation(
                settled,
                device=device,
                record_events=record and first,
                tick=meter.tick,
                on_plan=meter.plan if first else None,
                team=team,
            )
            for note in simulation.keep(keeper, lambda: bool(interrupt.heard), overwrite=overwrite, before=before):
                if first:
                    ERR.print(Text(note), soft_wrap=True)
        except Interrupted as error:
            what = "nothing was written" if resume is None else "its folder is as it was"
            raise _interrupted(error, f"before anything was measured; {what}") from None
        too_large, doing = None, f"at once; {how_to_resume(folder)}"
        try:
            with interrupt.patiently():
                try:
                    with meter:
                        for update in simulation:
                            meter.show(update.rows)
                except OutOfMemoryError as error:
                    if not simulation.measured:
                        raise
                    too_large = error
                doing = f"while writing {folder}; {how_to_resume(folder)}"
                result = simulation.result(models=bool(options["models"]))
                if keeper:
                    keeper.finish(result, models=bool(options["models"]))
                team.leave()
        except KeyboardInterrupt as error:
            raise _interrupted(error, doing) from None
        except LostRankError as error:
            raise LostRankError(f"{error}; {how_to_resume(folder)}") from error
    if not first:
        raise typer.Exit(getattr(interrupt.heard, "code", 0) if simulation.stopped else 0)
    if as_json:
        typer.echo(json.dumps({"out": str(folder), **result.summary}, ensure_ascii=False))
    elif show:
        print_result(result)
        print_places(folder)
    if too_large:
        raise OutOfMemoryError(f"{too_large}; what was measured until then is in {folder}")
    if simulation.stopped and not simulation.complete:
        where = f"after iteration {result.summary['study']['interrupted_at']:,}"
        raise _interrupted(
            interrupt.heard, f"{where}; what was measured so far is in {folder}; {how_to_resume(folder)}"
        )


def _new(
    config: Path | None,
    how: dict[str, Any],
    out: Path | None,
    overwrite: bool,
    options: dict[str, Any],
    ends: ExitStack,
    first: bool,
) -> tuple[Config, Keeper | None, None]:
    """The configuration and, on the first rank, the keeper of a new run."""
    from dspodfl.config import load
    from dspodfl.keeper import Keeper
    from dspodfl.results import claim

    _importable(config)
    settled = load(config, **how)
    if not first:
        return settled, None, None
    folder = out or _default_folder(config, settled)
    claim(folder, overwrite=overwrite)
    options["beside"] = str((config or Path()).resolve().parent)
    return settled, ends.enter_context(Keeper(folder, options)), None


def _unfinished(
    config: Path | None,
    how: dict[str, Any],
    folder: Path,
    elsewhere: bool,
    options: dict[str, Any],
    ends: ExitStack,
    first: bool,
) -> tuple[Config, Keeper | None, Unfinished]:
    """The configuration and, on the first rank, the keeper of a run that is gone on with, as it was asked for."""
    from dspodfl.config import load
    from dspodfl.keeper import Keeper
    from dspodfl.resume import CONFIG, Unfinished

    if elsewhere:
        allowed = "given without --out and --overwrite: a run that is gone on with stays in its folder"
        raise InputError("--resume", str(folder), allowed)
    keeper = ends.enter_context(Keeper(folder, options)) if first else None
    if keeper:
        keeper.reopen()
    before = Unfinished.read(folder)
    options |= {key: value for key, value in before.options.items() if value}
    _importable(config)
    _importable(Path(options["beside"]) / CONFIG)
    if config is None and not (folder / CONFIG).is_file():
        given = f"dspodfl run {CONFIG} --resume {folder}"
        raise DataError(f"{folder}: {CONFIG} is missing; name the one that the run began with: {given}")
    return load(config or folder / CONFIG, **how), keeper, before


def _on_ranks(
    ranks: int | None,
    max_restarts: int,
    config: Path | None,
    how: dict[str, Any],
    device: str,
    out: Path | None,
    resume: Path | None,
    flags: dict[str, bool],
) -> int:
    """Launch the same command on several processes of this machine, once it is known that it can be run."""
    from dspodfl import distributed
    from dspodfl.config import load
    from dspodfl.results import claim
    from dspodfl.resume import begun

    if distributed.launched():
        raise InputError("ranks", ranks, "left out: a launcher has started this process as one of several already")
    if ranks is None or ranks < 1:
        also = " where --max-restarts is given" if ranks is None else ""
        raise InputError("ranks", ranks, f"an integer of at least 1{also}")
    if max_restarts < 0:
        raise InputError("max-restarts", max_restarts, "0 or more")
    if resume is None:
        settled = load(config, **how)
        out = out or _default_folder(config, settled)
        claim(out, overwrite=flags["overwrite"])
    elif out is not None:
        raise InputError("--resume", str(resume), "given without --out: a run that is gone on with stays in its folder")
    words = ["run", *([str(config)] if config else []), "--device", device]
    words += [word for change in how["changes"] for word in ("--set", change)]
    words += ["--algorithms", ",".join(how["algorithms"])] if how["algorithms"] is not None else []
    words += ["--seeds", str(how["seeds"])] if how["seeds"] is not None else []
    words += ["--out", str(out)] if resume is None else ["--resume", str(resume)]
    words += [f"--{name}" for name, wanted in flags.items() if wanted]
    try:
        return distributed.launch(ranks, words, max_restarts=max_restarts)
    except LostRankError as error:
        where = resume or out or Path()
        raise LostRankError(f"{error}; {how_to_resume(where)}" if begun(where) else str(error)) from None


def _interrupted(error: KeyboardInterrupt | None, when: str) -> typer.Exit:
    if os.environ.get("RANK", "0") == "0":
        ERR.print(Text(f"interrupted {when}"), soft_wrap=True)
    return typer.Exit(getattr(error, "code", 130))


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

    _importable(file)
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
        OUT.print(f"[bold]{title}[/bold]")
        width = max(len(name) for name in rows)
        for name, line in rows.items():
            OUT.print(Text(f"  {name:<{width}}  {line}"), soft_wrap=True)


@app.command()
def show(directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]) -> None:
    """Print a run and draw its pictures anew; one that is on its way, or died on it, as far as it got."""
    from dspodfl.results import Result

    result = Result.load(directory)
    try:
        result.draw(directory)
    except OSError as error:
        raise InputError("directory", str(directory), f"a folder that can be written ({error.strerror})") from None
    print_result(result)
    print_places(directory)
    print_unfinished(result, directory)


register(app)


def main() -> None:
    """Run the command line: exit code 2 and one plain message for wrong input, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show θ shows ?
    try:
        app()
    except SystemExit as ending:
        _end(ending.code if isinstance(ending.code, int) else int(ending.code is not None))
    except (InputError, ConfigError, DataError, OutOfMemoryError) as error:
        _say(error)
        _end(2)
    except LostRankError as error:
        _say(error)
        _end(1)
    except KeyboardInterrupt:
        _end(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _end(code: int) -> None:
    """Exit; a rank that fails does so at once, since what it shares with the others may wait for them, or abort."""
    if code and "RANK" in os.environ:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def _say(error: Exception) -> None:
    """An error, once: of several ranks the first says what all know, and whoever launched them that one is gone."""
    rank = os.environ.get("RANK", "0")
    if rank != "0" and getattr(error, "agreed", False):
        return
    if isinstance(error, LostRankError) and {"RANK", "DSPODFL_LAUNCHED"} <= os.environ.keys():
        return
    where = f"rank {rank}: " if rank != "0" and not isinstance(error, LostRankError) else ""
    for line in str(error).splitlines():
        ERR.print(Text(f"error: {where}{line}"), soft_wrap=True)


def _importable(config: Path | None) -> None:
    """Let factories and schedules of one's own lie beside the configuration or in the working directory."""
    for folder in {str(Path.cwd()), str((config or Path()).resolve().parent)}:
        if folder not in sys.path:
            sys.path.insert(0, folder)


def _default_folder(config: Path | None, settled: Any) -> Path:
    name = config.stem if config else "default"
    digest = hashlib.sha256(settled.model_dump_json().encode()).hexdigest()[:7]
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{digest}"


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
