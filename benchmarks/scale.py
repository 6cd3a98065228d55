"""``python -m benchmarks.scale [--json FILE] [--plot FILE]``: one large run over 1, 2, … ranks with one thread each.

Strong scaling keeps the clients and adds ranks, weak scaling adds clients with them. Ranks are processes that PyTorch's
launcher starts; one rank is the ordinary engine. Numbers of ranks alternate, and the best of a few rounds counts, so
that what else runs on the machine hits all alike. Processor time, of all threads of the busiest rank, is what an
iteration would take if each rank had a core of its own and no rank ever waited; it hardly depends on other programs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import name_of
from benchmarks.turns import say
from benchmarks.worlds import SAMPLES, geometric, make_run, shared
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Shard, Split, Stack, events, simulate
from dspodfl.engine.exchange import Exchange
from dspodfl.engine.steppers.compiled import Compiled
from dspodfl.engine.transport.torch_distributed import Group, launch, launched
from dspodfl.problem.data import load, parts
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem
from dspodfl.study.placement import cut, place
from dspodfl.study.work_split import expected_rows

BATCH = 16
_STRIDE = 10
"""Iterations of a measurement; the first does not count."""


class Phases:
    """Seconds that each phase of an iteration takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Count the time in a method."""
        inner = getattr(owner, method)

        def outer(*args: Any, **more: Any) -> Any:
            start = time.perf_counter()
            found = inner(*args, **more)
            self._add(name, start)
            return self._waited(found) if name == "send" else found

        setattr(owner, method, outer)

    def _waited(self, wait: Callable[[], None]) -> Callable[[], None]:
        def outer() -> None:
            start = time.perf_counter()
            wait()
            self._add("wait", start)

        return outer

    def _add(self, name: str, start: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def measure(clients: int, degree: float, algorithm: str, iterations: int) -> dict[str, Any] | None:
    """This rank's share of one large run; what was measured, on rank 0."""
    torch.set_num_threads(1)
    dataset = load("fmnist-mini")
    graph, data = geometric(clients, degree), shared(dataset, clients, SAMPLES)
    run = make_run(algorithm, graph, data)
    stack, model = Stack([run]), build("svm", dataset.input_shape, dataset.outputs)
    phases, team, split, held = Phases(), None, None, data
    owner = np.zeros(clients, dtype=np.int64)
    if launched() and int(os.environ["WORLD_SIZE"]) > 1:
        team = Group(torch.device("cpu"))
        owner = place(graph, data.sizes, run.rates.sgd(np.zeros(1, dtype=np.int64))[0], team.ranks)
        split = Split(Shard.of(stack, [owner], team.rank, team.ranks), team)
        (held,) = parts([data], [np.flatnonzero(owner == team.rank)])
        for method, name in (("_call", "compute"), ("_join", "compute"), ("load", "minibatches")):
            phases.watch(Compiled, method, name)
        phases.watch(Exchange, "start", "send")
    phases.watch(events.EventSampler, "block", "events")
    problem = Problem(model, [(0, held)], batch_size=BATCH)
    ends: list[tuple[float, float]] = []

    def tick(k: int) -> None:
        if k % _STRIDE == 0:
            ends.append((time.perf_counter(), time.process_time()))
            if k == _STRIDE:
                phases.seconds.clear()

    rule = RULES["simultaneous"]
    for _ in simulate(
        stack, problem, rule, [model.initial(0)], iterations=iterations, every=_STRIDE, tick=tick, split=split
    ):
        pass
    times, busy = np.diff(ends, axis=0).T / _STRIDE
    counted = iterations - _STRIDE
    mine = {
        "busy": busy.tolist(),
        "phases": {name: seconds / counted for name, seconds in phases.seconds.items()},
        "sent": 0 if team is None else team.sent,
    }
    everyone = [mine] if team is None else team.gather(mine)
    if team is not None:
        team.leave()
    if everyone is None:
        return None
    row = 4 * model.parameters
    guess = expected_rows(run, owner, 0, iterations)
    assert guess is not None
    return {
        "clients": clients,
        "links": graph.links,
        "links_cut": cut(graph, owner),
        "ranks": len(everyone),
        "algorithm": algorithm,
        "seconds": times.tolist(),
        "busy": max(min(one["busy"]) for one in everyone),
        "phases": {name: max(one["phases"].get(name, 0.0) for one in everyone) for name in mine["phases"]},
        "bytes": sum(one["sent"] for one in everyone) / iterations,
        "bytes_predicted": guess * row / iterations,
        "bytes_of_events": _events(run, owner, iterations) * row / iterations,
    }


