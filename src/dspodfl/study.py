"""A study: some runs of one model, advanced together and measured. Rows come out as they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dspodfl.engine import Block, Run, Snapshot, Stack, simulate
from dspodfl.errors import InputError
from dspodfl.models import Model
from dspodfl.problem import Problem
from dspodfl.rule import Rule

Row = dict[str, object]
"""One row of metrics.parquet: one algorithm, seed and evaluated iteration."""

COLUMNS = (
    "algorithm",
    "seed",
    "iteration",
    "accuracy",
    "accuracy_std",
    "accuracy_min",
    "accuracy_average_model",
    "loss",
    "consensus_error",
    "optimality_error",
    "delay_processing",
    "delay_transmission",
    "delay_total",
    "delay_processing_normalized",
    "delay_transmission_normalized",
    "delay_total_normalized",
    "sgd_steps",
    "link_uses",
    "bytes",
    "diverged",
)


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that decides a study's numbers."""

    runs: list[Run]
    model: Model
    rule: Rule
    iterations: int
    batch_size: int
    every: int
    at_delay: list[float]
    precision: str = "auto"

    @property
    def initial(self) -> Tensor:
        """The common initial model of each run, for each of its clients. Shape: (clients, p)."""
        models = {run.seed: self.model.initial(run.seed) for run in self.runs}
        return torch.cat([models[run.seed].expand(run.clients, -1) for run in self.runs])


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one; asking for CUDA without one is an error."""
    if name not in ("auto", "cpu", "cuda") and not name.startswith("cuda:"):
        raise InputError("device", name, "auto, cpu or cuda")
    try:
        found = torch.cuda.is_available()
        if name == "auto":
            return torch.device("cuda" if found else "cpu")
        device = torch.device(name)
        missing = device.type == "cuda" and (not found or (device.index or 0) >= torch.cuda.device_count())
    except RuntimeError as error:
        raise InputError("device", name, f"auto, cpu or cuda ({error})") from None
    if missing:
        raise InputError("device", name, "auto or cpu: no such CUDA device is available here")
    return device


def choose_precision(name: str, device: torch.device) -> tuple[str, torch.dtype, torch.dtype]:
    """The precision in force, the dtype of parameters and the dtype in which gradients are computed."""
    if name == "auto":
        name = "tf32" if device.type == "cuda" else "fp32"
    if name == "tf32" and device.type != "cuda":
        raise InputError("train.precision", "tf32", f"auto, fp64, fp32 or bf16 on the device {device.type!r}")
    if name == "fp64":
        return name, torch.float64, torch.float64
    return name, torch.float32, torch.bfloat16 if name == "bf16" else torch.float32


@contextmanager
def _matrix_products(precision: str) -> Iterator[None]:
    """Let float32 products use TF32 while a tf32 study runs, and only then."""
    before = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions


@dataclass(frozen=True, eq=False)
class Measurement:
    """What was measured at one iteration: a row for each run looked at, and each client's accuracy behind it."""

    iteration: int
    rows: list[Row]
    accuracies: list[Tensor | None]  # a run looked at each, (clients,)
    runs: list[int]
    theta: Tensor  # (clients, p) of the whole stack
    stack: Stack


def measure(
    study: Study,
    device: torch.device,
    tick: Callable[[int], None] | None = None,
    on_block: Callable[[Block], None] | None = None,
) -> Iterator[Measurement]:
    """Run a study and yield what is measured, where it is measured."""
    precision, dtype, compute = choose_precision(study.precision, device)
    stack = Stack(study.runs)
    problem = Problem(
        study.model,
        [(run.seed, run.data) for run in study.runs],
        batch_size=study.batch_size,
        device=device,
        dtype=dtype,
        compute=compute,
    )
    snapshots = simulate(
        stack,
        problem,
        study.rule,
        study.initial,
        iterations=study.iterations,
        every=study.every,
        at_delay=study.at_delay,
        tick=tick,
        on_block=on_block,
    )
    with _matrix_products(precision):
        for snapshot in snapshots:
            found = [_row(study, stack, problem, snapshot, position) for position in range(len(snapshot.runs))]
            rows, accuracies = [row for row, _ in found], [accuracy for _, accuracy in found]
            yield Measurement(snapshot.iteration, rows, accuracies, snapshot.runs, snapshot.theta, stack)


def _row(study: Study, stack: Stack, problem: Problem, snapshot: Snapshot, position: int) -> tuple[Row, Tensor | None]:
    r = snapshot.runs[position]
    run, counters, diverged = stack.runs[r], snapshot.counters[position], snapshot.diverged[position]
    row: Row = dict.fromkeys(COLUMNS)
    row |= {"algorithm": run.algorithm, "seed": run.seed, "iteration": snapshot.iteration, **vars(counters)}
    row["delay_total"] = counters.delay_processing + counters.delay_transmission
    row["delay_total_normalized"] = counters.delay_processing_normalized + counters.delay_transmission_normalized
    row["bytes"] = 2 * counters.link_uses * 4 * study.model.parameters
    row["diverged"] = diverged
    if diverged:
        return row, None
    theta = snapshot.theta[stack.rows[r]]
    if snapshot.iteration == 0:  # one common initial model: looking at it once is enough
        theta = theta[:1]
    average = theta.double().mean(dim=0)
    row["consensus_error"] = float((theta.double() - average).square().sum())
    if run.data.optimum is not None:
        best = torch.from_numpy(run.data.optimum).to(average.device)
        row["optimality_error"] = float((average - best).square().sum())
    found = problem.evaluate(torch.cat([theta, average.to(theta.dtype)[None]]), r)
    row["loss"] = float(found.loss[:-1].mean())
    if found.accuracy is None:
        return row, None
    own = found.accuracy[:-1]
    row["accuracy"] = float(own.mean())
    row["accuracy_std"] = float(own.std(correction=0))
    row["accuracy_min"] = float(own.min())
    row["accuracy_average_model"] = float(found.accuracy[-1])
    return row, own.expand(run.clients) if snapshot.iteration == 0 else own
