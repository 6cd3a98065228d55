"""Grids of studies, run as stacked ones. What is finished is kept, cell by cell, and never run again.

All cells whose models, batches and iterations are of one kind advance together, as one study on the disjoint union of
their graphs; only so many at a time as take a minute or so, because what is interrupted begins anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from dspodfl.analysis import METRICS, MetricsRow
from dspodfl.config import Cell
from dspodfl.engine import choose_device, choose_precision
from dspodfl.errors import DataError, InputError, bounded
from dspodfl.network import Budget
from dspodfl.problem.data import Dataset
from dspodfl.study import (
    ADVICE,
    Hooks,
    Plan,
    Progress,
    Stopwatch,
    Study,
    build,
    expected_seconds,
    measure,
    ordered,
    parquet,
    provenance,
    read_parquet,
)
from dspodfl.study.store import COMPLETE, UNFINISHED, DamagedError, Folder, Manifest, abandoned
from dspodfl.study.store import claim as claim_folder

_FLOP_AT_ONCE = {"cpu": 1e13, "cuda": 5e15}
"""What is run at once takes a minute or so."""
_ABOUT = "about"
"""Under this name a cell's table knows what it is, where it was computed, and in how many seconds."""
FORMAT = 1
"""Of grid.json and of the tables of cells."""
GRID = "grid.json"
OUTCOME = ("metrics.parquet", "table.csv", "figure.png", "figure.svg", "result.json")
"""What a finished grid writes."""


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
            _clean(Folder(self.store, "cells"))
            for cell in self.cells:
                name = self._kept(cell)
                if name is not None:
                    table = _read(Folder(self.store, "cells"), name, cell)
                    self._found[cell.digest] = without_repeats(table, cell.config.train.budget)

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

            watch = Hooks(tick=tick, plan=self._planned, timing=self.timing)
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
            self.progress.say(f"out of memory: continuing with smaller waves (runs: {sizes})")

    def _unique(self) -> list[Cell]:
        return list({cell.digest: cell for cell in self.cells}.values())

    def _run(self, batch: list[tuple[Cell, Study]], watch: Hooks) -> Iterator[Cell]:
        first = batch[0][1]
        study = replace(first, runs=[run for _, each in batch for run in each.runs])
        owner = [cell for cell, each in batch for _ in each.runs]
        rows: dict[str, list[MetricsRow]] = {cell.digest: [] for cell, _ in batch}
        over: set[int] = set()
        going = {cell.digest: len(each.runs) for cell, each in batch}
        since = time.monotonic()
        for found in measure(study, self._device, watch):
            for r, row in zip(found.runs, found.rows, strict=True):
                rows[owner[r].digest].append(row)
            if self.progress and found.rows:
                self.progress.show(found.rows, [owner[r].digest for r in found.runs])
            new = found.ended - over
            over |= new
            for r in new:
                going[owner[r].digest] -= 1
            done = [cell for cell, _ in batch if cell.digest in rows and not going[cell.digest]] if new else []
            seconds = (time.monotonic() - since) / max(1, len(done))
            self._finish({cell.digest: (cell, rows.pop(cell.digest)) for cell in done}, seconds)
            yield from done
            since = time.monotonic() if done else since

    def _finish(self, done: Mapping[str, tuple[Cell, list[MetricsRow]]], seconds: float) -> None:
        """Keep the rows of cells that have ended together."""
        tables = {}
        for digest, (cell, rows) in done.items():
            table = ordered(rows, cell.config.algorithms)
            table.attrs[_ABOUT] = self._here(cell) | {
                "kind": "cell",
                "format": FORMAT,
                "digest": digest,
                "config": cell.config.model_dump(mode="json"),
                "wall_seconds": seconds,
            }
            tables[digest] = table
        if self.store is not None and tables:
            try:
                self.store.mkdir(parents=True, exist_ok=True)
                folder = Folder(self.store, "cells")
                with self.timing.during("writing"), folder.change(state=COMPLETE) as change:
                    for digest, table in tables.items():
                        change.write(f"{digest}.parquet", parquet(table))
            except OSError as error:
                kept = f"the {len(self.finished)} cells that were finished before are kept"
                raise DataError(f"{self.store}: a finished cell could not be written ({error}); {kept}") from error
        self._found |= tables

    def _path(self, cell: Cell) -> Path:
        assert self.store is not None
        return self.store / f"{cell.digest}.parquet"

    def _kept(self, cell: Cell) -> str | None:
        """The file of a finished cell, under its name or under the one that an earlier version gave it."""
        assert self.store is not None
        names = [f"{name}.parquet" for name in (cell.digest, cell.former_digest) if name is not None]
        return next((name for name in names if (self.store / name).is_file()), None)

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
        empty = pd.DataFrame(columns=[*self.axes, *METRICS])
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


