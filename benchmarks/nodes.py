"""``python -m benchmarks nodes [--quick] [--only A,B] [--json FILE]``: nodes over a real network."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import nodes_fuzz, nodes_grpc, nodes_runs, nodes_wire
from benchmarks.turns import say

SMALL, LARGE = 31_400, 40_000_000
"""Bytes of a model: linear on Fashion-MNIST, and ten million parameters."""
_ELSEWHERE = "from the design of nodes, not measured in this run"
"""Where figures of other programs come from, which are not installed here."""


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        what: What was measured.
        value: The value.
        unit: Its unit.
        target: The most that it may be; None: there is no target.
        peer: What others reach, measured here or elsewhere, in words.
        note: How it was measured.
    """

    what: str
    value: float
    unit: str
    target: float | None = None
    peer: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        return None if self.target is None else self.value <= self.target


def wire(quick: bool) -> list[Figure]:
    """Swaps over one mutual-TLS link between two processes, and bytes at the socket."""
    found = []
    for size, rounds, most, ratio in ((SMALL, 2000, 0.25, 1.02), (LARGE, 24, 250.0, 1.002)):
        rounds = rounds // 4 if quick else rounds
        name = "31 KB" if size == SMALL else "40 MB"
        ours = nodes_wire.swap(size, rounds)
        low, high = np.percentile(ours.seconds, [10, 90]) * 1e3
        note = f"10% to 90%: {low:.3g} to {high:.3g} ms; CPU of one end {ours.cpu * 1e3:.3g} ms"
        peer = "grpc.aio: not measured, grpcio is not installed"
        if nodes_grpc.available():
            theirs = float(np.median(nodes_grpc.swap(size, rounds))) * 1e3
            peer = f"grpc.aio {theirs:.3g} ms in this run"
        found.append(Figure(f"swap of {name} over one mutual-TLS link", ours.median * 1e3, "ms", most, peer, note))
        if ours.ratio is not None:
            what = f"bytes at the socket over bytes of models, {name}"
            found.append(Figure(what, ours.ratio, "", ratio, note="handshake included"))
    return found


def fuzz(quick: bool) -> list[Figure]:
    """Damaged frames through decoder and core in memory: none is applied, or this fails."""
    nodes_fuzz.fuzz(2000)
    count = 50_000 if quick else 1_000_000
    growth, seconds, refused = nodes_fuzz.measured(count)
    note = f"{sum(refused.values()):,} refused, the others cut short or still valid; {seconds:.0f} s"
    return [Figure(f"growth of memory by {count:,} damaged frames", growth / 1e6, "MB", 10.0, note=note)]


def lockstep(quick: bool) -> list[Figure]:
    """An iteration of ten nodes in lockstep over mutual TLS."""
    seconds, cpu = nodes_runs.lockstep(1500 if quick else 4000)
    what = "iteration of 10 processes in lockstep: svm on Fashion-MNIST, 16 links, DGD events, mutual TLS"
    peer = f"decentralizepy 26 ms (without TLS), Flower 210 ms, p2pfl 5,800 ms; {_ELSEWHERE}"
    note = f"sought: 5 ms; CPU time of a node {cpu * 1e3:.3g} ms"
    return [Figure(what, seconds * 1e3, "ms", 10.0, peer, note)]


def memory(quick: bool) -> list[Figure]:
    """The memory of one of 50 nodes on this machine."""
    median, most = nodes_runs.memory(50, 250 if quick else 600)
    note = f"PSS under 'dspodfl up', at most while all train; the largest node {most / 1e6:.3g} MB"
    return [Figure("memory of one of 50 nodes", median / 1e6, "MB", 80.0, f"decentralizepy 270 MB; {_ELSEWHERE}", note)]


def restart(quick: bool) -> list[Figure]:
    """A node that is killed and started again by ``up``."""
    seconds = nodes_runs.restart(1500 if quick else 3000)
    return [Figure("kill -9 of a node to its next exchange", seconds, "s", 5.0, note="'dspodfl up' starts it again")]


def command(quick: bool) -> list[Figure]:
    """``dspodfl up``, from the first to the last."""
    seconds = nodes_runs.command(500)
    what = "'dspodfl up': 10 nodes, one run of 500 iterations, pictures and tables"
    return [Figure(what, seconds, "s", 20.0, f"Flower 13 s to its first round; {_ELSEWHERE}")]


GROUPS: dict[str, Callable[[bool], list[Figure]]] = {
    "wire": wire,
    "lockstep": lockstep,
    "up": command,
    "memory": memory,
    "restart": restart,
    "fuzz": fuzz,
}
"""What can be measured, by name."""


def show(figures: Sequence[Figure]) -> None:
    """Print figures as a table."""
    console = Console(width=None if sys.stdout.isatty() else 180)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "measured", "target", "", "peers", ""):
        table.add_column(name, overflow="fold")
    for one in figures:
        target = "" if one.target is None else f"≤ {one.target:g} {one.unit}".rstrip()
        met = {True: "met", False: "not met", None: ""}[one.met]
        table.add_row(one.what, f"{one.value:.4g} {one.unit}".rstrip(), target, met, one.peer, one.note)
    console.print(table, markup=False, highlight=False)


def markdown(figures: Sequence[Figure]) -> str:
    """Figures as a table of docs/performance.md."""
    lines = ["| | measured | target | | peers | how |", "|---|---|---|---|---|---|"]
    for one in figures:
        target = "" if one.target is None else f"≤ {one.target:g} {one.unit}".rstrip()
        met = {True: "met", False: "**not met**", None: ""}[one.met]
        value = f"{one.value:.4g} {one.unit}".rstrip()
        lines.append(f"| {' | '.join((one.what, value, target, met, one.peer, one.note))} |")
    return "\n".join(lines)


def read(text: str) -> list[Figure]:
    """The figures that ``--json`` wrote; TypeError or KeyError where they are none."""
    return [Figure(**{key: value for key, value in one.items() if key != "met"}) for one in json.loads(text)]


def main(arguments: Sequence[str]) -> int:
    """Measure group by group and print the figures; 0, or 1 where a target is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks nodes", description="Nodes over a real network.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", metavar="A,B", help=f"some of {', '.join(GROUPS)}, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to a file")
    given = parser.parse_args(arguments)
    wanted = list(GROUPS) if given.only is None else [name.strip() for name in given.only.split(",")]
    for name in wanted:
        if name not in GROUPS:
            parser.error(f"--only: {name!r} is none of {', '.join(GROUPS)}")
    if given.json is not None and not given.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {given.json.absolute().parent}")
    load = os.getloadavg()[0]
    if load > 1:
        say(f"the load of this machine is {load:.1f}: times are those of a shared machine")
    figures: list[Figure] = []
    for name in wanted:
        say(name)
        figures += GROUPS[name](given.quick)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(one) | {"met": one.met} for one in figures], indent=1) + "\n")
    show(figures)
    return int(any(one.met is False for one in figures))
