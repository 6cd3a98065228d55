"""Commands about nodes: collect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dspodfl.study import for_command, say
from dspodfl.ui.cli.options import Device, Quiet
from dspodfl.ui.cli.run import importable
from dspodfl.ui.console.results import ERR, print_places, print_result, print_unfinished

nodes = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Work with the folders of nodes: collect their models into a result.",
)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(nodes, name="nodes")


@nodes.callback()
def _nodes() -> None:
    """Keep the group a group, also while it has one command."""


@nodes.command()
def collect(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="The folders of nodes, or folders whose sub-folders are such."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Output folder.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing result in DIR.")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Nodes may be missing: what needs their models is null.")
    ] = False,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate the models that nodes have written, and write the folder that 'dspodfl run' writes.

    All folders must be of one run and one configuration. Nothing is trained; events, delays and bytes follow from the
    configuration.
    """
    from dspodfl.nodes import CONFIG
    from dspodfl.nodes import collect as collected

    importable(folders[0] / CONFIG)
    with for_command(quiet=quiet or as_json) as progress:
        progress.stage("collecting")
        found = collected(folders, out, overwrite=overwrite, partial=partial, device=device)
    for note in found.notes:
        ERR.print(Text(note), soft_wrap=True)
    if as_json:
        say(json.dumps({"out": str(out), **found.result.record()}, ensure_ascii=False))
    elif not quiet:
        print_result(found.result)
        print_places(out)
        print_unfinished(found.result, out)
