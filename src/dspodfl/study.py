"""A study: some runs of one model, advanced together and measured. Rows come out as they are measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dspodfl.engine import Block, Piece, Run, Snapshot, Stack, State, simulate
from dspodfl.errors import InputError, OutOfMemoryError
from dspodfl.models import Model
from dspodfl.plan import Plan, make_plan
from dspodfl.problem import Problem
from dspodfl.rule import Rule

_NUMBERS_AT_ONCE = 2**25
"""Parameters looked at at a time (256 MB in float64)."""

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

    def initial(self, runs: Sequence[Run]) -> list[Tensor]:
        """The common initial model of each run, which all of its clients start from. Shape: a run each, (p,)."""
        models = {run.seed: self.model.initial(run.seed) for run in runs}
        return [models[run.seed] for run in runs]


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
def products(precision: str) -> Iterator[None]:
    """Let PyTorch's float32 products and convolutions use TF32 for a while, or keep them from it."""
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
    """What was measured at one iteration: a row for each run looked at, and each client's accuracy behind it.

    At a pause nobody is looked at, and there is no row.
    """

    iteration: int
    rows: list[Row]
    accuracies: list[Tensor | None]  # a run looked at each, (clients,)
    runs: list[int]  # numbers in the study
    wave: list[int]  # numbers of all runs that advance together here
    plan: Plan  # the wave is the first of those left
    _stack: Stack
    _snapshot: Snapshot

    def models(self, run: int) -> Tensor:
        """The models of a run of this wave as they are now. Shape: (clients, p)."""
        return self._snapshot.models(self._stack.rows[self.wave.index(run)])

    def pieces(self) -> Iterator[Piece]:
        """All that the runs of this wave carry, by their numbers in the study; good until the study goes on."""
        return (replace(piece, run=self.wave[piece.run]) for piece in self._snapshot.state.pieces())


@dataclass(frozen=True, eq=False)
class Start:
    """Where a study is taken up again: the waves to come, and what the runs of those that had begun carry."""

    plan: Plan
    iteration: int = 0
    pieces: Sequence[Piece] = ()  # by their numbers in the study
    reached: Mapping[int, int] = field(default_factory=dict)
    """Run -> the last iteration that was measured of it."""

    def state(self, wave: list[int]) -> State | None:
        """What a wave goes on from; none where it is still to begin."""
        place = {run: n for n, run in enumerate(wave)}
        mine = [replace(piece, run=place[piece.run]) for piece in self.pieces if piece.run in place]
        return State(self.iteration, lambda: iter(mine)) if mine else None


@dataclass(eq=False)
class Watch:
    """Who hears what happens while a study runs: nobody, unless told otherwise."""

    tick: Callable[[int, int], None] = lambda iteration, runs: None
    """After every iteration of a wave of so many runs."""
    block: Callable[[Block, list[int]], None] = lambda block, wave: None
    """The events of each block of a wave."""
    plan: Callable[[Plan], None] = lambda plan: None
    """The plan before it begins, and again whenever it changes."""
    reach: Callable[[int], int] | None = None
    """How far a wave may go from an iteration before it pauses, which is a measurement of nothing."""


def measure(
    study: Study, device: torch.device, watch: Watch | None = None, start: Start | None = None
) -> Iterator[Measurement]:
    """Run a study, wave by wave, and yield what is measured, where it is measured; or go on from where it stood.

    A wave that runs out of memory is begun anew in halves; what was measured of it is not measured again. A run that
    does not fit alone is an error that says how much it needs.
    """
    watch = watch or Watch()
    precision, dtype, compute = choose_precision(study.precision, device)
    plan = start.plan if start else make_plan(study.runs, study.model, study.batch_size, device, dtype)
    watch.plan(plan)
    reached: dict[int, int] = dict(start.reached) if start else {}
    while plan.left:
        wave = plan.left[0]
        try:
            state = start.state(wave) if start else None
            for found in _wave(study, wave, device, precision, dtype, compute, watch, plan, state):
                if not found.rows:
                    yield found
                elif found.iteration > max(reached.get(r, -1) for r in wave):
                    reached |= dict.fromkeys(wave, found.iteration)
                    yield found
            plan = plan.finished()
        except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            # The traceback holds the frames that hold what filled the memory.
            why = str(error).strip().split("\n")[0]
        else:
            continue
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if len(wave) == 1:
            raise OutOfMemoryError(plan.too_large(study.runs[wave[0]].clients, why))
        plan = plan.halved()
        watch.plan(plan)


def _out_of_memory(error: BaseException) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "not enough memory" in str(error) or "out of memory" in str(error)


def _wave(
    study: Study,
    wave: list[int],
    device: torch.device,
    precision: str,
    dtype: torch.dtype,
    compute: torch.dtype,
    watch: Watch,
    plan: Plan,
    state: State | None = None,
) -> Iterator[Measurement]:
    runs = [study.runs[r] for r in wave]
    stack = Stack(runs)
    with products(precision):
        problem = Problem(
            study.model,
            [(run.seed, run.data) for run in runs],
            batch_size=study.batch_size,
            device=device,
            dtype=dtype,
            compute=compute,
            tf32=precision == "tf32",
        )
        for snapshot in simulate(
            stack,
            problem,
            study.rule,
            state or study.initial(runs),
            iterations=study.iterations,
            every=study.every,
            at_delay=study.at_delay,
            tick=lambda k: watch.tick(k, len(wave)),
            on_block=lambda block: watch.block(block, wave),
            reach=watch.reach,
        ):
            rows, accuracies = judged(study, stack, problem, snapshot)
            here = [wave[r] for r in snapshot.runs]
            yield Measurement(snapshot.iteration, rows, accuracies, here, wave, plan, stack, snapshot)


