"""Flip bits of every file of every kind of folder: each flip is found, and named, or changes nothing that is read."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.attack import Tally, thinned

FLIPS = 120
"""Bits of each file: the first and the last ones, and others at random."""


@dataclass(frozen=True)
class Kind:
    """A kind of folder."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path, str], object]
    """Reads a file as the program does; raises, or gives other notes, where it is damaged."""


def _config(**changes: Any) -> Any:
    from dspodfl import Config

    tiny: dict[str, Any] = {
        "seeds": 1,
        "algorithms": ["dspodfl", "dgd"],
        "clients": {"count": 4},
        "graph": {"kind": "ring"},
        "data": {"name": "synthetic", "samples": 60, "test_samples": 20, "features": 3, "classes": 4},
        "train": {"iterations": 8, "batch_size": 2},
        "eval": {"every": 2},
        "checkpoint": {"every_iterations": 3},
    }
    return Config(**tiny | changes)


def _complete(folder: Path) -> None:
    from dspodfl import run

    run(_config(), out=folder, record_events=True)


def _interrupted(folder: Path) -> None:
    from dspodfl import run

    run(_config(), out=folder, record_events=True, callbacks=[lambda update: update.iteration == 4])


def _died(folder: Path) -> None:
    """As a process leaves it that was killed."""
    from dspodfl import Simulation
    from dspodfl.study.store.run_folder import RunFolder

    with RunFolder(folder, {"models": True}) as run_folder:
        simulation = Simulation(_config())
        simulation.open(run_folder, lambda: False)
        for update in simulation:
            if update.iteration == 6:
                break


def _claimed(folder: Path) -> None:
    """As a process leaves it that was killed before anything was measured."""
    from dspodfl.config import dumps
    from dspodfl.study.store.folder import Folder
    from dspodfl.study.store.layout import CLAIMED

    text = dumps(_config().model_dump())
    folder.mkdir()
    with Folder(folder).change(state=CLAIMED, id="1", about={"config": text, "options": {}}) as change:
        change.write("config.toml", text.encode())


def _swept(folder: Path) -> None:
    from dspodfl.config.grid import Axis, cells
    from dspodfl.experiments.definition import Experiment
    from dspodfl.experiments.grid_folder import GridFolder
    from dspodfl.experiments.result import Outcome
    from dspodfl.experiments.sweep import Sweep

    axis = "train.batch_size"
    base = _config().model_dump(exclude_unset=True)
    grid = cells(base, [Axis.of(axis, [1, 2])])
    over = [{"name": axis, "values": [1, 2]}]
    about = {"title": "a", "paper": "", "kind": "sweep", "dataset": "synthetic", "claim": "", "base": base}
    experiment = Experiment(name="a", seeds=1, over=over, **about)
    content = {"name": "a", "axes": [axis], "read": {}, "cells": {cell.digest: dict(cell.point) for cell in grid}}
    with GridFolder(folder) as files:
        files.claim(content, overwrite=False)
    sweep = Sweep(grid, [axis], folder / "cells")
    list(sweep)
    Outcome.of(experiment, grid, sweep.metrics(), sweep.about()).save(folder)


def _theory(folder: Path) -> None:
    import pandas as pd

    from dspodfl.theory.assess import write_folder

    table = pd.DataFrame({"algorithm": ["dgd"], "rate": [0.5]})
    write_folder(folder, "theory bound", {"guaranteed": True}, {"table.csv": table, "curves.csv": table}, None)


def _read_run(folder: Path, name: str) -> object:
    """A run that is complete, or was interrupted."""
    from dspodfl import Result
    from dspodfl.study.store.checkpoint import load
    from dspodfl.study.store.folder import Folder

    if name.startswith("checkpoints/"):
        return load((folder / name).parent).iteration
    if name.endswith((".png", ".svg")):
        return len(Folder(folder).read(name))
    return Result.load(folder).notes


def _read_died(folder: Path, name: str) -> object:
    from dspodfl import Result

    if name.startswith("checkpoints/"):
        return _read_run(folder, name)
    found = Result.load(folder)
    return found.notes, found.metrics.to_csv()


def _read_claimed(folder: Path, name: str) -> object:
    """What it would be resumed with."""
    from dspodfl.study.store.folder import Folder
    from dspodfl.study.store.resume import Unfinished

    return Unfinished.read(folder).before, Folder(folder).read(name)


def _read_sweep(folder: Path, name: str) -> object:
    from dspodfl.experiments.result import Outcome
    from dspodfl.study.store.folder import Folder

    if name.startswith("cells/"):
        return len(Folder(folder / "cells", "cells").read(Path(name).name))
    if name in ("figure.png", "figure.svg", "grid.json"):
        return len(Folder(folder, "experiment").read(name))
    return Outcome.load(folder).name


def _read_theory(folder: Path, name: str) -> object:
    from dspodfl.study.store.folder import Folder

    return len(Folder(folder, "theory").read(name))


KINDS = (
    Kind("a complete run", _complete, _read_run),
    Kind("an interrupted run", _interrupted, _read_run),
    Kind("a run that was killed", _died, _read_died),
    Kind("a folder that was just claimed", _claimed, _read_claimed),
    Kind("a sweep and its cells", _swept, _read_sweep),
    Kind("a folder of the theory", _theory, _read_theory),
)


def attack(every: int = 1) -> Iterator[Tally]:
    """Flip bits, one at a time."""
    import torch

    torch.set_num_threads(1)
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="dspodfl-attack-") as place:
            folder = Path(place) / "out"
            kind.make(folder)
            tally = Tally("flips", kind.name)
            cases = [(path, bit) for path in sorted(folder.rglob("*")) if path.is_file() for bit in _bits(path)]
            for path, bit in thinned(cases, every):
                tally.count(_try(kind, folder, path, bit))
            yield tally


def _bits(path: Path) -> list[int]:
    size = 8 * path.stat().st_size
    ends = [*range(min(size, 16)), *range(max(0, size - 16), size)]
    return sorted({*ends, *random.Random(path.name).sample(range(size), min(size, FLIPS - len(ends)))})


def _try(kind: Kind, folder: Path, path: Path, bit: int) -> str | None:
    from dspodfl.errors import ConfigError, DataError, InputError
    from dspodfl.ui.cli.verify import verify

    name = path.relative_to(folder).as_posix()
    whole = _reading(kind, folder, name)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(flipped))
    try:
        damage = [line for found in verify(folder) for line in found.damage]
        try:
            read = _reading(kind, folder, name)
        except (DataError, InputError, ConfigError):
            read = None
    except Exception as error:
        return f"bit {bit} of {name}: {type(error).__name__}: {error}"
    finally:
        path.write_bytes(content)
    if damage and (read is None or read != whole):
        parts = {path.name, path.parent.name} if path.parent != folder else {path.name}
        return None if any(part in line for line in damage for part in parts) else f"bit {bit} of {name}: not named"
    if not damage and read == whole and name == "metrics.jsonl":
        return None  # the line break of the last line, which says nothing
    return f"bit {bit} of {name}: verify says {damage}, and it is read as {'whole' if read == whole else 'other'}"


def _reading(kind: Kind, folder: Path, name: str) -> object:
    return kind.read(folder, name)
