"""The command line: parse, build, iterate, write."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from dspodfl._version import __version__
from dspodfl.errors import InputError, nearest
from dspodfl.network import COSTS
from dspodfl.study import for_command, say
from dspodfl.ui.cli import failures
from dspodfl.ui.cli import keys as key_commands
from dspodfl.ui.cli import node as node_runs
from dspodfl.ui.cli import nodes as node_commands
from dspodfl.ui.cli import theory as theory_commands
from dspodfl.ui.cli.grids import register
from dspodfl.ui.cli.options import (
    HELP_NAMES,
    Algorithms,
    Device,
    MaxRestarts,
    Output,
    Quiet,
    Ranks,
    Seeds,
    Set,
    in_full,
    names_in,
)
from dspodfl.ui.cli.run import RunOptions, importable, launch_run, run_command
from dspodfl.ui.console.results import ERR, OUT

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
    help="Decentralized federated learning on uneven, unreliable devices: simulate and compare.",
)


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
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="The configuration; default: the paper's default setting."),
    ] = None,
    changes: Set = None,
    algorithms: Algorithms = None,
    seeds: Seeds = None,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Output folder; default: runs/<name>-<date>-<hash>."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing result in DIR.")] = False,
    save_models: Annotated[
        bool, typer.Option("--save-models", help="Also write the final models (safetensors).")
    ] = False,
    record_events: Annotated[
        bool, typer.Option("--record-events", help="Also write the events (events.npz), for replay.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Resume the interrupted or killed run in DIR, with the configuration and options of its start.",
        ),
    ] = None,
    ranks: Ranks = None,
    max_restarts: MaxRestarts = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run a study: print the comparison, write tables and figures.

    Ctrl-C, SIGTERM and SIGHUP save a checkpoint and write the metrics so far (exit codes 130, 143 and 129). Use
    --resume to continue an interrupted or killed run from its last checkpoint.
    """
    output = Output(out, overwrite, quiet, as_json, models=save_models, record=record_events)
    options = RunOptions(config, changes or [], names_in(algorithms), seeds, device, output, resume)
    if ranks is not None or max_restarts:
        raise typer.Exit(launch_run(options, ranks, max_restarts))
    run_command(options)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
) -> None:
    """Write a commented configuration with all defaults, and the JSON schema that editors validate it with."""
    from dspodfl.config import SCHEMA_FILE, TITLE, json_schema, template

    schema = file.parent / SCHEMA_FILE
    _free(file, overwrite)
    _free(schema, overwrite or _is_schema(schema, TITLE))
    _put(schema, _as_text(json_schema()))
    _put(file, template())
    say(f"wrote {file}, and for editors {schema}; run it with: dspodfl run {file}")


@app.command()
def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.json", help="Write to a file instead.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Print the JSON schema of the configuration (draft 2020-12) for editors and other programs."""
    from dspodfl.config import json_schema

    text = _as_text(json_schema())
    if out is None:
        say(text.rstrip())
        return
    _free(out, overwrite)
    _put(out, text)
    say(f"wrote {out}")


def _as_text(made: dict[str, Any]) -> str:
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def _is_schema(path: Path, title: str) -> bool:
    """Whether a file is a schema that this program wrote, which may be replaced by a newer one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("title") == title


def _free(path: Path, overwrite: bool) -> None:
    """Refuse a file that is there, unless it may be replaced, and one whose folder is not."""
    if not path.parent.is_dir():
        raise InputError("file", str(path), "a file that can be written (No such file or directory)")
    if path.exists() and not overwrite:
        raise InputError("file", str(path), "a file that does not exist yet (or use --overwrite)")


def _put(path: Path, text: str) -> None:
    """Write a text file, so that there is never half of it."""
    from dspodfl.study.store import write

    try:
        write(path, text.encode())
    except OSError as error:
        raise InputError("file", str(path), f"a file that can be written ({error.strerror})") from None


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The configuration to check.")],
    changes: Set = None,
    no_code: Annotated[
        bool,
        typer.Option("--no-code", help="Do not import user code; the modules that FILE names are then not checked."),
    ] = False,
) -> None:
    """Validate every key of a configuration, and build its graph, rates, data and model.

    A configuration may name code: model.factory, and algorithms of the form 'module:object'. That code is imported and
    run, by 'check' as by 'run', with your rights: use --no-code first on files from others.
    """
    from dspodfl.config import load
    from dspodfl.study import UserInputs, build, user_names

    importable(file)
    with for_command(quiet=False) as progress:
        inputs = UserInputs(code=not no_code)
        resolved, study = build(load(file, changes or []), inputs, on_progress=progress.stage)
    graph, left_out = study.settings[0].rates.graph, user_names(resolved) if no_code else []
    parameters = (
        "" if no_code and user_names(resolved, algorithms=False) else f"{study.model.parameters:,} parameters, "
    )
    say(
        f"{file}: valid. {len(study.runs)} runs ({len(resolved.algorithms)} algorithms × {resolved.seeds} seeds) of "
        f"{graph.n} clients, {parameters}about {study.longest:,} iterations at most"
    )
    for field, name in left_out:
        say(f"{field} = {name!r} was not imported, and is not checked")


