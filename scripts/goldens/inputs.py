"""Files that studies are given; everything follows from fixed numbers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

DIMINISHING = {"kind": "diminishing", "value": 0.1, "gamma": 4.0}
_LINKS = [(i, (i + 1) % 6) for i in range(6)] + [(0, 3), (1, 4)]


def edges(folder: Path) -> None:
    """An edge list with names."""
    (folder / "edges.csv").write_text("".join(f"node{i},node{j}\n" for i, j in _LINKS))


def matrix(folder: Path) -> None:
    """An adjacency matrix."""
    a = np.zeros((6, 6), dtype=int)
    for i, j in _LINKS:
        a[i, j] = a[j, i] = 1
    (folder / "matrix.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in a.tolist()))


def graphml(folder: Path) -> None:
    """The same graph as GraphML."""
    nodes = "".join(f'<node id="n{i}"/>' for i in range(6))
    links = "".join(f'<edge source="n{i}" target="n{j}"/>' for i, j in _LINKS)
    (folder / "graph.graphml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        f'<graph edgedefault="undirected">{nodes}{links}</graph></graphml>'
    )


def rates(folder: Path) -> None:
    """Rates of a ring of eight, of clients and of links."""
    clients = "".join(f"{i},{(i + 1) / 8}\n" for i in range(8))
    (folder / "clients.csv").write_text("client,rate\n" + clients)
    links = [tuple(sorted((i, (i + 1) % 8))) for i in range(8)]
    (folder / "links.csv").write_text("source,target,rate\n" + "".join(f"{i},{j},{1 / (1 + i)}\n" for i, j in links))


def _bytes(seed: int, *shape: int, below: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, size=shape, dtype=np.uint8)


def images(folder: Path) -> None:
    """Few images in the form of MNIST and of Fashion-MNIST."""
    for set_ in ("mnist", "fashion-mnist"):
        home = folder / "data" / set_
        home.mkdir(parents=True)
        for part, count in (("train", 80), ("t10k", 20)):
            x, y = _bytes(count, count, 28, 28), (np.arange(count) % 10).astype(np.uint8)
            (home / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + x.tobytes())
            (home / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + y.tobytes())


def colours(folder: Path) -> None:
    """Few images in the form of CIFAR-10."""
    home = folder / "data" / "cifar-10-batches-bin"
    home.mkdir(parents=True)
    for n, name in enumerate([*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]):
        x = _bytes(n, 20, 3072)
        (home / name).write_bytes(np.concatenate([(np.arange(20) % 10).astype(np.uint8)[:, None], x], 1).tobytes())


def _npz(folder: Path, name: str, clients: int, shape: tuple[int, ...], *, classes: int) -> None:
    home = folder / name
    home.mkdir()
    for n in range(clients + 1):
        random = np.random.default_rng(n)
        x = random.integers(-8, 9, size=(12, *shape)).astype(np.float32) / 8
        y = np.arange(12) % classes if classes else x.reshape(12, -1).sum(1).astype(np.float32)
        np.savez(home / ("test.npz" if n == clients else f"client{n}.npz"), x=x, y=y)


def folder(folder: Path) -> None:
    """Custom data: six clients."""
    _npz(folder, "own", 6, (5,), classes=3)


def pictures(folder: Path) -> None:
    """Colour images of four clients."""
    _npz(folder, "own", 4, (3, 32, 32), classes=3)


def targets(folder: Path) -> None:
    """Regression of four clients."""
    _npz(folder, "regression", 4, (5,), classes=0)


def module(folder: Path) -> None:
    """Custom models."""
    (folder / "golden_model.py").write_text(
        "from torch import nn\n\n\n"
        "def net(width=5):\n    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 4))\n\n\n"
        "def line():\n    return nn.Linear(5, 1)\n"
    )


def schedule(folder: Path) -> None:
    """Custom algorithms; one of them raises SIGINT, once."""
    (folder / "golden_schedule.py").write_text(
        "import os\nimport signal\nfrom pathlib import Path\n\nimport numpy as np\n\nfrom dspodfl import Events\n\n\n"
        "def every_other(k, part, rates):\n"
        "    even = np.asarray(k)[:, None] % 2 == 0\n"
        "    return Events(np.repeat(even, len(part.client), 1), np.repeat(~even, len(part.link), 1))\n\n\n"
        "def stopped(k, part, rates):\n"
        "    if k.min() >= 500 and not Path('calm').exists():\n"
        "        Path('calm').touch()\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return every_other(k, part, rates)\n"
    )


def calm(folder: Path) -> None:
    """No signal comes."""
    (folder / "calm").touch()


def broken(folder: Path) -> None:
    """A configuration that is no TOML."""
    (folder / "broken.toml").write_text("[train\niterations = 3\n")


def own_code(folder: Path) -> None:
    """A configuration that names code."""
    (folder / "own.toml").write_text(
        'seeds = 1\nalgorithms = ["dgd"]\n[data]\nname = "synthetic"\nfeatures = 6\nclasses = 4\n'
        '[model]\nfactory = "golden_model:net"\n[train]\niterations = 3\n'
    )


PYTHON = """
import numpy as np
from dspodfl import Config, Events, run

x = (np.arange(60 * 4).reshape(60, 4) % 7).astype(np.float32)
y = np.arange(60) % 3
table = dict(study, seeds=2, algorithms=["dspodfl"], train={"iterations": 6, "batch_size": 3}, eval={"every": 3})
for key in ("clients", "data", "graph"):
    table.pop(key)


def both(k, part, rates):
    return Events(np.ones((len(k), len(part.client)), bool), np.ones((len(k), len(part.link)), bool))


links = [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3)]
found = run(Config(**table), data=(x, y, x[:20], y[:20]), graph=links, schedules={"both": both}, device="cpu")
found.save("out", models=True)
"""
"""Data, a graph and an algorithm that Python gives."""
PYTHON_RESUME = """
from dspodfl import Config, run

config = Config(**study)
run(config, callbacks=[lambda update: update.iteration >= 4], out="out", device="cpu")
run(config, resume="out", device="cpu")
"""
"""A study that a callback ends, and that is gone on with."""


def activity(folder: Path) -> None:
    """When clients are on, and what they are capable of."""
    rows = "".join(f"{i},{10 * i},{10 * i + 300}\n" for i in range(8))
    (folder / "trace.csv").write_text("client,start,end\n" + rows)
    rows = "".join(f"{i},{1 + i},{2 + i}\n" for i in range(8))
    (folder / "capacities.csv").write_text("client,compute,bandwidth\n" + rows)
