"""``python -m benchmarks.scale_model FILE.json``: what an iteration costs, fitted, and what that says of many GPUs.

    on CPUs    step · Σd/R + row · m/R + event · (m + links) + [R > 1] (byte · bytes + host)
    on GPUs    max(step · Σd/R + row · m/R + event · (m + links), bytes / bandwidth) + host

Steps and rows are shared by the ranks; events and delays of all clients are drawn by every rank. On a CPU the processor
itself moves what is sent, so that bytes cost it time; on GPUs they are sent during the computation. Clients, steps and
bytes are those of the rank that has most.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.worlds import geometric, make_run, random_images, shared, squarest
from dspodfl.engine import Run
from dspodfl.engine.shard import crossings
from dspodfl.network import Graph
from dspodfl.study.placement import place

_MEAN_STEP = {"dspodfl": 0.5, "dgd": 1.0}
"""Mean probability of a step under Beta(½, ½) rates."""


@dataclass(frozen=True)
class Costs:
    """Seconds: of a step, of mixing a row, of an entity's events and delays, of a byte sent, of an iteration itself."""

    step: float
    row: float
    event: float
    byte: float
    host: float

    def seconds(self, steps: float, clients: float, entities: float, sent: float, ranks: int) -> float:
        """One iteration; steps, clients and bytes are those of the rank that has most."""
        alone = self.step * steps + self.row * clients + self.event * entities
        return alone + (self.byte * sent + self.host if ranks > 1 else 0.0)


def fit(rows: Sequence[dict[str, Any]]) -> tuple[Costs, list[float]]:
    """Costs, none below 0, that explain the processor time of measured rows best; and by what share each is missed."""
    table, times = [], []
    for row in rows:
        share = row["clients"] / row["ranks"]
        several = row["ranks"] > 1
        sent = row["bytes"] / row["ranks"]
        entities = row["clients"] + row["links"]
        line = [_MEAN_STEP[row["algorithm"]] * share, share, entities, sent * several, float(several)]
        table.append(np.array(line) / row["busy"])
        times.append(1.0)
    matrix = np.array(table)
    scale = matrix.max(axis=0)
    found, _ = nnls(matrix / np.where(scale > 0, scale, 1.0), np.array(times))
    found = found / np.where(scale > 0, scale, 1.0)
    return Costs(*found.tolist()), (matrix @ found - 1.0).tolist()


@dataclass(frozen=True)
class Cluster:
    """GPUs that are assumed: what a client's step and row take on one, and how fast bytes leave one."""

    step: float
    row: float
    event: float
    bandwidth: float
    host: float


def rows_of_the_busiest(run: Run, owner: np.ndarray, ranks: int) -> tuple[float, float]:
    """Rows that the rank that sends most is expected to send an iteration, and clients that the fullest has."""
    edges = run.rates.graph.edges
    i, j = np.concatenate([edges, edges[:, ::-1]]).T
    probability = np.tile(run.rates.link(np.zeros(1, dtype=np.int64))[0], 2)
    cutting = owner[i] != owner[j]
    i, j, probability = i[cutting], j[cutting], probability[cutting]
    pairs = crossings(i, owner[j], np.arange(len(i)), ranks)
    rows = np.bincount(owner[pairs.row], weights=pairs.expected(probability), minlength=ranks)
    return float(rows.max()), float(np.bincount(owner, minlength=ranks).max())


def spread(run: Run, graph: Graph, ranks: Sequence[int]) -> list[dict[str, float]]:
    """Return what the busiest of some ranks has: clients, steps and rows to send, each expected an iteration."""
    d = run.rates.sgd(np.zeros(1, dtype=np.int64))[0]
    out = []
    for count in ranks:
        owner = place(graph, np.ones(graph.n), d, count)
        rows, clients = rows_of_the_busiest(run, owner, count) if count > 1 else (0.0, float(graph.n))
        steps = float(np.bincount(owner, weights=d).max())
        out.append({"ranks": count, "clients": clients, "steps": steps, "rows": rows})
    return out


