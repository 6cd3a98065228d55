"""Measures the commit that PYTHONPATH leads to, turn by turn, as `benchmarks.compare` says on the standard input."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any


def main(kind: str, rounds: int, seconds: float, loops: bool) -> None:
    """Answer every line by one: a turn that waits, or what a group has found."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what benchmarks print goes elsewhere

    import torch

    from benchmarks import cpu, gpu
    from benchmarks.machine import measure_machine, release
    from benchmarks.rows import Bench
    from benchmarks.turns import Repeated

    waits = True

    def answer(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    def in_turns(works: Sequence[Any], rounds: int) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in works]
        for _ in range(rounds):
            if waits:
                answer({"turn": True})
                if not sys.stdin.readline():
                    raise SystemExit("the parent process has ended")
            for work, times in zip(works, found, strict=True):
                again = loops or not times or not isinstance(work, Repeated)
                times.append(work.turn() if again else times[0])
        return found

    for name, module in list(sys.modules.items()):
        if name.startswith("benchmarks.") and hasattr(module, "in_turns"):
            module.in_turns = in_turns  # type: ignore[attr-defined]
    device = torch.device("cuda" if kind == "gpu" else "cpu")
    kernels = gpu.fresh_kernels() if kind == "gpu" else None  # those of one commit are none of the other's
    # Floors need rates, and are not measured here.
    bench = Bench(device, measure_machine(device, room=2**20, side=64), rounds, seconds)
    for line in sys.stdin:
        what, name = line.split()
        waits = what == "group"
        groups = (gpu if kind == "gpu" else cpu).groups(bench if waits else replace(bench, rounds=1), False)
        rows: dict[str, list[float]] = {}
        try:
            for row in groups[name]():
                times = row.more.get("times", [])
                if waits and not loops and len(times) > 1 and len(set(times)) == 1:
                    continue  # a loop, measured once
                rows[row.key] = times if waits and len(times) == rounds else [row.seconds]
        except Exception:  # the other groups are worth measuring
            traceback.print_exc()
        release(device)
        answer({"rows": rows})
    if kernels is not None:
        kernels.cleanup()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "loops")
