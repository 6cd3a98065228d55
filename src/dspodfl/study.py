"""A study: some runs of one model, advanced together and measured. Rows come out as they are measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from dspodfl.engine import Block, Piece, Run, Snapshot, Split, Stack, State, simulate
from dspodfl.errors import InputError, OutOfMemoryError
from dspodfl.judging import EvaluationStoppedError, Judge, Row
from dspodfl.models import Model
from dspodfl.plan import Plan, make_plan
from dspodfl.problem import Problem
from dspodfl.rule import RULES, Rule
from dspodfl.scale import Division
from dspodfl.timing import Stopwatch


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
    eval_samples: int = 0
    """Test samples that models are evaluated on; 0: all."""
    eval_clients: int = 0
    """Clients of each run that are evaluated; 0: all."""

    def initial(self, runs: Sequence[Run]) -> list[Tensor]:
        """The common initial model of each run, which all of its clients start from. Shape: a run each, (p,)."""
        models = {seed: self.model.initial(seed) for seed in {run.seed for run in runs}}
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

    At a pause nobody is looked at, and there is no row. Where runs are split, only those of this process are seen.
    """

    iteration: int
    rows: list[Row]
    accuracies: list[Tensor | None]  # a run looked at each, (clients,)
    runs: list[int]  # numbers in the study
    wave: list[int]  # numbers of all runs that advance together here
    plan: Plan  # the wave is the first of those left
    _stack: Stack
    _snapshot: Snapshot
    _split: Split | None = None
    stopped: bool = False
    """Whether the evaluation was ended between two batches: the runs are still to be evaluated here."""

    def models(self, run: int) -> Tensor:
        """The models of a run that advances here as they are now; where clients are split, all ranks ask together.

        Shape: (clients, p).
        """
        r, split = self.wave.index(run), self._split
        if split is None:
            return self._snapshot.models(self._stack.rows[r])
        return split.assembled(self._snapshot.models(split.shard.rows[r]), r)

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
    pending: Sequence[int] = ()
    """Runs whose evaluation at that iteration was ended before its end."""

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
    stop: Callable[[int], bool] | None = None
    """Between the batches of the evaluation at an iteration: whether to end it there."""
    batch: Callable[[float], None] | None = None
    """Before each batch of an evaluation, with the share of it that is done."""
    timing: Stopwatch = field(default_factory=Stopwatch)


def measure(
    study: Study,
    device: torch.device,
    watch: Watch | None = None,
    start: Start | None = None,
    division: Division | None = None,
) -> Iterator[Measurement]:
    """Run a study, wave by wave, and yield what is measured, where it is measured; or go on from where it stood.

    A wave that runs out of memory is begun anew in halves; what was measured of it is not measured again. A run that
    does not fit alone is an error that says how much it needs. With a ``division`` this is one process of several; all
    go through the same waves, and none of them can begin a wave anew.
    """
    watch, division = watch or Watch(), division or Division.alone(study.runs)
    precision, dtype, compute = choose_precision(study.precision, device)
    plan = (
        start.plan
        if start
        else make_plan(study.runs, study.model, study.batch_size, device, dtype, division.memory, division.fewest)
    )
    watch.plan(plan)
    reached: dict[int, int] = dict(start.reached) if start else {}
    while plan.left:
        wave = division.here(plan.left[0])
        try:
            state = start.state(wave) if start else None
            how = precision, dtype, compute
            pending = [n for n, run in enumerate(wave) if state and start and run in start.pending]
            for found in _wave(study, wave, device, how, watch, plan, state, division, pending):
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
        if len(wave) == 1 or division.team.ranks > 1:
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
    how: tuple[str, torch.dtype, torch.dtype],
    watch: Watch,
    plan: Plan,
    state: State | None,
    division: Division,
    pending: Sequence[int] = (),
) -> Iterator[Measurement]:
    runs = [study.runs[r] for r in wave]
    stack = Stack(runs)
    split = division.split(stack, wave)
    precision, dtype, compute = how
    with products(precision):
        problem = Problem(
            study.model,
            [(run.seed, run.data) for run in runs],
            batch_size=study.batch_size,
            device=device,
            dtype=dtype,
            compute=compute,
            tf32=precision == "tf32",
            samples=study.eval_samples,
        )
        still = study.rule in RULES.values()
        judge = Judge(stack, problem, split, still=still, clients=study.eval_clients, on_batch=watch.batch)
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
            split=split,
            pending=pending,
        ):
            here = [wave[r] for r in snapshot.runs]
            stop = None if watch.stop is None else partial(watch.stop, snapshot.iteration)
            try:
                with watch.timing.during("evaluation"):
                    rows, accuracies = judge(snapshot, stop)
            except EvaluationStoppedError:
                yield Measurement(snapshot.iteration, [], [], here, wave, plan, stack, snapshot, split, stopped=True)
                rows, accuracies = judge(snapshot)
            yield Measurement(snapshot.iteration, rows, accuracies, here, wave, plan, stack, snapshot, split)