def predict(of: dict[str, float], graph: Graph, parameters: int, cluster: Cluster) -> dict[str, float]:
    """Return the time of an iteration of DSpodFL on some GPUs: compute, bytes sent meanwhile, what neither hides."""
    compute = cluster.step * of["steps"] + cluster.row * of["clients"] + cluster.event * (graph.n + graph.links)
    travel = 4 * parameters * of["rows"] / cluster.bandwidth
    return of | {"compute": compute, "travel": travel, "seconds": max(compute, travel) + cluster.host}


def million() -> tuple[Run, Graph]:
    """10⁶ clients on a torus, with places, so that they are divided into squares."""
    plain = squarest(1_000_000)
    side = 1000
    number = np.arange(plain.n)
    graph = Graph(plain.n, plain.edges, np.stack([number % side, number // side], axis=1) / side)
    return _run(graph), graph


def thousand() -> tuple[Run, Graph]:
    """1,000 clients on a geometric graph of mean degree 10."""
    graph = geometric(1000, 10.0)
    return _run(graph), graph


def _run(graph: Graph) -> Run:
    dataset = random_images("none", (1, 2, 2), 100, 10)
    return make_run("dspodfl", graph, shared(dataset, min(graph.n, 10), 2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the fit, print what it says of GPUs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_model")
    parser.add_argument("file", type=Path, metavar="FILE.json", help="what python -m benchmarks.scale --json wrote")
    given = parser.parse_args(arguments)
    rows = json.loads(given.file.read_text())["rows"]
    seen: dict[tuple[str, int, int], dict[str, Any]] = {(r["algorithm"], r["ranks"], r["clients"]): r for r in rows}
    costs, missed = fit(list(seen.values()))
    print(
        f"CPU: step {1e6 * costs.step:.2f} µs, row {1e6 * costs.row:.2f} µs, event {1e9 * costs.event:.1f} ns, "
        f"byte {1e9 * costs.byte:.3f} ns, host {1e3 * costs.host:.2f} ms; missed by {max(map(abs, missed)):.1%} at most"
    )
    # One H200 (docs/performance.md): 10⁶ svm clients take 55.3 ms an iteration, of which three passes over the models
    # at 4.2 TB/s are 22; ten VGG11 clients take 0.38 ms, and 0.104 ms for each that takes a step.
    svm = Cluster(step=67e-9, row=22e-9, event=0.05e-9, bandwidth=0.0, host=0.5e-3)
    vgg = Cluster(step=104e-6, row=38e-6, event=0.05e-9, bandwidth=0.0, host=0.5e-3)
    for title, (run, graph), parameters, gpu in (
        ("10⁶ svm clients, torus", million(), 7850, svm),
        ("1,000 VGG11 clients, geometric graph of mean degree 10", thousand(), 9_225_610, vgg),
    ):
        shares = spread(run, graph, [n for n in (1, 8, 16, 64, 256, 1000) if n <= graph.n])
        for speed in (400e9, 45e9):
            cluster = Cluster(gpu.step, gpu.row, gpu.event, speed, gpu.host)
            print(f"\n{title}, {speed / 1e9:.0f} GB/s out of each GPU\n")
            heads = (
                "GPUs",
                "clients each",
                "rows sent",
                "MB sent",
                "compute, ms",
                "travel, ms",
                "iteration, ms",
                "it/s",
            )
            print("| " + " | ".join((*heads, "efficiency")) + " |")
            print("|" + "---|" * (len(heads) + 1))
            found = [predict(share, graph, parameters, cluster) for share in shares]
            first = found[0]["seconds"]
            for row in found:
                n = int(row["ranks"])
                sent = row["rows"] * 4 * parameters / 1e6
                print(
                    f"| {n:,} | {row['clients']:,.0f} | {row['rows']:,.0f} | {sent:,.1f} | "
                    f"{1e3 * row['compute']:.2f} | {1e3 * row['travel']:.2f} | {1e3 * row['seconds']:.2f} | "
                    f"{1 / row['seconds']:,.0f} | {first / row['seconds'] / n:.0%} |"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
