"""Whole runs on nodes, started by ``dspodfl up``: time and CPU time of an iteration, memory, restart, the command."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from dspodfl import Config
from dspodfl.config import dumps
from dspodfl.errors import DataError
from dspodfl.nodes import NodeView, up
from dspodfl.problem.data import load

CLIENTS, LINKS = 10, 16
_CHORDS = ((0, 5), (1, 6), (2, 7), (3, 8), (4, 9), (0, 3))


def edges() -> list[tuple[int, int]]:
    """Return the 16 links between 10 nodes: a ring with six chords."""
    return [*((i, (i + 1) % CLIENTS) for i in range(CLIENTS)), *_CHORDS]


def config(folder: Path, iterations: int, clients: int = CLIENTS, **tables: Any) -> Config:
    """Return a study of DGD, svm on Fashion-MNIST.

    Args:
        folder: Where files that it names are written.
        iterations: K.
        clients: Nodes; ten have 16 links, others are in a ring.
        **tables: Other tables of the configuration.

    Returns:
        The configuration.
    """
    graph: dict[str, Any] = {"kind": "ring"}
    if clients == CLIENTS:
        (folder / "links.txt").write_text("".join(f"{a} {b}\n" for a, b in edges()))
        graph = {"kind": "file", "file": str(folder / "links.txt")}
    given: dict[str, Any] = {
        "seeds": 1,
        "algorithms": ["dgd"],
        "clients": {"count": clients},
        "graph": graph,
        "data": {"name": "fmnist"},
        "model": {"name": "svm"},
        "train": {"iterations": iterations},
    }
    return Config(**{**given, **tables})


def _stand_in(folder: Path) -> None:
    """Write random images of the shape and number of Fashion-MNIST's, and let them be found."""
    draw, target = np.random.default_rng(0), folder / "data" / "fashion-mnist"
    target.mkdir(parents=True)
    for name, count in (("train", 60_000), ("t10k", 10_000)):
        images = draw.integers(0, 256, count * 28 * 28, dtype=np.uint8)
        head = struct.pack(">IIII", 0x803, count, 28, 28)
        (target / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = (np.arange(count) % 10).astype(np.uint8)
        (target / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())
    os.environ["DSPODFL_DATA"] = str(folder / "data")


@contextmanager
def place() -> Iterator[Path]:
    """Give a temporary folder; where Fashion-MNIST is not on this machine, random images stand in for it."""
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), os.environ.get("DSPODFL_DATA")
        try:
            load("fmnist")
        except DataError:
            _stand_in(folder)
        try:
            yield folder
        finally:
            os.environ.pop("DSPODFL_DATA", None)
            os.environ.update({} if before is None else {"DSPODFL_DATA": before})


# --- an iteration ---------------------------------------------------------------------------------------------------


@dataclass
class Pace:
    """What nodes said of themselves while they trained: seconds of the clock, iterations, and seconds of CPU time."""

    seen: dict[int, list[tuple[float, int, float]]] = field(default_factory=dict)

    def watch(self, views: Sequence[NodeView]) -> None:
        """Note where the nodes are."""
        for view in views:
            said = view.status
            if "k" in said and said["k"] > 0:
                known = self.seen.setdefault(view.id, [])
                if not known or known[-1][0] != said["at"]:
                    known.append((said["at"], said["k"], said["cpu"]))

    def iteration(self) -> tuple[float, float]:
        """Return seconds of the clock and seconds of CPU time of a node for one iteration, without start and end."""
        clock, cpu = [], []
        for found in self.seen.values():
            last = found[-1][1]
            within = [one for one in found if one[1] < last]
            (t0, k0, cpu0), (t1, k1, cpu1) = within[0], within[-1]
            clock.append((t1 - t0) / (k1 - k0))
            cpu.append((cpu1 - cpu0) / (k1 - k0))
        return float(np.median(clock)), float(np.mean(cpu))


def lockstep(iterations: int) -> tuple[float, float]:
    """Run ten nodes in lockstep, 16 links, mutual TLS.

    Args:
        iterations: K.

    Returns:
        Seconds of an iteration, and seconds of CPU time of one node for one iteration.
    """
    pace = Pace()
    with place() as folder:
        up(config(folder, iterations), folder / "out", on_change=pace.watch)
    return pace.iteration()


# --- memory, restart, the command ---------------------------------------------------------------------------------


@dataclass
class Memory:
    """The memory of nodes while they trained: of each the most, in bytes."""

    most: dict[int, int] = field(default_factory=dict)

    def watch(self, views: Sequence[NodeView]) -> None:
        """Read what each process holds, its share of what several hold included (PSS)."""
        ready = all(view.pid is not None and view.status.get("k", 0) > 0 for view in views)
        if not ready or any(view.ended for view in views):
            return
        for view in views:
            assert view.pid is not None
            with suppress(OSError):  # it has just ended
                self.most[view.id] = max(self.most.get(view.id, 0), proportional_bytes(view.pid))


def proportional_bytes(pid: int) -> int:
    """Return the proportional set size of a process: its own pages, and its share of those that several have.

    Args:
        pid: The process.

    Returns:
        Bytes.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def memory(nodes: int, iterations: int) -> tuple[float, float]:
    """Run nodes in a ring.

    Args:
        nodes: Their number.
        iterations: K.

    Returns:
        Bytes of a node, in the middle and at most: of each the most that was seen while all of them trained.
    """
    found = Memory()
    with place() as folder:
        up(config(folder, iterations, nodes), folder / "out", on_change=found.watch)
    values = list(found.most.values()) or [0]
    return float(np.median(values)), float(max(values))


@dataclass
class Killer:
    """Kills a node once, when it has trained for a while."""

    node: int
    after: int
    at: float | None = None
    """When it was killed, in seconds of the system's clock."""

    def watch(self, views: Sequence[NodeView]) -> None:
        """Kill the node if it is time."""
        view = views[self.node]
        if self.at is None and view.status.get("k", 0) >= self.after and view.pid is not None:
            self.at = time.time()
            os.kill(view.pid, signal.SIGKILL)


def restart(iterations: int) -> float:
    """Kill a node of ten with -9 in the middle of a run.

    Args:
        iterations: K.

    Returns:
        Seconds from the kill to the first exchange that the node, started again, has completed.
    """
    killer = Killer(3, iterations // 3)
    with place() as folder:
        up(config(folder, iterations), folder / "out", on_change=killer.watch)
        log = (folder / "out" / "nodes" / str(killer.node) / "events.jsonl").read_text()
    assert killer.at is not None, "the run was over before the node could be killed"
    events = [json.loads(line) for line in log.splitlines()]
    times = [datetime.fromisoformat(event["time"]).timestamp() for event in events if event["event"] == "exchanged"]
    return min(time for time in times if time > killer.at) - killer.at


def command(iterations: int) -> float:
    """Run the command ``dspodfl up`` with ten nodes: pictures and tables included.

    Args:
        iterations: K.

    Returns:
        Seconds.
    """
    with place() as folder:
        given = config(folder, iterations)
        (folder / "study.toml").write_text(dumps(given.model_dump(mode="json", exclude_unset=True)))
        words = [
            sys.executable,
            "-m",
            "dspodfl",
            "up",
            str(folder / "study.toml"),
            "-o",
            str(folder / "out"),
            "--quiet",
        ]
        began = time.monotonic()
        subprocess.run(words, check=True)
        seconds = time.monotonic() - began
        assert list((folder / "out").glob("*.png"))
    return seconds
