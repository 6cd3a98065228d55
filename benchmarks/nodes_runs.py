"""Whole runs on nodes, started by ``dspodfl up``: time and CPU time of an iteration, memory, restart, the command."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dspodfl import Config
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
        folder = Path(name)
        try:
            load("fmnist")
        except DataError:
            _stand_in(folder)
        yield folder


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
