"""Resuming a run that was interrupted or died: from its folder alone, and with its own configuration alone."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspodfl.config import FREE, Config, label_of
from dspodfl.errors import DataError, InputError
from dspodfl.study.result_reader import read_summary
from dspodfl.study.store import metrics_log
from dspodfl.study.store.checkpoint import FOLDER, Checkpoint, CheckpointStore
from dspodfl.study.store.files import UNCOMMITTED
from dspodfl.study.store.folder import Folder
from dspodfl.study.store.folder_reader import has_metrics_log
from dspodfl.study.store.layout import COMPLETE, INTERRUPTED, METRICS_LOGS, NODES
from dspodfl.study.store.manifest import DamagedError, Manifest
from dspodfl.study.store.run_folder import CONFIG

SUMMARY = "summary.json"
_RESULTS = (SUMMARY, "metrics.parquet", "events.npz")


@dataclass(frozen=True, eq=False)
class Unfinished:
    """What the folder of an unfinished run holds.

    Attributes:
        folder: The folder.
        start: The newest checkpoint that is not damaged; without one the run starts from the beginning.
        before: The configuration that the run was started with.
        options: The options that the run was started with.
        notes: Lines for the user: damaged checkpoints that were skipped, damaged lines of the log of metrics.
    """

    folder: Path
    start: Checkpoint | None
    before: Mapping[str, Any]
    options: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def read(folder: Path) -> Unfinished:
        """Read the folder of a run that is to be resumed; no file in it is changed.

        A run is started from the beginning only where nothing but rows was written, which are kept.

        Args:
            folder: The folder.

        Returns:
            What it holds.

        Raises:
            DataError: It is not the folder of a run, its results are damaged, or it cannot be resumed without loss.
        """
        manifest = Folder(folder).manifest()
        if manifest is not None and manifest.kind != "run":
            raise DataError(f"{folder}: not the folder of a run, but of kind {manifest.kind!r}")
        _refuse_collected(folder, manifest)
        start, notes = CheckpointStore(folder).newest()
        if start is not None:
            where = f"resuming from the one of iteration {start.iteration:,} instead"
            notes = [f"{line}; {where}" for line in notes]
            before, options = start.about["config"], start.about["options"]
        elif manifest is not None:
            _check_none_is_lost(folder, manifest)
            before, options = _started_with(folder, manifest)
        else:
            before, options = _started_with_0_1(folder)
        notes += [] if start else ["no checkpoint was written yet: starting from the beginning"]
        return Unfinished(folder, start, before, options, notes + _damage(folder, manifest))

    def check(self, config: Config) -> None:
        """Refuse to resume with another configuration.

        Args:
            config: The configuration that was given now.

        Raises:
            InputError: It differs; it names the first key.
        """
        compare(self.folder, self.before, json.loads(config.model_dump_json()))

    def elsewhere(self, about: Mapping[str, Any]) -> list[str]:
        """Compare device, precision, ranks and versions with those of the checkpoint, as `other_place`.

        Args:
            about: Those of this process.

        Returns:
            One line where they differ, else none.
        """
        return [] if self.start is None else other_place(self.start.about, about)


def _refuse_collected(folder: Path, manifest: Manifest | None) -> None:
    """Refuse a run that was collected from nodes: they resume it, and it is collected again."""
    if manifest is not None and manifest.about.get("source") == NODES:
        why = "the nodes resume their run; collect it again with: dspodfl nodes collect"
        raise DataError(f"{folder}: collected from nodes, and cannot be resumed here: {why}")


def other_place(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Compare device, precision, ranks and versions with those of a checkpoint.

    Args:
        before: What the checkpoint says.
        now: Those of this process.

    Returns:
        One line where they differ, else none.
    """
    was, is_ = (
        {"device": a["device"].split(" (")[0], "precision": a["precision"], "ranks": a.get("ranks", 1)}
        | {name: a["versions"].get(name) for name in ("dspodfl", "torch", "numpy", "numba", "triton")}
        for a in (before, now)
    )
    other = [f"{key} {was[key]}, here {is_[key]}" for key in was if was[key] != is_[key]]
    line = "the checkpoint is of another place ({}): events are the same, models to rounding"
    return [line.format("; ".join(other))] if other else []


def _check_none_is_lost(folder: Path, manifest: Manifest) -> None:
    """Refuse to start from the beginning where there are results, or were checkpoints."""
    how = f"it cannot be resumed; what was measured is shown by: dspodfl show {folder}"
    again = f"start it again in a new folder with: dspodfl run {folder / CONFIG} --out NEW"
    uncommitted = any((folder / FOLDER).glob(f"{UNCOMMITTED}*"))  # the process was killed when it wrote its first
    results = any(name in manifest.files for name in _RESULTS) and not has_metrics_log(folder, manifest)
    if manifest.state == INTERRUPTED or results:
        raise DataError(f"{folder}: has results of a run, but its checkpoints are gone: {how}; {again}")
    if manifest.checkpoints and not uncommitted:
        raise DataError(f"{folder}: its checkpoints are gone: {how}; {again}")


