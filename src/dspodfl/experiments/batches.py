"""Cells that advance together, as one study: which do, how many at a time, and when each of them is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspodfl.analysis import MetricsRow
from dspodfl.config import Cell
from dspodfl.study import Study, joined

BuiltCell = tuple[Cell, Study]
"""A cell, and the study that was built from it."""
FinishedRows = Mapping[str, tuple[Cell, list[MetricsRow]]]
"""Cells whose runs have all ended, with their rows, by digest."""
FLOP_PER_BATCH = {"cpu": 1e13, "cuda": 5e15}
"""A batch takes a minute or so, by the kind of device."""


@dataclass(eq=False)
class CellBatch:
    """Cells that advance together, as one study.

    Attributes:
        cells: The cells.
        owners: The cell of each run.
        study: All their runs as one study.
        start: The checkpoint that they are resumed from; None: they begin.
    """

    cells: list[Cell]
    owners: list[Cell]
    study: Study
    start: Path | None = None

    @staticmethod
    def of(members: Sequence[BuiltCell], start: Path | None = None) -> CellBatch:
        """Join the studies of some cells."""
        owners = [cell for cell, study in members for _ in study.pairs]
        return CellBatch([cell for cell, _ in members], owners, joined([study for _, study in members]), start)

    @property
    def digests(self) -> list[str]:
        """The cells, by digest."""
        return [cell.digest for cell in self.cells]


def in_batches(built: Sequence[BuiltCell], device: str, fewest: int = 1) -> list[list[BuiltCell]]:
    """Divide cells into batches: studies that can be stacked, as many at a time as take a minute or so.

    Args:
        built: The cells.
        device: ``cpu`` or ``cuda``.
        fewest: No batch has fewer runs than this, where there are as many that can be stacked.

    Returns:
        The members of each batch, in the order of the cells.
    """
    stacks: dict[object, list[BuiltCell]] = {}
    for cell, study in built:
        stacks.setdefault(_stacking_key(study), []).append((cell, study))
    out: list[list[BuiltCell]] = []
    for members in stacks.values():
        batches: list[list[BuiltCell]] = []
        batch: list[BuiltCell] = []
        spent = 0.0
        for cell, study in members:
            cost = _flop(study)
            if batch and spent + cost > FLOP_PER_BATCH[device] and _runs(batch) >= fewest:
                batches.append(batch)
                batch, spent = [], 0.0
            batch.append((cell, study))
            spent += cost
        if batches and _runs(batch) < fewest:
            batches[-1] += batch
        else:
            batches.append(batch)
        out += batches
    return out


def _stacking_key(study: Study) -> tuple[object, ...]:
    """Studies of equal keys can be stacked."""
    model = study.model
    shape = (model.name, tuple(model.shapes.items()), model.loss, model.l2, model.input_shape, model.outputs)
    how = (
        frozenset(map(type, study.rules)),
        study.batch_size,
        study.every,
        study.points,
        tuple(study.at_delay),
        study.precision,
    )
    return (*shape, *how, study.eval_samples, study.eval_clients)


def _runs(batch: Sequence[BuiltCell]) -> int:
    return sum(len(study.runs) for _, study in batch)


def _flop(study: Study) -> float:
    tests = len(study.runs[0].data.dataset.x_test)
    pixels = 1 if study.model.is_linear else 16  # a weight of a convolution is used at many places
    flop = 0.0
    for run in study.runs:
        need = run.need or study.iterations
        evaluations = study.evaluations(need)
        flop += (
            pixels
            * study.model.parameters
            * run.clients
            * (4.0 * need * study.samples_per_step + 2.0 * evaluations * tests)
        )
    return flop


class BatchRows:
    """The rows of a batch, by cell, until all runs of a cell have ended.

    Args:
        batch: The cells that advance.
        finished: The digests of cells that are finished already: their rows are dropped.
        on_finished: Called with the cells that have ended together and the seconds that each took.
    """

    def __init__(
        self, batch: CellBatch, finished: Collection[str], on_finished: Callable[[FinishedRows, float], None]
    ) -> None:
        self._study, self._owners, self._on_finished = batch.study, batch.owners, on_finished
        self._cells = [cell for cell in batch.cells if cell.digest not in finished]
        self._rows: dict[str, list[MetricsRow]] = {cell.digest: [] for cell in self._cells}
        self._going = {digest: set[int]() for digest in batch.digests}
        for r, owner in enumerate(self._owners):
            self._going[owner.digest].add(r)
        self._ready: list[Cell] = []
        self._since = time.monotonic()

    def add(self, rows: Sequence[MetricsRow], runs: Sequence[int]) -> None:
        """Add rows.

        Args:
            rows: Rows of metrics.
            runs: The index of the run of each.
        """
        ended = False
        for r, row in zip(runs, rows, strict=True):
            digest = self._owners[r].digest
            if digest in self._rows:
                self._rows[digest].append(row)
            if self._study.ended_by(r, row):
                self._going[digest].discard(r)
                ended = True
        done = [cell for cell in self._cells if cell.digest in self._rows and not self._going[cell.digest]]
        if ended and done:
            seconds = (time.monotonic() - self._since) / len(done)
            self._on_finished({cell.digest: (cell, self._rows.pop(cell.digest)) for cell in done}, seconds)
            self._ready += done
            self._since = time.monotonic()

    def finished(self) -> Iterator[Cell]:
        """Yield the cells that have been finished since the last call."""
        done, self._ready = self._ready, []
        yield from done
