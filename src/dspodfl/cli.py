"""The command line: parse, build, iterate, write."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dspodfl import lock, theory_commands
from dspodfl._version import __version__
from dspodfl.commands import register
from dspodfl.display import ERR, OUT, print_places, print_result, print_unfinished
from dspodfl.errors import ConfigError, DataError, InputError, LostRankError, OutOfMemoryError
from dspodfl.folder import Folder, ForeignFileError, Loose
from dspodfl.options import WRONG, plainly, whole
from dspodfl.running import Asked, carry_out, importable, on_ranks

if TYPE_CHECKING:
    from dspodfl.results import Result

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
    seeds: Annotated[int | None, typer.Option(metavar="N", help="How many seeds.", parser=whole)] = None,
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
        typer.Option(metavar="N", help="Run on N processes of this machine; torchrun does it on many.", parser=whole),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            metavar="N", help="With --ranks: start anew so often, from the last checkpoint, if one dies.", parser=whole
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
    asked = Asked(
        config, changes or [], names, seeds, device, out, overwrite, save_models, record_events, resume, as_json, quiet
    )
    if ranks is not None or max_restarts:
        raise typer.Exit(on_ranks(asked, ranks, max_restarts))
    carry_out(asked)


@app.command()
def init(file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write.")]) -> None:
    """Write a fully commented configuration, the defaults."""
    from dspodfl.config import template
    from dspodfl.files import write

    try:
        write(file, template().encode(), new=True)
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
        OUT.print(f"[bold]{title}[/bold]")
        width = max(len(name) for name in rows)
        for name, line in rows.items():
            OUT.print(Text(f"  {name:<{width}}  {line}"), soft_wrap=True)


@app.command()
def show(directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]) -> None:
    """Print a run and draw its pictures anew; one that is on its way, or died on it, as far as it got."""
    from dspodfl.results import Result

    result = Result.load(directory)
    for note in result.notes:
        ERR.print(Text(note), soft_wrap=True)
    print_result(result)
    drawn = _draw(result, directory)
    print_places(directory, drawn)
    print_unfinished(result, directory)


def _draw(result: Result, directory: Path) -> bool:
    """Draw the pictures of a run where that is possible, and say so where it is not."""
    try:
        result.draw(directory if lock.holder(directory) is None else Loose(Folder(directory)))
        return True
    except OSError as error:
        why = error.strerror or str(error)
    except ForeignFileError as error:
        why = str(error)
    ERR.print(Text(f"the pictures were not drawn: {why}"), soft_wrap=True)
    return False


@app.command()
def verify(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, sweeps, experiments, cells, or of such.")
    ],
) -> None:
    """Compare every file with its checksum, and name what is damaged (exit code 2)."""
    from dspodfl.verify import verify as look

    damaged = False
    for directory in directories:
        for found in look(directory):
            damaged |= bool(found.damage)
            for line in found.damage:
                ERR.print(Text(f"error: {line}"), soft_wrap=True)
            OUT.print(Text(str(found)), soft_wrap=True)
    raise typer.Exit(2 if damaged else 0)


register(app)
theory_commands.register(app)


def main() -> None:
    """Run the command line: exit code 2 and one plain message for wrong input, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show θ shows ?
    try:
        code = app(standalone_mode=False)
        _end(code if isinstance(code, int) else 0)
    except WRONG as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            ERR.print(Text(f"error: {plainly(error)}"), soft_wrap=True)
        _end(2)
    except SystemExit as ending:
        _end(ending.code if isinstance(ending.code, int) else int(ending.code is not None))
    except (InputError, ConfigError, DataError, OutOfMemoryError) as error:
        _say(error)
        _end(2)
    except LostRankError as error:
        _say(error)
        _end(1)
    except (KeyboardInterrupt, typer.Abort):
        _end(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _end(code: int) -> None:
    """Exit; a rank does so at once: gloo's threads may wait for the others, or abort, where Python takes it apart."""
    if "RANK" in os.environ:
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
