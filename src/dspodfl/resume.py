"""Going on with a run that was interrupted or died: from its folder alone, and under its own configuration alone."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspodfl import journal
from dspodfl.checkpoint import Checkpoint, Store
from dspodfl.config import FREE, Config
from dspodfl.errors import DataError, InputError
from dspodfl.journal import JOURNAL

CONFIG, SUMMARY = "config.toml", "summary.json"


@dataclass(frozen=True, eq=False)
class Unfinished:
    """What the folder of an unfinished run holds."""

    folder: Path
    start: Checkpoint | None
    """The newest whole checkpoint; without one the run begins anew."""
    before: Mapping[str, Any]
    """The configuration that the run began with."""
    options: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    """What a person should know: damaged checkpoints that were passed over, other versions."""

    @staticmethod
    def read(folder: Path) -> Unfinished:
        """Look through the folder of a run; one that holds no run is an error."""
        start, notes = Store(folder).newest()
        if start is not None:
            where = f"going on from the one of iteration {start.iteration:,} instead"
            notes = [f"{line}; {where}" for line in notes]
            return Unfinished(folder, start, start.about["config"], start.about["options"], notes)
        try:
            header = journal.read(folder / JOURNAL).header
            before, options = header["config"], header["options"]
        except (OSError, ValueError, KeyError):
            before, options = config_of(folder).model_dump(mode="json"), {}
        return Unfinished(folder, None, before, options, ["no checkpoint was written yet: beginning anew"])

    def check(self, config: Config) -> None:
        """Refuse to go on under another configuration, and name the first key that differs."""
        found = _difference(self.before, json.loads(config.model_dump_json()))
        if found:
            key, was, is_ = found
            raise InputError(key, is_, f"{was!r}, as when the run in {self.folder} began; a changed study is a new run")

    def elsewhere(self, about: Mapping[str, Any]) -> list[str]:
        """A line where device, precision or versions are others than those of the checkpoint."""
        if self.start is None:
            return []
        was, is_ = (
            {"device": a["device"].split(" (")[0], "precision": a["precision"], "ranks": a.get("ranks", 1)}
            | {name: a["versions"].get(name) for name in ("dspodfl", "torch", "numpy", "numba", "triton")}
            for a in (self.start.about, about)
        )
        other = [f"{key} {was[key]}, here {is_[key]}" for key in was if was[key] != is_[key]]
        line = "the checkpoint is of another place ({}): events are the same, models to rounding"
        return [line.format("; ".join(other))] if other else []


def begun(folder: Path) -> bool:
    """Whether a folder holds anything of a run."""
    return (folder / JOURNAL).exists() or (folder / SUMMARY).exists()


def complete(folder: Path) -> bool:
    """Whether a folder holds a run with nothing left to do."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return bool(summary["study"]["complete"]) and not (folder / JOURNAL).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def config_of(folder: Path, own: Iterable[str] = ()) -> Config:
    """The configuration in the folder of a run, without the algorithms that were brought in Python."""
    try:
        raw = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
        named = [name for name in raw.pop("algorithms") if name not in set(own)]
    except FileNotFoundError:
        raise DataError(f"{folder}: not the folder of a run (no {CONFIG} in it)") from None
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}: {CONFIG} is damaged ({error})") from error
    return Config(**raw, **({"algorithms": named} if named else {}))


def _difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first key, its former and its present value where two tables differ."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return None if one == other else (path, one, other)
    for key in [*one, *(key for key in other if key not in one)]:
        inner = f"{path}.{key}" if path else key
        found = None if inner in FREE else _difference(one.get(key), other.get(key), inner)
        if found:
            return found
    return None
