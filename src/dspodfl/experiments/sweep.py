"""Grids of studies, run as stacked ones. What is finished is kept, cell by cell, and never run again.

All cells whose models, batches and iterations are of one kind advance together, as one study on the disjoint union of
their graphs; only as many at a time as take a minute or so, so that cells are finished on the way. Each such stack is a
`Session`: with a folder it saves checkpoints and is resumed from them, and several ranks may share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dspodfl.analysis import METRICS
from dspodfl.config import Cell
from dspodfl.engine import LocalTransport, Transport, choose_device, choose_precision
from dspodfl.experiments.batches import BatchRows, BuiltCell, CellBatch, FinishedRows, in_batches
from dspodfl.experiments.cell_store import ABOUT, CellStore
from dspodfl.experiments.grid_folder import FORMAT, GridFolder
from dspodfl.problem.data import Dataset
from dspodfl.study import (
    ADVICE,
    Plan,
    Progress,
    Session,
    SessionHooks,
    Stopwatch,
    agreed,
    build,
    choose_split,
    expected_seconds,
    free_memory,
    ordered,
    provenance,
    release_data,
    split_work,
)
from dspodfl.study.store import checkpoint, other_place


@dataclass(eq=False)
class Sweep:
    """Cells, and the store that keeps what is finished of them; without one, memory does.

    Several grids may share a store: what one has run, the others need not. Iterate over a sweep to run it; each cell is
    given when it is finished.

    Args:
        cells: What is run.
        axes: The names of what is varied.
        store: The folder of finished cells; rank 0 reads and writes it.
        device: auto, cpu or cuda.
        tick: Called after iterations, with how many are done, and of how many.
        on_plan: Called with the plan of waves.
        progress: What shows progress.
        folder: The folder of the grid, which has the checkpoints of what advances; None: there are none.
        stop: Called often; where it returns True, a checkpoint is saved and the sweep ends.
        team: The ranks that run it together; this process alone by default.
    """

    cells: Sequence[Cell]
    axes: Sequence[str]
    store: Path | None = None
    device: str = "auto"
    tick: Callable[[int, int], None] | None = None
    on_plan: Callable[[Plan], None] | None = None
    progress: Progress | None = None
    folder: GridFolder | None = None
    stop: Callable[[], bool] | None = None
    team: Transport = field(default_factory=LocalTransport)
    timing: Stopwatch = field(default_factory=Stopwatch)
    """What the time went into."""
    notes: list[str] = field(default_factory=list, init=False)
    """What a person should know of the checkpoint that it is resumed from, a line each."""
    stopped: bool = field(default=False, init=False)
    """Whether it was ended before its time."""
    _found: dict[str, pd.DataFrame] = field(default_factory=dict, init=False)
    _done: set[str] = field(default_factory=set, init=False)
    _batches: list[CellBatch] | None = field(default=None, init=False)
    _expected: float | None = field(default=None, init=False)  # seconds that all of it takes

    def __post_init__(self) -> None:
        self._device = choose_device(self.device)
        for cell in self.cells:
            choose_precision(cell.config.train.precision, self._device)
        self.store = self.store if self.team.rank == 0 else None
        agreed(self.team, self._read_store)
        self._done = self.team.broadcast(set(self._found))

    def _read_store(self) -> None:
        """Read the cells that are finished."""
        if self.store is not None:
            self._found |= CellStore(self.store).read(self.cells)

    def prepare(self) -> None:
        """Build what is not finished: what cannot be built is found out before anything runs."""
        with self.timing.during("building"):
            found = agreed(self.team, self._newest)
            path, advancing, notes = self.team.broadcast(found)
            for line in notes:
                self._note(line)
            self._batches = agreed(self.team, lambda: self._prepared(path, advancing))

    def _newest(self) -> tuple[Path | None, list[str], list[str]]:
        """Find the checkpoint to resume from, on rank 0."""
        if self.folder is None or self.team.rank != 0:
            return None, [], []
        return self.folder.newest({cell.digest for cell in self.cells}, self._done)

    def _note(self, line: str) -> None:
        self.notes.append(line)
        if self.progress:
            self.progress.say(line)

    def _prepared(self, path: Path | None, advancing: Sequence[str]) -> list[CellBatch]:
        """Build the cells that advance in a checkpoint, and those that are to be run after them."""
        known = {cell.digest: cell for cell in self.cells}
        left = [digest for digest in known if digest not in self._done or digest in advancing]
        library: dict[str, Dataset] = {}
        built: dict[str, BuiltCell] = {}
        for number, digest in enumerate(left):
            if self.progress:
                self.progress.stage(f"building cell {number + 1} of {len(left)}", number / len(left))
            built[digest] = known[digest], build(known[digest].config, library=library)[1]
        batches = [CellBatch.of([built[digest] for digest in advancing], path)] if path else []
        rest = [made for digest, made in built.items() if digest not in advancing]
        batches += [CellBatch.of(members) for members in in_batches(rest, self._device.type, self.team.ranks)]
        if self.progress and self.progress.mode != "off":
            self._expected = expected_seconds((study for _, study in built.values()), self._device)
        for batch in batches if self.team.ranks > 1 else ():
            choose_split(batch.cells[0].config.scale.split, batch.study.runs, self.team.ranks)
        return batches

    def __iter__(self) -> Iterator[Cell]:
        """Run what is not finished, and give each cell when it is."""
        if self._batches is None:
            self.prepare()
        batches, self._batches = self._batches or [], None
        show = None if self.progress is None or self.progress.mode == "off" else self.progress
        if show:
            show.forecast(self._expected, ADVICE)
        whole = sum(batch.study.longest for batch in batches)
        before = 0
        if show:
            show.start(whole, whole)
        self._label()
        while batches:
            batch = batches.pop(0)  # what has run is released

            def tick(iteration: int, done: int = before) -> None:
                here = min(done + iteration, whole)
                if self.tick:
                    self.tick(here, whole)
                if show:
                    show.update(here, here)

            for cell in self._run(batch, tick):
                self._label()
                yield cell
            if self.stopped:
                return
            before += batch.study.longest

    def _label(self) -> None:
        if self.progress:
            self.progress.label(f"{len(self.finished)} of {len(self.cells)} cells finished")

    def _planned(self, plan: Plan) -> None:
        """Hand the plan on, and say where memory made the waves smaller."""
        if self.on_plan:
            self.on_plan(plan)
        if self.progress and plan.halvings:
            sizes = ", ".join(str(len(wave)) for wave in plan.left)
            self.progress.say(f"out of memory: continuing with smaller waves (runs: {sizes})")

    def _run(self, batch: CellBatch, tick: Callable[[int], None]) -> Iterator[Cell]:
        """Run the session of cells that advance together; each is kept once its runs have ended."""
        session, rows = self._session(batch, tick), BatchRows(batch, self._done, self._finish)
        session.hooks.on_rows = rows.add
        for _ in session:
            yield from rows.finished()
        yield from rows.finished()
        if session.stopped and not self.team.broadcast(session.complete):
            self.stopped = True
            return
        self._done |= set(batch.digests)
        if self.folder is not None and self.team.rank == 0:
            self.folder.discard()

    def _session(self, batch: CellBatch, tick: Callable[[int], None]) -> Session:
        """Make the session of cells that advance together, or resume it from its checkpoint."""
        table, scale = batch.cells[0].config.checkpoint, batch.cells[0].config.scale
        team = self.team
        free = free_memory(self._device) // (team.local_ranks if self._device.type == "cpu" else 1)
        work_split = split_work(scale.split, batch.study, team, free)
        batch.study = release_data(batch.study, work_split)
        session = Session(batch.study, self._device, work_split, SessionHooks(self._planned, tick), self.timing)
        session.keep_models = False
        owners, show = batch.owners, self.progress
        if show is not None and show.mode != "off":
            session.hooks.on_batch = lambda share: show.stage("evaluating", share)
        if show is not None:
            session.hooks.on_measured = lambda found: show.show(found.rows, [owners[r].digest for r in found.runs])
        writer = self.folder if team.rank == 0 else None
        if writer is not None:
            writer.when(table.every_iterations, table.every_minutes, table.keep)
        start = agreed(team, lambda: None if batch.start is None else checkpoint.load(batch.start))
        if start is not None:
            here = session.provenance | {"precision": session.precision, "ranks": team.ranks}
            self._note(f"resuming {len(batch.cells)} cells from their checkpoint of iteration {start.iteration:,}")
            for line in other_place(start.about, here):
                self._note(line)
        agreed(team, lambda: session.attach(writer, self.stop, start, cells=batch.digests))
        return session

    def _finish(self, done: FinishedRows, seconds: float) -> None:
        """Keep the rows of cells that have ended together."""
        tables = {}
        for digest, (cell, rows) in done.items():
            table = ordered(rows, cell.config.labels)
            table.attrs[ABOUT] = self._here(cell) | {
                "kind": "cell",
                "format": FORMAT,
                "digest": digest,
                "config": cell.config.model_dump(mode="json"),
                "wall_seconds": seconds,
            }
            tables[digest] = table
        if self.store is not None and tables:
            with self.timing.during("writing"):
                CellStore(self.store).write(tables, len(self.finished))
        self._found |= tables
        self._done |= tables.keys()

    @property
    def finished(self) -> list[Cell]:
        """The cells that need not be run."""
        return [cell for cell in self.cells if cell.digest in self._done]

    def metrics(self) -> pd.DataFrame:
        """Return the rows of all finished cells, the axes of the grid as the first columns."""
        tables = []
        for cell in self.finished:
            table = self._found[cell.digest].copy()
            table.attrs = {}
            for place, axis in enumerate(self.axes):
                table.insert(place, axis, [cell.point[axis]] * len(table))
            tables.append(table)
        empty = pd.DataFrame(columns=[*self.axes, *METRICS])
        return pd.concat(tables, ignore_index=True) if tables else empty

    def about(self) -> dict[str, Any]:
        """Return the provenance of the cells, whenever they were run: device, versions, commit, seconds, numbers."""
        known = [table.attrs[ABOUT] for table in self._found.values() if ABOUT in table.attrs]
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


def _joined(values: Sequence[Any]) -> Any:
    """The value that all have, or all that differ, one after the other; of versions, the last ones."""
    different = [value for n, value in enumerate(values) if value not in values[:n]]
    return different[-1] if len(different) == 1 or isinstance(different[-1], dict) else ", ".join(map(str, different))
