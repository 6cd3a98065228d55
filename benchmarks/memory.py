"""Peak memory of a run of many clients on the CPU, in a process of its own: ``python -m benchmarks.memory CLIENTS``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.floors import Load, load_of
from benchmarks.machine import Machine
from benchmarks.rows import BATCH, Bench, starts
from benchmarks.turns import Steady
from benchmarks.worlds import images, make_run, random_images, shared, squarest
from dspodfl.engine import Stack
from dspodfl.problem.data import Dataset
from dspodfl.problem.models import build

_ROOT = Path(__file__).resolve().parents[1]


def in_a_child(clients: int, threads: int, stand_in: str = "mini") -> dict[str, Any]:
    """What `peak` finds in a process that does nothing else."""
    command = [sys.executable, "-m", "benchmarks.memory", str(clients), str(threads), stand_in]
    done = subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak(clients: int, stand_in: str = "mini") -> dict[str, Any]:
    """Bytes that a DGD run takes at most, over those of the process with everything imported and compiled.

    ``models`` is 4np; ``data`` is what the samples take: training as stored, test in float32, labels, shards.
    """
    tiny = random_images("tiny", (1, 4, 4), 64, 16)
    _iterate(tiny, 4, samples=4)
    base = _resident("VmRSS")
    _forget_peak()
    if stand_in == "tiny":
        dataset, samples = tiny, 4
    else:
        dataset, samples = images("fmnist", stand_in), 64
    seconds, load = _iterate(dataset, clients, samples)
    held = dataset.x_train.nbytes + 4 * dataset.x_test.size + dataset.y_train.nbytes + dataset.y_test.nbytes
    model = build("svm", dataset.input_shape, dataset.outputs)
    return {
        "clients": clients,
        "peak": max(_resident("VmHWM") - base, 1),
        "models": 4 * clients * model.parameters,
        "data": held + 8 * clients * samples,
        "seconds": seconds,
        "load": [load.bytes, load.flops],
    }


def _iterate(dataset: Dataset, clients: int, samples: int) -> tuple[float, Load]:
    bench = Bench(torch.device("cpu"), Machine("", 1, 1.0, {}), 1, 0.2)
    model = build("svm", dataset.input_shape, dataset.outputs)
    stack = Stack([make_run("dgd", squarest(clients), shared(dataset, clients, samples))])
    problem = bench.problem(model, stack, BATCH)
    seconds = Steady(stack, problem, starts(model, stack.runs), bench.seconds).turn()
    return seconds, load_of(model, stack.runs[0], BATCH)


def _resident(which: str) -> int:
    """Bytes: VmRSS, those in memory now; VmHWM, those at the peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith(which))
    return 1024 * int(line.split()[1])


def _forget_peak() -> None:
    """Reset the peak, where Linux allows it: compiling takes memory that running does not."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        try:
            clear.write_text("5")
        except OSError:
            return


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    print(json.dumps(peak(int(sys.argv[1]), sys.argv[3])))
