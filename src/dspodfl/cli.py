"""The command line: parse, build, iterate, write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dspodfl import failures, theory_commands
from dspodfl._version import __version__
from dspodfl.commands import register
from dspodfl.display import OUT, print_places, print_result, print_unfinished
from dspodfl.errors import InputError
from dspodfl.options import whole
from dspodfl.running import Asked, carry_out, importable, on_ranks
from dspodfl.terminal import say

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
        say(f"dspodfl {__version__}")
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

    Ctrl-C, SIGTERM and SIGHUP save a checkpoint and write what was measured (exit codes 130, 143 and 129); --resume
    resumes a run that was interrupted or died.
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

    try:
        with file.open("x", encoding="utf-8") as handle:
            handle.write(template())
    except FileExistsError:
        raise InputError("file", str(file), "a file that does not exist yet") from None
    except OSError as error:
        raise InputError("file", str(file), f"a file that can be written ({error.strerror})") from None
    say(f"wrote {file}; run it with: dspodfl run {file}")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to check.")],
    changes: Set = None,
    no_code: Annotated[
        bool, typer.Option("--no-code", help="Import no code of the user; what it names is not checked then.")
    ] = False,
) -> None:
    """Validate a configuration: every key, and that graph, rates, data and model can be built.

    A configuration may name code: model.factory, and algorithms of the form 'module:object'. That code is imported and
    run, here as by 'run', with your rights; look at files of strangers with --no-code first.
    """
    from dspodfl.config import load
    from dspodfl.config.build import Own, build, user_names

    importable(file)
    settled, study, settings = build(load(file, changes or []), Own(code=not no_code))
    graph, left_out = settings[0].rates.graph, user_names(settled) if no_code else []
    parameters = "" if no_code and user_names(settled, algorithms=False) else f"{study.model.parameters:,} parameters, "
    say(
        f"{file}: valid. {len(study.runs)} runs ({len(settled.algorithms)} algorithms × {settled.seeds} seeds) of "
        f"{graph.n} clients, {parameters}{study.iterations:,} iterations"
    )
    for field, name in left_out:
        say(f"{field} = {name!r} was not imported, and is not checked")


@app.command("list")
def list_names() -> None:
    """Show what can be named in a configuration, one line each."""
    for title, rows in _catalogue().items():
        OUT.print(Text(title, style="bold"))
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
theory_commands.register(app)


def main() -> None:
    """Run the command line; `dspodfl.failures` has the exit codes."""
    failures.leave(failures.carry_out(_command))


def _command() -> int:
    """What the words of the command line ask for; not by Click's own ``main``, which has its own view of failures."""
    command = typer.main.get_command(app)
    with command.make_context("dspodfl", sys.argv[1:]) as context:
        code = command.invoke(context)
    return code if isinstance(code, int) else 0


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