def _started_with(folder: Path, manifest: Manifest) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Configuration and options of a run that has no checkpoint, from its manifest."""
    try:
        raw, options = tomllib.loads(manifest.about["config"]), dict(manifest.about["options"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: its manifest does not say what the run was started with ({error})") from None
    found = metrics_log.header(metrics_log.path_in(folder))
    if found is not None and found.get("id", "") == manifest.id and "config" in found:
        return found["config"], options
    algorithms = raw.pop("algorithms", [])
    known = _config(raw, algorithms).model_dump(mode="json")
    return known | {"algorithms": algorithms}, options


def _started_with_0_1(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Configuration and options of a run of version 0.1 that has no checkpoint, from its log of metrics."""
    found = metrics_log.header(metrics_log.path_in(folder))
    try:
        if found is not None:
            return found["config"], found["options"]
    except KeyError:
        raise DataError(f"{folder}: {metrics_log.path_in(folder).name} is damaged; the run cannot be resumed") from None
    there = [name for name in (*_RESULTS, *METRICS_LOGS) if (folder / name).exists()]
    if there:
        why = f"has {there[0]}, but no checkpoint and no sound {metrics_log.path_in(folder).name}"
        raise DataError(f"{folder}: {why}: it cannot be resumed, and stays as it is")
    if (folder / CONFIG).is_file():
        raise DataError(f"{folder}: not the folder of a run ({CONFIG} is in it, and nothing that a run has measured)")
    raise DataError(f"{folder}: not the folder of a run (no {CONFIG} in it)")


def _damage(folder: Path, manifest: Manifest | None) -> list[str]:
    """What is damaged in the log of metrics: those rows are measured again, or are in the checkpoint."""
    path = metrics_log.path_in(folder)
    if not path.is_file() or (manifest is not None and not has_metrics_log(folder, manifest)):
        return []
    try:
        return [f"{folder}: {damage}" for damage in metrics_log.read(path).damage]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{folder}: {path.name} is damaged ({error}): what it had is measured again"]


def compare(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a configuration that differs from the one that a run was started with.

    Tables that do not change the results may differ.

    Args:
        folder: The folder of the run.
        before: The configuration of the run.
        now: The configuration that was given now.

    Raises:
        InputError: They differ; it names the first key.
    """
    found = _difference(before, now)
    if found:
        key, was, is_ = found
        raise InputError(key, is_, f"{was!r}, as when the run in {folder} began; a changed study is a new run")


def compare_complete(folder: Path, config: Config, brought: Iterable[str] = (), own: Iterable[str] = ()) -> None:
    """Refuse a configuration that differs from that of a complete run.

    Args:
        folder: The folder of the run.
        config: The configuration that was given now.
        brought: Tables that were given from Python, and are not compared.
        own: The labels of algorithms that were given from Python.

    Raises:
        InputError: They differ; it names the first key.
    """
    before = config_of(folder, own).model_dump(mode="json")
    now = json.loads(config.model_dump_json())
    if "count" not in config.clients.model_fields_set:  # it is that of the data or the graph
        now["clients"] = before["clients"]
    if own and "algorithms" not in config.model_fields_set:
        now["algorithms"] = before["algorithms"]
    compare(folder, before, now | {table: before[table] for table in brought})


def begun(folder: Path) -> bool:
    """Return whether a folder holds a file of a run.

    Args:
        folder: The folder.

    Returns:
        True also where its manifest is damaged.
    """
    try:
        manifest = Folder(folder).manifest()
        return manifest is not None or metrics_log.path_in(folder).exists() or (folder / SUMMARY).exists()
    except (DataError, OSError):
        return True


def complete(folder: Path) -> bool:
    """Return whether a folder that is to be resumed holds a complete run.

    Args:
        folder: The folder.

    Returns:
        False where something of the run is left to do, or there is none.

    Raises:
        DataError: Its manifest or, of version 0.1, its summary is damaged; or it was collected from nodes.
    """
    files = Folder(folder)
    manifest = files.manifest()
    _refuse_collected(folder, manifest)
    if manifest is not None:
        return manifest.kind == "run" and manifest.state == COMPLETE
    try:
        if metrics_log.path_in(folder).exists() or not (folder / SUMMARY).exists():
            return False
        return bool(read_summary(files)["study"]["complete"])
    except (OSError, DamagedError) as error:
        if CheckpointStore(folder).committed():  # it was interrupted, and can be resumed from its checkpoint
            return False
        raise DataError(f"{folder}: {str(error).removeprefix(f'{folder}: ')}: the run is left as it is") from None


def config_of(folder: Path, own: Iterable[str] = ()) -> Config:
    """Read the configuration in the folder of a run.

    Args:
        folder: The folder.
        own: The labels of algorithms that were given from Python; they are left out.

    Returns:
        The configuration.

    Raises:
        DataError: There is none, or it is damaged.
    """
    if not (folder / CONFIG).is_file():
        raise DataError(f"{folder}: not the folder of a run (no {CONFIG} in it)")
    try:
        raw = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
        named = [given for given in raw.pop("algorithms") if label_of(given) not in set(own)]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}: {CONFIG} is damaged ({error})") from error
    return _config(raw, named)


def _config(raw: dict[str, Any], algorithms: list[Any]) -> Config:
    return Config(**raw, **({"algorithms": algorithms} if algorithms else {}))


def _difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first key, its former and its present value where two tables differ.

    A key that an earlier version did not write, and that is switched off now, is the same.
    """
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return None if one == other else (path, one, other)
    for key in [*one, *(key for key in other if key not in one and other[key] is not False)]:
        inner = f"{path}.{key}" if path else key
        found = None if inner in FREE else _difference(one.get(key), other.get(key), inner)
        if found:
            return found
    return None
