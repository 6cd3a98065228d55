"""Grids of studies, run as stacked ones. What is finished is kept, cell by cell, and never run again.

All cells whose models, batches and iterations are of one kind advance together, as one study on the disjoint union of
their graphs; only so many at a time as take a minute or so, because what is interrupted begins anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from dspodfl.budget import Budget
from dspodfl.config.build import build
from dspodfl.data import Dataset
from dspodfl.errors import DataError, InputError
from dspodfl.forecast import ADVICE, expected_seconds
from dspodfl.grid import Cell
from dspodfl.judging import COLUMNS, Row
from dspodfl.plan import Plan
from dspodfl.progress import Progress
from dspodfl.provenance import provenance
from dspodfl.results import ordered, parquet, write
from dspodfl.study import Study, Watch, choose_device, choose_precision, measure
from dspodfl.timing import Stopwatch

_FLOP_AT_ONCE = {"cpu": 1e13, "cuda": 5e15}
"""What is run at once takes a minute or so."""
_ABOUT = "about"
"""Under this name a cell's table knows where it was computed, and in how many seconds."""


@dataclass(eq=False)
class Sweep:
    """Cells, and the store that keeps what is finished of them; without one, memory does.

    Several grids may share a store: what one has run, the others need not.
    """

    cells: Sequence[Cell]
    axes: Sequence[str]
    store: Path | None = None
    device: str = "auto"
    tick: Callable[[int, int], None] | None = None
    """Hears of iterations done, of how many in all."""
    on_plan: Callable[[Plan], None] | None = None
    progress: Progress | None = None
    timing: Stopwatch = field(default_factory=Stopwatch)
    """What the time went into."""
    _found: dict[str, pd.DataFrame] = field(default_factory=dict, init=False)
    _built: list[tuple[Cell, Study]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._device = choose_device(self.device)
        for cell in self.cells:
            choose_precision(cell.config.train.precision, self._device)
        if self.store is not None:
            for cell in self.cells:
                path = self._kept(cell)
                if path is not None:
                    self._found[cell.digest] = without_repeats(_read(path), cell.config.train.budget)

    def prepare(self) -> None:
        """Build what is not finished: what cannot be built is found out before anything runs."""
        left = [cell for cell in self._unique() if cell.digest not in self._found]
        library: dict[str, Dataset] = {}
        self._built = []
        with self.timing.during("building"):
            for number, cell in enumerate(left):
                if self.progress:
                    self.progress.stage(f"building cell {number + 1} of {len(left)}", number / len(left))
                self._built.append((cell, build(cell.config, library=library)[1]))

    def __iter__(self) -> Iterator[Cell]:
        """Run what is not finished, and give each cell when it is."""
        if self._built is None:
            self.prepare()
        built = self._built or []
        if self.progress and self.progress.mode != "off":
            self.progress.forecast(expected_seconds((study for _, study in built), self._device), ADVICE)
        batches = list(_batches(built, self._device.type))
        self._built = None
        whole = sum(_length(studies) for studies in batches)
        before = 0
        show = None if self.progress is None or self.progress.mode == "off" else self.progress
        if show:
            show.start(whole, whole)
        self._label()
        for batch in batches:
            length = _length(batch)

            def tick(iteration: int, runs: int, done: int = before) -> None:
                here = min(done + iteration, whole)
                if self.tick:
                    self.tick(here, whole)
                if show:
                    show.update(here, here)

            watch = Watch(tick=tick, plan=self._planned, timing=self.timing)
            if show:
                watch.batch = partial(show.stage, "evaluating")
            cells = self._run(batch, watch)
            while True:
                with self.timing.during("training"):
                    cell = next(cells, None)
                if cell is None:
                    break
                self._label()
                yield cell
            before += length

    def _label(self) -> None:
        if self.progress:
            self.progress.label(f"{len(self.finished)} of {len(self.cells)} cells finished")

    def _planned(self, plan: Plan) -> None:
        """Hear of the plan, and say where memory made the waves smaller."""
        if self.on_plan:
            self.on_plan(plan)
        if self.progress and plan.halvings:
            sizes = ", ".join(str(len(wave)) for wave in plan.left)
            self.progress.say(f"out of memory: going on with smaller waves (runs: {sizes})")

    def _unique(self) -> list[Cell]:
        return list({cell.digest: cell for cell in self.cells}.values())

    def _run(self, batch: list[tuple[Cell, Study]], watch: Watch) -> Iterator[Cell]:
        first = batch[0][1]
        study = replace(first, runs=[run for _, each in batch for run in each.runs])
        owner = [cell for cell, each in batch for _ in each.runs]
        rows: dict[str, list[Row]] = {cell.digest: [] for cell, _ in batch}
        over: set[int] = set()
        since = time.monotonic()
        for found in measure(study, self._device, watch):
            for r, row in zip(found.runs, found.rows, strict=True):
                rows[owner[r].digest].append(row)
            if self.progress and found.rows:
                self.progress.show(found.rows, [owner[r].digest for r in found.runs])
            over |= found.ended
            going = {owner[r].digest for r in range(len(owner)) if r not in over}
            done = [cell for cell, _ in batch if cell.digest in rows and cell.digest not in going]
            seconds = (time.monotonic() - since) / max(1, len(done))
            for cell in done:
                self._finish(cell, rows.pop(cell.digest), seconds)
                yield cell
            since = time.monotonic() if done else since

    def _finish(self, cell: Cell, rows: list[Row], seconds: float) -> None:
        table = ordered(rows, cell.config.algorithms)
        table.attrs[_ABOUT] = self._here(cell) | {"wall_seconds": seconds}
        self._found[cell.digest] = table
        if self.store is not None:
            path = self._path(cell)
            with self.timing.during("writing"):
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path, parquet(table))

    def _path(self, cell: Cell) -> Path:
        assert self.store is not None
        return self.store / f"{cell.digest}.parquet"

    def _kept(self, cell: Cell) -> Path | None:
        """Where a finished cell is kept, under its name or under the one that an earlier version gave it."""
        assert self.store is not None
        names = [name for name in (cell.digest, cell.former_digest) if name is not None]
        return next((path for name in names if (path := self.store / f"{name}.parquet").is_file()), None)

    @property
    def finished(self) -> list[Cell]:
        """The cells that need not be run."""
        return [cell for cell in self.cells if cell.digest in self._found]

    def metrics(self) -> pd.DataFrame:
        """The rows of all finished cells, the axes of the grid as the first columns."""
        tables = []
        for cell in self.finished:
            table = self._found[cell.digest].copy()
            table.attrs = {}
            for place, axis in enumerate(self.axes):
                table.insert(place, axis, [cell.point[axis]] * len(table))
            tables.append(table)
        empty = pd.DataFrame(columns=[*self.axes, *COLUMNS])
        return pd.concat(tables, ignore_index=True) if tables else empty

    def about(self) -> dict[str, Any]:
        """Provenance: device, versions, commit and seconds of the cells, whenever they were run; and their number."""
        known = [table.attrs[_ABOUT] for table in self._found.values() if _ABOUT in table.attrs]
        here = self._here(self.cells[0])
        return {key: _joined([about[key] for about in known if key in about] or [own]) for key, own in here.items()} | {
            "wall_seconds": sum(about["wall_seconds"] for about in known),
            "cells": len(self.cells),
            "finished": len(self.finished),
            "seeds": self.cells[0].config.seeds,
        }

    def _here(self, cell: Cell) -> dict[str, Any]:
        return provenance(self._device) | {
            "precision": choose_precision(cell.config.train.precision, self._device)[0],
        }


