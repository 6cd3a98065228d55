"""What models are worth: the rows of metrics.parquet from a snapshot of a stack."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dspodfl.engine import Snapshot, Split, Stack
from dspodfl.problem import Problem

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


class Judge:
    """Says what the runs of a stack are worth, snapshot by snapshot.

    Where clients are split, each process looks at its own, and all get the same rows. A run in which nothing has fired
    since it was last looked at is worth what it was, if under its rule models change by events alone (``still``).
    """

    def __init__(self, stack: Stack, problem: Problem, split: Split | None = None, *, still: bool = False) -> None:
        self._stack, self._problem, self._split, self._still = stack, problem, split, still
        self._seen: dict[int, tuple[tuple[int, int], _Look]] = {}

    def __call__(self, snapshot: Snapshot) -> tuple[list[Row], list[Tensor | None]]:
        """The rows of the runs that a snapshot is taken of, and the accuracy of each of their clients."""
        counted = dict(zip(snapshot.runs, snapshot.counters, strict=True))
        fired = {r: (counters.sgd_steps, counters.link_uses) for r, counters in counted.items()}
        alive = [r for r, lost in zip(snapshot.runs, snapshot.diverged, strict=True) if not lost]
        known = {r: look for r, (before, look) in self._seen.items() if before == fired.get(r)}
        found = self._look(snapshot, [r for r in alive if r not in known])
        if self._still:
            self._seen |= {r: (fired[r], look) for r, look in found.items()}
        looks = {r: look for r, look in (known | found).items() if r in alive}
        rows, accuracies = [], []
        for r, diverged in zip(snapshot.runs, snapshot.diverged, strict=True):
            run, counters, look = self._stack.runs[r], counted[r], _sound(looks.get(r))
            row: Row = dict.fromkeys(COLUMNS)
            row |= {"algorithm": run.algorithm, "seed": run.seed, "iteration": snapshot.iteration, **vars(counters)}
            row["delay_total"] = counters.delay_processing + counters.delay_transmission
            normalized = counters.delay_processing_normalized + counters.delay_transmission_normalized
            row["delay_total_normalized"] = normalized
            row["bytes"] = 2 * counters.link_uses * 4 * self._problem.model.parameters
            row["diverged"] = diverged or look is None
            rows.append(row | look.row if look else row)
            accuracies.append(None if look is None or look.own is None else look.own.expand(run.clients))
        return rows, accuracies

    def _look(self, snapshot: Snapshot, runs: list[int]) -> dict[int, _Look]:
        found: dict[int, _Look] = {}
        if self._split is None:
            for some in _together(self._stack, self._problem, runs):
                found |= _look(self._stack, self._problem, snapshot, some)
        else:
            for r in runs:
                found |= _look_together(self._stack, self._problem, snapshot, r, self._split)
        return found


@dataclass(frozen=True, eq=False)
class _Look:
    """What the models of one run are worth."""

    row: Row
    own: Tensor | None  # accuracy of each client, (clients,) or (1,) where all models are one


def _sound(look: _Look | None) -> _Look | None:
    """The same, unless a metric is not finite: a run whose loss overflows has diverged, finite parameters or not."""
    if look is None or all(math.isfinite(value) for value in look.row.values() if isinstance(value, float)):
        return look
    return None


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
    return _read(stack, problem, runs, consensus, judged_loss, accuracy, averages)


def _read(
    stack: Stack,
    problem: Problem,
    runs: list[int],
    consensus: Tensor,
    loss: Tensor,
    accuracy: Tensor | None,
    averages: Tensor,
) -> dict[int, _Look]:
    """The columns of some runs; of losses and accuracies, the last of each run is that of the average model.

    Shapes: consensus (runs,), loss and accuracy (runs, clients + 1), averages (runs, width).
    """
    table: dict[str, Tensor] = {"consensus_error": consensus, "loss": loss[:, :-1].mean(dim=1)}
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


def _look_together(stack: Stack, problem: Problem, snapshot: Snapshot, run: int, split: Split) -> dict[int, _Look]:
    """One run whose clients are split: sums over processes, and every client's own numbers from whoever holds it."""
    shard, team = split.shard, split.team
    dataset = problem.dataset_of_run[run]
    own = snapshot.packed[shard.rows[run]]
    if snapshot.iteration == 0:  # one common model, which everybody has
        found = problem.judge(own[:1], dataset)
        right = None if found.accuracy is None else found.accuracy.expand(1, 2)
        return _read(stack, problem, [run], torch.zeros(1), found.loss.expand(1, 2), right, own[:1].double())
    pieces = own.split(max(1, _NUMBERS_AT_ONCE // problem.width))
    total = sum((part.double().sum(dim=0) for part in pieces), own.new_zeros(problem.width, dtype=torch.float64))
    average = team.total(total) / stack.runs[run].clients
    apart = sum((part.double() - average).square().sum() for part in pieces)
    assert isinstance(apart, Tensor)
    looks = [problem.judge(part, dataset) for part in pieces]
    of_average = problem.judge(average[None].to(problem.dtype), dataset)
    loss = torch.cat([split.assembled(torch.cat([look.loss for look in looks]), run), of_average.loss])
    accuracy = None
    if of_average.accuracy is not None:
        mine = torch.cat([look.accuracy for look in looks if look.accuracy is not None])
        accuracy = torch.cat([split.assembled(mine, run), of_average.accuracy])
    right = None if accuracy is None else accuracy[None]
    return _read(stack, problem, [run], team.total(apart)[None], loss[None], right, average[None])
