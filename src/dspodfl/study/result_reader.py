"""Reading a result from its folder: every file compared with its checksum, and checked for what it says."""

from __future__ import annotations

import io
import tomllib
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import safetensors.torch
from torch import Tensor

from dspodfl.analysis import METRICS, complete, from_config, summarize
from dspodfl.config import labels_of
from dspodfl.errors import DataError, bounded
from dspodfl.study.result import FORMAT, KIND, Result
from dspodfl.study.store import events_file, metrics_log
from dspodfl.study.store.files import safetensors_about
from dspodfl.study.store.folder_reader import FolderReader, has_metrics_log
from dspodfl.study.store.layout import COMPLETE
from dspodfl.study.store.manifest import DamagedError, Manifest
from dspodfl.study.store.schemas import check_format, check_summary
from dspodfl.study.tables import Key, ordered, progress, read_parquet

_MODELS = "*-seed*.safetensors"
_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error),
    safetensors.SafetensorError,
)


def load(folder: Path) -> Result:
    """Read a result, as `Result.load`.

    Args:
        folder: The folder of a run.

    Returns:
        The result.

    Raises:
        DataError: It is not the folder of a run, no row was written yet, or a file (it is named) is missing or damaged.
    """
    files = FolderReader(folder)
    manifest = files.manifest()
    unfinished = _is_unfinished(folder, manifest)
    try:
        settings = _read_settings(files)
        config_toml = read_config(files)
        notes: list[str] = []
        if unfinished:
            metrics, summary, notes = _read_log(metrics_log.path_in(folder), tomllib.loads(config_toml))
        else:
            metrics = complete(read_parquet(files.read("metrics.parquet")))
            summary = read_summary(files)
        result = Result(
            metrics,
            read_parquet(files.read("clients.parquet")),
            settings,
            summary,
            config_toml,
            dict(_load_models(files, manifest)),
            events_file.read(files),
            notes=notes,
        )
        _check(result)
    except _UNREADABLE as error:
        raise DataError(f"{folder}: a file of this run is damaged ({error})") from error
    return result


def _read_settings(files: FolderReader) -> dict[int, dict[str, np.ndarray]]:
    settings: dict[int, dict[str, np.ndarray]] = {}
    with np.load(io.BytesIO(files.read("setting.npz")), allow_pickle=False) as archive:
        for name in archive.files:
            seed, _, key = name.partition("/")
            settings.setdefault(int(seed), {})[key] = archive[name]
    return settings


def _check(result: Result) -> None:
    """Refuse tables that are no result's."""
    lost = [name for name in METRICS if name not in result.metrics]
    if lost:
        raise ValueError(f"metrics.parquet has no column {lost[0]}")
    wrong = [name for name in METRICS[1:] if result.metrics[name].dtype.kind not in "iufb"]
    if wrong:
        raise ValueError(f"metrics.parquet: {wrong[0]} has no numbers")
    if not result.settings or any({"edges", "d", "b"} - arrays.keys() for arrays in result.settings.values()):
        raise ValueError("setting.npz lacks the graph or the rates of a seed")
    config = result.config
    if {"data", "model", "clients", "seeds"} - config.keys():
        raise ValueError("config.toml lacks a table")
    tables = all(isinstance(config[name], dict) for name in ("data", "model", "clients"))
    if not tables or not {"name"} <= config["data"].keys() or not {"count"} <= config["clients"].keys():
        raise ValueError("config.toml is not a resolved configuration")


def _is_unfinished(folder: Path, manifest: Manifest | None) -> bool:
    """Whether a folder has to be read from its log of metrics; one that holds no run is an error."""
    if manifest is None:
        begun = metrics_log.path_in(folder).is_file()
        if not begun and not (folder / "summary.json").is_file():
            raise DataError(f"{folder}: not the folder of a run (no summary.json in it)")
        return begun
    if manifest.kind != "run":
        raise DataError(f"{folder}: not the folder of a run, but of kind {manifest.kind!r} (no summary.json in it)")
    if manifest.state == COMPLETE:  # a log was left by a process that ended before it could delete it
        return False
    if has_metrics_log(folder, manifest):
        return True
    if "summary.json" not in manifest.files:
        raise DataError(f"{folder}: nothing was measured yet; resume it with: dspodfl run --resume {folder}")
    return False


def read_summary(files: FolderReader) -> dict[str, Any]:
    """Read summary.json within bounds, and check the types of what it says.

    Args:
        files: The folder of a run.

    Returns:
        What it says, without ``kind`` and ``format``.

    Raises:
        DataError: It is missing or damaged, of a later format, or a field is missing or of a wrong type.
    """
    try:
        content = bounded.parse_json(files.read("summary.json", bounded.JSON))
    except ValueError as error:
        raise DamagedError(f"{files.path}: summary.json is damaged ({error})") from None
    check_format(content, {KIND}, FORMAT, f"{files.path}: summary.json")
    check_summary(content, f"{files.path}: summary.json")
    return {key: value for key, value in content.items() if key not in ("kind", "format")}


def read_config(files: FolderReader) -> str:
    """Read config.toml within bounds; what it says is not checked.

    Args:
        files: The folder of a run.

    Returns:
        The text of the file.

    Raises:
        DataError: It is missing or damaged.
    """
    try:
        text = files.read("config.toml", bounded.TOML).decode()
        bounded.parse_toml(text)
    except ValueError as error:
        raise DamagedError(f"{files.path}: config.toml is damaged ({error})") from None
    return text


def _read_log(path: Path, config: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any], list[str]]:
    """Metrics and summary of a run that is not finished, and what is damaged in its log."""
    found = metrics_log.read(path)
    if found.header is None:
        raise ValueError(f"{'; '.join(map(str, found.damage))}: the run can be resumed, and measures it again")
    labels = labels_of(config["algorithms"])
    metrics = ordered(found.rows, labels)
    if metrics.empty:
        raise ValueError(f"{path.name} has no rows yet")
    seeds = range(config["seed"], config["seed"] + config["seeds"])
    done = progress(found.rows, [(name, seed) for name in labels for seed in seeds])
    study = found.header["study"] | found.latest | {"iterations_done": done, "complete": False}
    speed = study["run_iterations"] / max(study["wall_seconds"], 1e-9)
    study = {key: value for key, value in study.items() if key != "run_iterations"}
    targets, at_delay = config["eval"]["targets"], sorted(set(config["eval"]["at_delay"]))
    summary = {
        "study": study | {"run_iterations_per_second": speed},
        "algorithms": summarize(metrics, targets, at_delay, from_config(config)),
    }
    return metrics, summary, [f"{path.parent}: {damage}" for damage in found.damage]


def _load_models(files: FolderReader, manifest: Manifest | None) -> list[tuple[Key, dict[str, Tensor]]]:
    """The models that the manifest names; without one, those that look so."""
    if manifest is None:
        names = [f"models/{path.name}" for path in sorted((files.path / "models").glob(_MODELS))]
    else:
        names = sorted(name for name in manifest.names if name.startswith("models/"))
    out = []
    for name in names:
        content = files.read(name)
        about = safetensors_about(files.path / name)
        out.append(((about["algorithm"], about["seed"]), safetensors.torch.load(content)))
    return out