def claim(
    folder: Path, content: Mapping[str, Any], *, overwrite: bool, former: Mapping[str, str] | None = None
) -> None:
    """Take a folder for a grid: a new one, or one that holds the same grid and is resumed.

    Args:
        folder: where the grid is to be written.
        content: what the grid is; it is written to grid.json. Finished cells of another grid stay: each is named by
            what it computes.
        overwrite: whether another grid may take the place of the one that is there; its files stay until then.
        former: the names that version 0.1 gave the cells, and their present ones.
    """
    record = json.loads(json.dumps(content, default=str))
    files = Folder(folder, "experiment")
    claim_folder(folder, overwrite=True, names=(GRID, *OUTCOME), kind="experiment")
    try:
        manifest = files.manifest() if folder.is_dir() else None
        same = folder.is_dir() and _grid(files, manifest, former or {}) == record
        begun = manifest is not None and manifest.kind == "experiment" and not manifest.files
        new = not folder.is_dir() or not any(folder.iterdir()) or abandoned(folder) or begun
        if not new and not same and not overwrite:
            allowed = "a new folder, or one of the same grid, which is resumed (or use --overwrite)"
            raise InputError("out", str(folder), allowed)
        folder.mkdir(parents=True, exist_ok=True)
        with files.locked():
            files.clean()
        if same and manifest is not None:
            return
        text = json.dumps({"kind": "grid", "format": FORMAT, **record}, indent=2, ensure_ascii=False, sort_keys=True)
        with files.change(state=UNFINISHED) as change:
            change.write(GRID, (text + "\n").encode())
    except OSError as error:
        raise InputError("out", str(folder), f"a folder that can be written ({error})") from None


def _clean(files: Folder) -> None:
    """Delete what processes have left that have ended, where that is possible."""
    with suppress(OSError, DataError):
        if files.path.is_dir():
            with files.locked(0):
                files.clean()


def _grid(files: Folder, manifest: Manifest | None, former: Mapping[str, str]) -> Any:
    """What the grid in a folder is, cells by their present names; None where there is none, or it is damaged."""
    try:
        if manifest is not None and manifest.kind != "experiment":
            return None
        found = bounded.parse_json(files.read(GRID, bounded.JSON))
    except (DataError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("kind", "grid") != "grid":
        return None
    grid = {key: value for key, value in found.items() if key not in ("kind", "format")}
    if isinstance(grid.get("cells"), dict):
        grid["cells"] = {former.get(name, name): point for name, point in grid["cells"].items()}
    return grid


def _joined(told: Sequence[Any]) -> Any:
    """What all say, or what each of them says, one after the other; of versions, the last ones."""
    different = [value for n, value in enumerate(told) if value not in told[:n]]
    return different[-1] if len(different) == 1 or isinstance(different[-1], dict) else ", ".join(map(str, different))


def _read(store: Folder, name: str, cell: Cell) -> pd.DataFrame:
    """The rows of a finished cell, which are what was written; an earlier version may have named it otherwise."""
    path = store.path / name
    try:
        table = read_parquet(store.read(name))
    except DamagedError as error:
        raise DataError(f"{error}; delete it, and the cell is run again") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it, and the cell is run again") from error
    about = table.attrs.get(_ABOUT, {})
    if list(table.columns) != list(METRICS) or about.get("kind", "cell") != "cell":
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
