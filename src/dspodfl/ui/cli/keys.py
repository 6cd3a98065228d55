"""Commands about the keys of nodes: new, show, renew, request, approve."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dspodfl.errors import InputError
from dspodfl.study import say
from dspodfl.ui.console.results import ERR

if TYPE_CHECKING:
    from dspodfl.nodes import Certificate, Written

keys = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make and show the keys and certificates by which nodes know each other.",
)

MOST_NODES = 10_000
"""Nodes that keys are made for in one call, at most."""
Days = Annotated[int, typer.Option(metavar="N", help="Days that a certificate is valid, from a day ago.", min=1)]
Folder = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write to.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing keys and certificates.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(keys, name="keys")


@keys.command()
def new(
    count: Annotated[
        int | None, typer.Option("--nodes", "-n", metavar="N", help="Number of nodes; default: 10.", min=1)
    ] = None,
    first: Annotated[int, typer.Option(metavar="ID", help="The id of the first node.", min=0)] = 0,
    days: Days = 3650,
    out: Folder = Path("keys"),
    ca: Annotated[bool, typer.Option("--ca", help="Make the key of an organisation's CA instead.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make a key and a certificate for every node, and print their entries of the configuration.

    The files are DIR/ID.key, which its owner alone can read, and DIR/ID.crt, which its neighbours need. Change the
    addresses that are printed to those of your machines.
    """
    from dspodfl.nodes import new_ca, new_keys

    if ca:
        if count is not None:
            raise InputError("--nodes", count, "left out with --ca, which makes one key")
        made = new_ca(out, days=days, overwrite=overwrite)
        say(f"wrote {made.path} and {made.key}; keep the key where no node runs")
        say("every node needs the certificate, and in its configuration, under [nodes]:")
        say(f'tls = {{ certificate = "node.crt", key = "node.key", ca = {_quoted(made.path)} }}')
        return
    count = 10 if count is None else count
    if count > MOST_NODES:
        raise InputError("--nodes", count, f"an integer of at most {MOST_NODES}")
    if first > 10**9:
        raise InputError("--first", first, "an integer of at most 1000000000")
    for made in new_keys(out, range(first, first + count), days=days, overwrite=overwrite):
        _say_peer(made)
    places = f"wrote {count} keys and certificates to {out}; change the addresses above to those of your machines"
    ERR.print(Text(f"{places}. Every node gets the certificates, and its own key alone"), soft_wrap=True)


@keys.command()
def show(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Certificates in PEM, or folders of *.crt files.")
    ],
) -> None:
    """Print whose a certificate is, its fingerprint and its dates; exit code 2 if one is not valid now."""
    from dspodfl.nodes import clock_problem, read_certificates

    found = [(path, one) for path in _files(files) for one in read_certificates(path, "FILE")]
    invalid = False
    for path, one in found:
        problem = clock_problem(one, datetime.now(UTC))
        invalid |= problem is not None
        say(f"{path}: {_whose(one)}, {one.fingerprint}, {one.begin:%Y-%m-%d} to {one.end:%Y-%m-%d}")
        if problem is not None:
            say(f"{path}: {problem}")
    raise typer.Exit(2 if invalid else 0)


@keys.command()
def renew(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.crt", help="Certificates that 'keys new' made.")],
    days: Days = 3650,
    overwrite: Overwrite = False,
) -> None:
    """Make the next key and certificate of nodes; the old ones stay valid.

    The new files are FILE.next.crt and FILE.next.key. Neighbours list both certificates until the node uses the new
    one.
    """
    from dspodfl.nodes import renew as renew_key

    for file, made in zip(files, renew_key(files, days=days, overwrite=overwrite), strict=True):
        _say_peer(made, file)


@keys.command()
def request(
    id: Annotated[int, typer.Option("--id", metavar="ID", help="The id of the node.", min=0)],
    run_id: Annotated[str, typer.Option("--run", metavar="RUN_ID", help="nodes.run_id of the configuration.")],
    out: Folder = Path("keys"),
    overwrite: Overwrite = False,
) -> None:
    """Make the key of a node and a request (CSR), which an organisation's CA approves."""
    from dspodfl.nodes import request as request_certificate

    made = request_certificate(out, id, run_id, overwrite=overwrite)
    say(f"wrote {made.key}, which stays here, and {made.path}")
    say(f"send {made.path} to the CA, which approves it: dspodfl keys approve {made.path} --ca DIR")


@keys.command()
def approve(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.csr", help="Requests that 'keys request' made.")],
    ca: Annotated[
        Path, typer.Option("--ca", metavar="DIR", help="The folder of ca.pem and ca.key, or the certificate.")
    ],
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The key of the CA; default: ca.key next to ca.pem.")
    ] = None,
    days: Days = 3650,
    overwrite: Overwrite = False,
) -> None:
    """Sign requests with the key of an organisation's CA: FILE.crt is written next to FILE.csr.

    Compare what is printed with what was requested before you hand a certificate over: it admits the node to the run.
    """
    from dspodfl.nodes import approve as approve_requests

    for made in approve_requests(files, ca, key=key, days=days, overwrite=overwrite):
        assert made.certificate is not None
        say(f"wrote {made.path}: {_whose(made.certificate)}, {made.certificate.fingerprint}")


def _say_peer(made: Written, old: Path | None = None) -> None:
    """Print the entry of a node in the configuration."""
    assert made.certificate is not None
    both = _quoted(made.path) if old is None else f"[{_quoted(old)}, {_quoted(made.path)}]"
    say(f'[[nodes.peer]]\nid = {made.id}\naddress = "node{made.id}.local:7733"\ncertificate = {both}')
    if old is None:
        say(f'key = "{made.certificate.fingerprint}"')
    say("")


def _quoted(path: Path) -> str:
    """A path as a string of TOML."""
    import json

    return json.dumps(str(path), ensure_ascii=False)


def _whose(certificate: Certificate) -> str:
    from dspodfl.nodes import node_in, node_of

    if certificate.ca:
        return "a CA"
    run = next((node[0] for uri in certificate.uris if (node := node_of(uri)) is not None), None)
    id_ = node_in(certificate)
    whose = "no node of dspodfl" if id_ is None else f"node {id_}"
    return whose if run is None else f"{whose} of run {run!r}"


def _files(paths: list[Path]) -> list[Path]:
    """The files that are named, and those of the folders that are named."""
    found = []
    for path in paths:
        inside = sorted([*path.glob("*.crt"), *path.glob("*.pem")]) if path.is_dir() else [path]
        if not inside:
            raise InputError("FILE", str(path), "a folder of certificates (*.crt)")
        found += inside
    return found