def _events(run: Any, owner: np.ndarray, iterations: int) -> int:
    """Rows that cross by the events themselves, each once for each rank that needs it; counted plainly."""
    i, j = run.rates.graph.edges.T
    ranks, cutting = int(owner.max()) + 1, owner[i] != owner[j]
    i, j, rows = i[cutting], j[cutting], 0
    for block in Stack([run]).blocks(iterations, 100):
        for fired in block.events(0).v_hat[:, cutting]:
            pairs = np.concatenate([i[fired] * ranks + owner[j[fired]], j[fired] * ranks + owner[i[fired]]])
            rows += len(np.unique(pairs))
    return rows


def _turn(ranks: int, clients: int, degree: float, algorithm: str, iterations: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        words = [str(clients), str(degree), algorithm, str(iterations), "--worker", str(out)]
        code = launch(ranks, words, module="benchmarks.scale")
        if code:
            raise RuntimeError(f"{ranks} ranks: exit code {code}")
        return dict(json.loads(out.read_text()))


def scaling(
    ranks: Sequence[int], clients: int, degree: float, algorithms: Sequence[str], iterations: int, rounds: int
) -> list[dict[str, Any]]:
    """Rows of strong and weak scaling: the best stride of all rounds, phases of the best round."""
    os.environ["OMP_NUM_THREADS"] = "1"
    cases = [(kind, name, count) for name in algorithms for kind in ("strong", "weak") for count in ranks]
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {case: [] for case in cases}
    for n in range(rounds):
        for kind, name, count in cases:
            size = clients if kind == "strong" else clients * count // max(ranks)
            if kind == "weak" and size == clients:  # the same as the strong one
                continue
            say(f"round {n + 1} of {rounds}: {name}, {size:,} clients, {count} ranks")
            found[kind, name, count].append(_turn(count, size, degree, name, iterations))
    for name in algorithms:
        found["weak", name, max(ranks)] = found["strong", name, max(ranks)]
    rows = []
    for (kind, name, _), turns in found.items():
        best = min(turns, key=lambda turn: min(turn["seconds"]))
        first = min(min(turn["seconds"]) for turn in found[kind, name, min(ranks)])
        took = min(best["seconds"])
        medians = [statistics.median(turn["seconds"]) for turn in turns]
        busy, alone = (min(turn["busy"] for turn in some) for some in (turns, found[kind, name, min(ranks)]))
        about = {"kind": kind, "algorithm": name, "best": took, "median": min(medians), "speedup": first / took}
        rows.append(best | about | {"busy": busy, "relief": alone / busy})
    return rows


def show(rows: Sequence[dict[str, Any]]) -> str:
    """The table, in Markdown."""
    names = ("compute", "events", "minibatches", "send", "wait")
    head = [
        "",
        "ranks",
        "clients",
        "links cut",
        "ms an iteration",
        "speed-up",
        "processor, ms",
        "ratio",
        *names,
        "MB sent",
        "predicted",
        "of events",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        scale = row["speedup"] * (1 if row["kind"] == "strong" else row["ranks"])
        cells = [f"{row['algorithm']}, {row['kind']}", str(row["ranks"]), f"{row['clients']:,}", str(row["links_cut"])]
        relief = row["relief"] * (1 if row["kind"] == "strong" else row["ranks"])
        cells += [f"{1e3 * row['best']:.2f}", f"{scale:.2f}×", f"{1e3 * row['busy']:.2f}", f"{relief:.2f}×"]
        cells += [f"{1e3 * row['phases'][name]:.2f}" if name in row["phases"] else "–" for name in names]
        sent = [row["bytes"], row["bytes_predicted"], row["bytes_of_events"]]
        cells += [f"{value / 1e6:.3f}" if row["ranks"] > 1 else "–" for value in sent]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write, draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("worker", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--worker", dest="found", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", default=f"1,{max(2, os.cpu_count() or 1)}", help="numbers of ranks, by commas")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--degree", type=float, default=10.0, help="mean degree of the geometric graph")
    parser.add_argument("--algorithms", default="dspodfl,dgd")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to a file")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw it")
    parser.add_argument(
        "--read", type=Path, metavar="FILE", help="draw and print what --json wrote, and measure nothing"
    )
    given = parser.parse_args(arguments)
    if given.found is not None:
        clients, degree, algorithm, iterations = given.worker
        found = measure(int(clients), float(degree), algorithm, int(iterations))
        if found is not None:
            given.found.write_text(json.dumps(found))
        return 0
    if given.read is not None:
        report = json.loads(given.read.read_text())
    else:
        ranks = sorted(int(word) for word in given.ranks.split(","))
        names = given.algorithms.split(",")
        rows = scaling(ranks, given.clients, given.degree, names, given.iterations, given.rounds)
        report = {"machine": name_of(torch.device("cpu")), "cores": os.cpu_count(), "rows": rows}
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=1))
    if given.plot is not None:
        from benchmarks.scale_plot import draw
        from dspodfl.analysis.figures import picture

        given.plot.write_bytes(picture(draw(report), "png"))
    print(f"{report['machine']}, {report['cores']} cores, one thread a rank; svm, geometric graph")
    print(show(report["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