def judged(study: Study, stack: Stack, problem: Problem, snapshot: Snapshot) -> tuple[list[Row], list[Tensor | None]]:
    """The rows of the runs that a snapshot is taken of, and the accuracy of each of their clients."""
    found: dict[int, _Look] = {}
    alive = [r for r, lost in zip(snapshot.runs, snapshot.diverged, strict=True) if not lost]
    for some in _together(stack, problem, alive):
        found |= _look(stack, problem, snapshot, some)
    rows, accuracies = [], []
    for r, counters, diverged in zip(snapshot.runs, snapshot.counters, snapshot.diverged, strict=True):
        run = stack.runs[r]
        row: Row = dict.fromkeys(COLUMNS)
        row |= {"algorithm": run.algorithm, "seed": run.seed, "iteration": snapshot.iteration, **vars(counters)}
        row["delay_total"] = counters.delay_processing + counters.delay_transmission
        row["delay_total_normalized"] = counters.delay_processing_normalized + counters.delay_transmission_normalized
        row["bytes"] = 2 * counters.link_uses * 4 * study.model.parameters
        row["diverged"] = diverged
        look = found.get(r)
        rows.append(row | look.row if look else row)
        accuracies.append(None if look is None or look.own is None else look.own.expand(run.clients))
    return rows, accuracies


@dataclass(frozen=True, eq=False)
class _Look:
    """What the models of one run are worth."""

    row: Row
    own: Tensor | None  # accuracy of each client, (clients,) or (1,) where all models are one


def _together(stack: Stack, problem: Problem, runs: list[int]) -> Iterator[list[int]]:
    """Runs that can be looked at at once: of one size, on one dataset, not too many."""
    groups: dict[tuple[int, int], list[int]] = {}
    for r in runs:
        groups.setdefault((problem.dataset_of_run[r], stack.runs[r].clients), []).append(r)
    for (_, clients), members in groups.items():
        step = max(1, _NUMBERS_AT_ONCE // (clients * problem.width))
        yield from (members[n : n + step] for n in range(0, len(members), step))


def _look(stack: Stack, problem: Problem, snapshot: Snapshot, runs: list[int]) -> dict[int, _Look]:
    """Runs of one size on one dataset, looked at in one go; one large run in pieces."""
    dataset = problem.dataset_of_run[runs[0]]
    # One common initial model: looking at it once is enough.
    models = [snapshot.packed[stack.rows[r]][: 1 if snapshot.iteration == 0 else None] for r in runs]
    piece = max(1, _NUMBERS_AT_ONCE // problem.width)
    if len(runs) == 1 and len(models[0]) > piece:
        pieces = models[0].split(piece)
        average = sum((part.double().sum(dim=0) for part in pieces), torch.zeros(())) / len(models[0])
        apart = sum(float((part.double() - average).square().sum()) for part in pieces)
        consensus, averages = torch.tensor([apart]), average[None]
        parts = [problem.judge(part, dataset) for part in (*pieces, averages.to(problem.dtype))]
        judged_loss = torch.cat([part.loss for part in parts])[None]
        right = [part.accuracy for part in parts if part.accuracy is not None]
        accuracy = torch.cat(right)[None] if right else None
    else:
        theta = torch.stack(models)  # (runs, clients, width)
        exact = theta.double()
        averages = exact.mean(dim=1)
        consensus = (exact - averages[:, None]).square().sum(dim=(1, 2))
        everything = torch.cat([theta, averages.to(theta.dtype)[:, None]], dim=1)
        found = problem.judge(everything.flatten(0, 1), dataset)
        judged_loss = found.loss.view(len(runs), -1)
        accuracy = None if found.accuracy is None else found.accuracy.view(len(runs), -1)
    table: dict[str, Tensor] = {"consensus_error": consensus, "loss": judged_loss[:, :-1].mean(dim=1)}
    if accuracy is not None:
        accuracy = accuracy.cpu()
        own = accuracy[:, :-1]
        table["accuracy"] = own.mean(dim=1)
        table["accuracy_std"] = own.std(dim=1, correction=0)
        table["accuracy_min"] = own.amin(dim=1)
        table["accuracy_average_model"] = accuracy[:, -1]
    columns = {name: column.tolist() for name, column in table.items()}
    out = {}
    for n, r in enumerate(runs):
        row: Row = {name: column[n] for name, column in columns.items()}
        best = stack.runs[r].data.optimum
        if best is not None:
            mean = problem.unpack(averages[n : n + 1])[0].cpu()
            row["optimality_error"] = float((mean - torch.from_numpy(best)).square().sum())
        out[r] = _Look(row, None if accuracy is None else accuracy[n, :-1])
    return out
