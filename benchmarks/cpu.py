"""One DGD iteration on two cores: the stacked engine against a careful plain loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.loops import CarefulLoop
from dspodfl import Config
from dspodfl.config.build import build
from dspodfl.engine import Stack, simulate
from dspodfl.errors import DataError
from dspodfl.problem import Problem


def main(quick: bool) -> None:
    """Measure in turns and print a table; the ratio comes last."""
    setting = {"algorithms": ["dgd"], "seeds": 1, "train": {"iterations": 10**9}, "eval": {"every": 10**9}}
    partition = {"kind": "labels", "per_client": 1}
    try:
        _, study, _ = build(Config(data={"name": "fmnist", "partition": partition}, **setting))
    except DataError:
        print("Fashion-MNIST is not on this machine: measured on fmnist-mini")
        _, study, _ = build(Config(data={"name": "fmnist-mini", "partition": partition}, **setting))
    (run,) = study.runs
    problem = Problem(study.model, [(run.seed, run.data)], batch_size=16)
    loop = CarefulLoop(run)

    def engine(iterations: int) -> None:
        for _ in simulate(Stack([run]), problem, study.rule, study.initial, iterations=iterations, every=iterations):
            pass

    def plain(iterations: int) -> None:
        for _ in range(iterations):
            loop.iterate()

    rounds, seconds = (5, 0.5) if quick else (15, 2.0)
    ours, theirs = in_turns([engine, plain], rounds, seconds)
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    print(f"svm, {run.data.dataset.name}, 10 clients, batch 16, one DGD iteration; {torch.get_num_threads()} threads")
    print(f"  careful plain PyTorch loop  {statistics.median(theirs) * 1e6:9.1f} µs")
    print(f"  dspodfl, stacked            {statistics.median(ours) * 1e6:9.1f} µs")
    print(f"ratio: {ratio:.1f}")


def in_turns(works: list[Callable[[int], None]], rounds: int, seconds: float) -> list[list[float]]:
    """Seconds per iteration of each work, measured turn by turn so that noise hits all alike."""
    counts = []
    for work in works:
        work(20)  # warm up
        start = time.perf_counter()
        work(50)
        counts.append(max(50, int(seconds * 50 / (time.perf_counter() - start))))
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, count, found in zip(works, counts, times, strict=True):
            start = time.perf_counter()
            work(count)
            found.append((time.perf_counter() - start) / count)
    return times
