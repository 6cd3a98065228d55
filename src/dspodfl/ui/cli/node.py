"""The commands ``dspodfl node``, one client in this process, and ``dspodfl up``, all of them on this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from dspodfl.errors import Interrupted
from dspodfl.study import for_command, say
from dspodfl.ui.cli.options import Algorithms, Quiet, Seeds, Set, names_in
from dspodfl.ui.cli.run import default_folder, importable
from dspodfl.ui.console.results import ERR, print_places, print_result, print_unfinished

_LINE_SECONDS = 10.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(node)
    app.command()(up)


def node(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration, with a table [nodes].")],
    id: Annotated[int, typer.Option("--id", metavar="N", help="The client that this node is, from 0.", min=0)],
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="The algorithm; required where the file has several.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="S", help="The seed; required where the file has several.", min=0)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Data of its own: train.npz with arrays x and y, and test.npz if it has a test set; default: its "
            "shard of [data].",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The node's folder; default: runs/<run_id>-node<id>."),
    ] = None,
    changes: Set = None,
    quiet: Quiet = False,
) -> None:
    """Train one client of a study in this process, with its neighbours over the network.

    All nodes have the same file, with an entry in nodes.peer for each of them ('dspodfl keys new' prints these), and
    each has a certificate and a key of its own (nodes.tls). A node that is up first waits for the others.

    The same command resumes a node that was stopped or killed, from its last checkpoint. Ctrl-C and SIGTERM save one
    and leave. 'dspodfl nodes collect' makes the tables and pictures of 'dspodfl run' from the folders of all nodes.

    Exit codes: 0 finished, 2 what was given cannot be used, 3 a run diverged, 4 the address cannot be listened on, 130
    and 143 stopped by Ctrl-C and SIGTERM, 1 any other failure.
    """
    from dspodfl.config import Nodes, load
    from dspodfl.nodes import Node, NodeOptions, prepare

    importable(config)
    given = load(config, changes or [])
    folder = out or Path("runs") / f"{(given.nodes or Nodes()).run_id}-node{id}"
    lines = _Lines(id)
    status = None if quiet else lines.show
    options = NodeOptions(id, folder, data, status=status, algorithm=algorithm, seed=seed, beside=config.parent)
    with for_command(quiet=quiet) as progress:
        progress.stage("setting up")
        resolved, study = prepare(given, options)
        options.choose_one(study)
    code = Node(resolved, study, options).run()
    if not quiet:
        lines.end(code, folder)
    raise typer.Exit(code)


class _Lines:
    """Prints a line now and then."""

    def __init__(self, id: int) -> None:
        self._id = id
        self._told: float | None = None

    def show(self, status: dict[str, Any]) -> None:
        """Print how far the node is, every ten seconds."""
        if "k" not in status:
            return
        now, run = time.monotonic(), str(status["run"])
        if (self._told is not None and now - self._told < _LINE_SECONDS) or status.get("state") == "finished":
            return
        self._told = now
        waiting = f", waits for node {', '.join(map(str, status['waiting']))}" if status["waiting"] else ""
        links = f"{status['connected']} of {status['neighbours']} neighbours connected"
        at = f"{run}: iteration {status['k']:,} of {status['of']:,}, {links}{waiting}"
        ERR.print(Text(f"node {self._id}: {at}"), soft_wrap=True)

    def end(self, code: int, folder: Path) -> None:
        """Print how it ended, and where its models are."""
        if code == 0:
            text = f"finished; its models are in {folder} (dspodfl nodes collect)"
        elif code > 128:  # a signal
            text = "stopped; the same command resumes it"
        else:
            return
        ERR.print(Text(f"node {self._id}: {text}"), soft_wrap=True)


def up(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="The configuration; default: the paper's default setting."),
    ] = None,
    changes: Set = None,
    algorithms: Algorithms = None,
    seeds: Seeds = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Output folder; default: runs/<name>-<date>-<hash>."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in DIR.")] = False,
    max_restarts: Annotated[
        int, typer.Option(metavar="N", help="Times that a node that died is started again.", min=0)
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a study on real nodes: one process for each client, all on this machine, connected by mutual TLS.

    Keys and addresses are made on the spot. The output folder is the one that 'dspodfl run' writes; what the nodes
    wrote is in DIR/nodes. Ctrl-C stops all nodes with a checkpoint; the same command with --out DIR resumes them.
    """
    from dspodfl.config import load
    from dspodfl.nodes import up as run_nodes
    from dspodfl.ui.console.nodes import NodesDisplay

    importable(config)
    given = load(config, changes or [], algorithms=names_in(algorithms), seeds=seeds)
    folder = out or default_folder(config, given)
    display = NodesDisplay(quiet=quiet or as_json)
    try:
        with display:
            found = run_nodes(
                given,
                folder,
                max_restarts=max_restarts,
                overwrite=overwrite,
                on_change=display.show,
                say=display.say,
            )
    except Interrupted as error:
        advice = (
            f"resume with the same command and --out {folder}" if (folder / "nodes").exists() else "nothing was written"
        )
        ERR.print(Text(f"interrupted; {advice}"), soft_wrap=True)
        raise typer.Exit(error.code) from None
    for note in found.notes:
        ERR.print(Text(note), soft_wrap=True)
    if as_json:
        say(json.dumps({"out": str(folder), **found.result.record()}, ensure_ascii=False))
    elif not quiet:
        print_result(found.result)
        print_places(folder)
        print_unfinished(found.result, folder)
