"""``python -m benchmarks [cpu|gpu] [--quick] [--only A,B] [--json FILE]``, ``nodes``, or ``compare OLD [NEW]``."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import compare, cpu, gpu, nodes
from benchmarks.machine import measure_machine, release
from benchmarks.rows import Bench, Report
from benchmarks.table import show
from benchmarks.turns import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure group by group, print the table; 0, or 1 where a group failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["compare"]:
        return compare.main(arguments[1:])
    if arguments[:1] == ["nodes"]:
        return nodes.main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Speed, side by side in one run; compare --help: two commits; nodes --help: over a network.",
    )
    parser.add_argument("kind", nargs="?", choices=["cpu", "gpu"], help="default: gpu where there is one, else cpu")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, fewer clients")
    parser.add_argument("--only", metavar="A,B", help="some groups of rows, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to a file")
    given = parser.parse_args(arguments)
    found = torch.cuda.is_available()
    if given.kind == "gpu" and not found:
        parser.error("gpu: no CUDA device is available here")
    if given.json is not None and not given.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {given.json.absolute().parent}")
    kind = given.kind or ("gpu" if found else "cpu")
    device = torch.device("cuda" if kind == "gpu" else "cpu")
    module = gpu if kind == "gpu" else cpu
    # A GPU has no other user, and its times hardly vary.
    rounds, seconds = (3, 0.3) if given.quick or kind == "gpu" else (9, 1.0)
    wanted = module.NAMES if given.only is None else [name.strip() for name in given.only.split(",")]
    for name in wanted:
        if name not in module.NAMES:
            parser.error(f"--only: {name!r} is none of {', '.join(module.NAMES)}")
    say("the machine's own rates")
    if kind == "gpu":
        kernels = gpu.fresh_kernels()
    machine = measure_machine(device)
    release(device)
    report = Report(kind, given.quick, machine)
    groups = module.groups(Bench(device, machine, rounds, seconds), given.quick)
    for name in wanted:
        try:
            report.rows.extend(groups[name]())
        except Exception as error:  # what was measured before is worth keeping
            traceback.print_exc()
            report.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        release(device)
        if given.json is not None:
            report.write(given.json)
    if kind == "gpu":
        kernels.cleanup()
    report.after = measure_machine(device)
    if given.json is not None:
        report.write(given.json)
    show(report)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
