"""What is measured, one row each, and the report that all rows of a run make."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import Machine
from dspodfl.engine import Run, Stack
from dspodfl.engine.device import products
from dspodfl.problem.models import Model
from dspodfl.problem.problem import Problem

BATCH = 16


@dataclass(frozen=True)
class Bench:
    """Where and how long to measure."""

    device: torch.device
    machine: Machine
    rounds: int
    seconds: float
    """Of one turn."""

    @property
    def precision(self) -> str:
        """That of products: what ``precision = "auto"`` is on the device."""
        return "tf32" if self.device.type == "cuda" else "fp32"

    def problem(self, model: Model, stack: Stack, batch_size: int = BATCH, precision: str | None = None) -> Problem:
        """The samples and gradients of some runs, on the device."""
        precision = precision or self.precision
        with products(precision):
            return Problem(
                model,
                [(run.seed, run.data) for run in stack.runs],
                batch_size=batch_size,
                device=self.device,
                compute=torch.bfloat16 if precision == "bf16" else None,
                tf32=precision == "tf32",
            )


def starts(model: Model, runs: list[Run]) -> list[torch.Tensor]:
    """The common initial model of each run."""
    known = {run.seed: model.initial(run.seed) for run in runs}
    return [known[run.seed] for run in runs]


@dataclass(frozen=True)
class Row:
    """One measurement. ``careful`` and ``research``: how often the loops' time is this one's, where there is a loop."""

    key: str
    what: str
    seconds: float
    per: str
    floor: float
    careful: float | None = None
    research: float | None = None
    target: str = ""
    met: bool | None = None
    notes: tuple[str, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def over_floor(self) -> float:
        """Time over floor."""
        return self.seconds / self.floor


@dataclass
class Report:
    """A whole run of the benchmarks."""

    kind: str
    quick: bool
    machine: Machine
    """Its rates at the start, from which the floors are computed."""
    rows: list[Row] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    date: str = field(default_factory=lambda: datetime.now().astimezone().isoformat(timespec="seconds"))
    versions: dict[str, str] = field(default_factory=lambda: versions())
    after: Machine | None = None
    """Its rates at the end, to see whether something else took its time."""

    def write(self, file: Path) -> None:
        """As JSON."""
        rows = [asdict(row) | {"over_floor": row.over_floor} for row in self.rows]
        whole = asdict(self) | {"device": self.machine.name, "threads": self.machine.threads, "rows": rows}
        partly = file.with_name(file.name + ".part")
        partly.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(partly, file)

    @staticmethod
    def read(file: Path) -> Report:
        """The inverse of `write`."""
        found = json.loads(file.read_text(encoding="utf-8"))
        for derived in ("device", "threads"):
            del found[derived]
        machine, after = Machine(**found.pop("machine")), found.pop("after")
        rows = []
        for row in found.pop("rows"):
            del row["over_floor"]
            rows.append(Row(**row | {"notes": tuple(row["notes"])}))
        return Report(machine=machine, rows=rows, after=after and Machine(**after), **found)


def versions() -> dict[str, str]:
    """Of Python and of what the numbers depend on, where it is installed."""
    found = {"python": platform.python_version()}
    for name in ("dspodfl", "torch", "triton", "numpy", "numba"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