def without_repeats(metrics: pd.DataFrame, budget: Budget) -> pd.DataFrame:
    """Rows of runs up to where each spent its budget: version 0.1 repeated that one at every later evaluation."""
    spent = (metrics[budget.column] >= budget.value).astype(int)
    before = spent.groupby([metrics["algorithm"], metrics["seed"]]).cumsum() - spent
    kept = metrics[before == 0].reset_index(drop=True)
    kept.attrs = metrics.attrs
    return kept


def claim(folder: Path, content: Mapping[str, Any], *, overwrite: bool) -> None:
    """Take a folder for a grid: a new one, or one that holds the same grid and is gone on with.

    ``content`` says what the grid is, and is written to grid.json. Finished cells of another grid stay: each is named
    by what it computes.
    """
    path = folder / "grid.json"
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True, default=str) + "\n"
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError("out", str(folder), "a folder; there is a file of that name")
        if folder.is_dir() and any(folder.iterdir()):
            same = path.is_file() and path.read_text(encoding="utf-8") == text
            if not same and not overwrite:
                allowed = "a new folder, or one of the same grid, which is gone on with (or use --overwrite)"
                raise InputError("out", str(folder), allowed)
        folder.mkdir(parents=True, exist_ok=True)
        write(path, text.encode())
    except OSError as error:
        raise InputError("out", str(folder), f"a folder that can be written ({error})") from None


def _joined(told: Sequence[Any]) -> Any:
    """What all say, or what each of them says, one after the other; of versions, the last ones."""
    different = [value for n, value in enumerate(told) if value not in told[:n]]
    return different[-1] if len(different) == 1 or isinstance(different[-1], dict) else ", ".join(map(str, different))


def _read(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it, and the cell is run again") from error
    if list(table.columns) != list(COLUMNS):
        raise DataError(f"{path}: not the rows of a cell; delete it, and the cell is run again")
    return table


def _kind(study: Study) -> tuple[object, ...]:
    """Studies of one kind can be stacked."""
    model = study.model
    shape = (model.name, tuple(model.shapes.items()), model.loss, model.l2, model.input_shape, model.outputs)
    how = (type(study.rule), study.batch_size, study.every, study.points, tuple(study.at_delay), study.precision)
    return (*shape, *how, study.eval_samples, study.eval_clients)


def _batches(built: Sequence[tuple[Cell, Study]], device: str) -> Iterator[list[tuple[Cell, Study]]]:
    """Cells that run at once."""
    kinds: dict[object, list[tuple[Cell, Study]]] = {}
    for cell, study in built:
        kinds.setdefault(_kind(study), []).append((cell, study))
    for members in kinds.values():
        batch: list[tuple[Cell, Study]] = []
        spent = 0.0
        for cell, study in members:
            cost = _flop(study)
            if batch and spent + cost > _FLOP_AT_ONCE[device]:
                yield batch
                batch, spent = [], 0.0
            batch.append((cell, study))
            spent += cost
        yield batch


def _flop(study: Study) -> float:
    tests = len(study.runs[0].data.dataset.x_test)
    pixels = 1 if study.model.is_linear else 16  # a weight of a convolution is used at many places
    flop = 0.0
    for run in study.runs:
        need = run.need or study.iterations
        evaluations = study.evaluations(need)
        flop += (
            pixels * study.model.parameters * run.clients * (4.0 * need * study.batch_size + 2.0 * evaluations * tests)
        )
    return flop


def _length(batch: Sequence[tuple[Cell, Study]]) -> int:
    return max(study.longest for _, study in batch)