@app.command("list")
def list_names(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT",
            help="Print one list only: algorithms, attacks, graphs, dynamics, weights, laws, availability, channels, "
            "datasets, partitions, models or learning-rates.",
        ),
    ] = None,
) -> None:
    """List the names that a configuration can use, one line each."""
    found = _catalogue()
    if what is not None and what.lower() not in found:
        raise InputError("WHAT", what, f"one of {', '.join(found)}{nearest(what.lower(), found)}")
    for title, rows in found.values() if what is None else [found[what.lower()]]:
        OUT.print(Text(title, style="bold"))
        width = max(len(name) for name in rows)
        for name, line in rows.items():
            OUT.print(Text(f"  {name:<{width}}  {line}"), soft_wrap=True)


@app.command()
def show(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder written by dspodfl, or a folder of such folders.")
    ],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="COST", help="Compare at this cost: " + ", ".join(kind.written for kind in COSTS.values()) + "."
        ),
    ] = None,
) -> None:
    """Print the results in DIR as a table, and redraw the figures of a run.

    DIR is the folder of a run (finished or not), a sweep, a reproduction or a theory command.
    """
    from dspodfl.analysis import parse
    from dspodfl.ui.cli.show import show_folder

    show_folder(directory, None if at is None else parse(at))


@app.command()
def verify(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of runs, sweeps, experiments or cells, or folders of these."),
    ],
) -> None:
    """Compare every file with its checksum and report damaged files (exit code 2)."""
    from dspodfl.ui.cli.verify import verify as verify_folder

    damaged = False
    for directory in directories:
        for found in verify_folder(directory):
            damaged |= bool(found.damage)
            for line in found.damage:
                ERR.print(Text(f"error: {line}"), soft_wrap=True)
            OUT.print(Text(str(found)), soft_wrap=True)
    raise typer.Exit(2 if damaged else 0)


register(app)
theory_commands.register(app)
key_commands.register(app)
node_runs.register(app)
node_commands.register(app)
in_full(app)


def main() -> None:
    """Run the command line; `dspodfl.ui.cli.failures` has the exit codes."""
    failures.leave(failures.guarded(_command))


def _command() -> int:
    """Run the command of the command line; without Click's ``main``, which handles failures otherwise."""
    command = typer.main.get_command(app)
    with command.make_context("dspodfl", sys.argv[1:]) as context:
        code = command.invoke(context)
    return code if isinstance(code, int) else 0


def _catalogue() -> dict[str, tuple[str, dict[str, str]]]:
    """Lists of everything that has a name, with the first line of its description, by what ``list`` takes."""
    from dspodfl.algorithms import ALGORITHMS
    from dspodfl.config import attack as attack_tables
    from dspodfl.config import catalogue
    from dspodfl.config import data as data_tables
    from dspodfl.config import graph as graph_tables
    from dspodfl.config import learning_rate as rate
    from dspodfl.config import model as model_tables
    from dspodfl.config import rates as rate_tables
    from dspodfl.network import WEIGHTS

    return {
        "algorithms": ("algorithms", _algorithms(ALGORITHMS)),
        "attacks": ("attacks (attack.kind)", catalogue(attack_tables.Attack)),
        "graphs": ("graphs (graph.kind)", catalogue(graph_tables.Graph)),
        "dynamics": ("changing graphs (graph.dynamics.kind)", catalogue(graph_tables.Dynamics)),
        "weights": ("weights (graph.weights)", {name: line.rstrip(".") for name, line in WEIGHTS.lines().items()}),
        "laws": ("laws (rates.sgd.law, rates.link.law)", catalogue(rate_tables.Law)),
        "availability": (
            "clients that come and go (rates.availability.kind, rates.churn.kind)",
            catalogue(rate_tables.Availability),
        ),
        "channels": ("links that come and go (rates.channel.kind)", catalogue(rate_tables.Channel)),
        "datasets": ("datasets (data.name)", catalogue(data_tables.Data)),
        "partitions": ("partitions (data.partition.kind)", catalogue(data_tables.Partition)),
        "models": ("models (model.name, or model.factory)", catalogue(model_tables.Model)),
        "learning-rates": ("learning rates (train.learning_rate.kind)", catalogue(rate.LearningRate)),
    }


def _algorithms(entries: Mapping[str, Any]) -> dict[str, str]:
    """What is known of each method in columns, then its line and where it was published."""
    widths = [max(map(len, column)) for column in zip(*(entry.facts for entry in entries.values()), strict=True)]
    rows = {}
    for name, entry in entries.items():
        facts = "  ".join(f"{fact:<{width}}" for fact, width in zip(entry.facts, widths, strict=True))
        rows[name] = f"{facts}  {entry.line}" + (f" [{entry.reference}]" if entry.reference else "")
    return rows


if __name__ == "__main__":
    main()
