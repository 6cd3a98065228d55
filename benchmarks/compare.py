"""``python -m benchmarks compare OLD [NEW]``: two commits, measured in turns.

Each commit is checked out into a temporary folder (or is a folder already, for machines without git) and measured by a
process of its own, with its own benchmarks: the two set everything up, then alternate, one of each a round, in an
order that changes with every round. What else runs on the machine hits both alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import cpu, gpu
from benchmarks.table import duration
from benchmarks.turns import say

SLOWER = 1.03
"""A row is slower where the whole interval of new / old is above this ratio."""
FEWEST = 6
"""Rounds below which no 95% interval of a median exists."""
_ROOT = Path(__file__).resolve().parents[1]
_WORKER = Path(__file__).with_name("compare_worker.py")


@dataclass(frozen=True)
class Compared:
    """Seconds of two commits in the same rounds: the median of old over new, and its 95% interval."""

    old: float
    new: float
    ratio: float
    low: float
    high: float

    @staticmethod
    def of(old: Sequence[float], new: Sequence[float]) -> Compared:
        """By the ratios of the rounds. The interval is that of order statistics: it assumes no distribution."""
        ratios = sorted(a / b for a, b in zip(old, new, strict=True))
        k = _outside(len(ratios))
        return Compared(
            statistics.median(old), statistics.median(new), statistics.median(ratios), ratios[k], ratios[-1 - k]
        )

    @property
    def verdict(self) -> str:
        """Slower or faster where the whole interval is beyond 3%, else empty."""
        if self.high < 1 / SLOWER:
            return "slower"
        return "faster" if self.low > SLOWER else ""


def _outside(count: int) -> int:
    """How many of ``count`` sorted values lie below the 95% interval of their median, and as many above."""
    if count < FEWEST:
        raise ValueError(f"a 95% interval of a median takes at least {FEWEST} rounds, not {count}")
    below, k = 0.0, 0
    while (below := below + math.comb(count, k) / 2**count) <= 0.025:
        k += 1
    return k - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print the table; 0, or 1 where a row is slower or a group failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description="Two commits, in turns.")
    parser.add_argument("old", help="a commit, or a folder with its files")
    parser.add_argument("new", nargs="?", default="HEAD", help="another; default: HEAD")
    parser.add_argument("--kind", choices=["cpu", "gpu"], help="default: gpu where there is one, else cpu")
    parser.add_argument("--rows", metavar="A,B", help="groups (one) or rows (one/dgd), separated by commas")
    parser.add_argument("--repetitions", type=int, default=15, metavar="N", help="rounds; default: 15")
    parser.add_argument("--seconds", type=float, default=0.2, metavar="S", help="of a turn; default: 0.2")
    parser.add_argument("--loops", action="store_true", help="also the loops, which do without the package")
    given = parser.parse_args(arguments)
    if given.repetitions < FEWEST:
        parser.error(f"--repetitions: at least {FEWEST}")
    if given.kind == "gpu" and not torch.cuda.is_available():
        parser.error("gpu: no CUDA device is available here")
    kind = given.kind or ("gpu" if torch.cuda.is_available() else "cpu")
    names = (gpu if kind == "gpu" else cpu).NAMES
    rows = list(names) if given.rows is None else [name.strip() for name in given.rows.split(",")]
    for row in rows:
        if row.split("/")[0] not in names:
            parser.error(f"--rows: {row!r} is in none of {', '.join(names)}")
    print(f"{given.old} (old) and {given.new} (new), {given.repetitions} rounds\n")
    print("| row | old | new | old / new (95%) | |\n|---|---|---|---|---|")
    found: dict[str, Compared] = {}
    missing: list[str] = []
    with ExitStack() as stack:
        workers = []
        for commit in (given.old, given.new):
            root = stack.enter_context(checked_out(commit))
            workers.append(stack.enter_context(Worker(root, kind, given.repetitions, given.seconds, given.loops)))
        for name in dict.fromkeys(row.split("/")[0] for row in rows):
            say(f"{name}, in turns")
            old, new = (_wanted(times, rows) for times in in_turns(workers, name, given.repetitions))
            both = [key for key in old if len(old[key]) == len(new.get(key, [])) == given.repetitions]
            missing += [key for key in old | new if key not in both] or ([] if both else [name])
            here = {key: Compared.of(old[key], new[key]) for key in both}
            for line in lines(here):
                print(line, flush=True)
            found |= here
    for key in missing:
        print(f"{key}: not measured at both commits")
    return 1 if missing or any(one.verdict == "slower" for one in found.values()) else 0


def lines(found: dict[str, Compared]) -> Iterator[str]:
    """Of the table, in Markdown."""
    for key, one in found.items():
        interval = f"{one.ratio:.3f} ({one.low:.3f} to {one.high:.3f})"
        yield f"| {key} | {duration(one.old)} | {duration(one.new)} | {interval} | {one.verdict} |"


def _wanted(times: dict[str, list[float]], rows: Sequence[str]) -> dict[str, list[float]]:
    return {key: value for key, value in times.items() if key in rows or key.split("/")[0] in rows}


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit: a temporary one, or the one that is named."""
    if (Path(commit) / "benchmarks").is_dir():
        yield Path(commit).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(root), commit], check=True)
        try:
            yield root
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)


class Worker:
    """A process that measures one commit, and waits for its turn."""

    def __init__(self, root: Path, kind: str, rounds: int, seconds: float, loops: bool) -> None:
        paths = os.pathsep.join([str(root / "src"), str(root)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), kind, str(rounds), str(seconds), "loops" if loops else ""],
            cwd=root,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def send(self, *words: str) -> dict[str, Any]:
        """Send a command, and wait for the answer: ``turn``, or ``rows`` where a group is measured."""
        there, back = self._process.stdin, self._process.stdout
        assert there is not None
        assert back is not None
        there.write(" ".join(words) + "\n")
        there.flush()
        line = back.readline()
        if not line:
            raise RuntimeError(f"a process that measures has ended: {self._process.wait()}")
        return json.loads(line)


def in_turns(workers: Sequence[Worker], name: str, rounds: int) -> list[dict[str, list[float]]]:
    """Seconds of every row of a group, by worker; what is measured once a call is called once a round."""
    said = [worker.send("group", name) for worker in workers]
    turn = 0
    while any("turn" in one for one in said):
        for n in _order(turn):
            if "turn" in said[n]:
                said[n] = workers[n].send("go")
        turn += 1
    rows: list[dict[str, list[float]]] = [one["rows"] for one in said]
    single = {key for one in rows for key, times in one.items() if len(times) == 1}
    for turn in range(1, rounds if single else 1):
        for n in _order(turn):
            for key, times in workers[n].send("again", name)["rows"].items():
                if key in single:
                    rows[n][key] += times
    return rows


def _order(turn: int) -> tuple[int, int]:
    return (0, 1) if turn % 2 == 0 else (1, 0)
