"""Results: what a study measured, as tables; written to a folder and read back."""

from __future__ import annotations

import io
import json
import os
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import safetensors.torch
from torch import Tensor

from dspodfl import journal
from dspodfl.costs import from_config
from dspodfl.errors import DataError, InputError
from dspodfl.journal import JOURNAL
from dspodfl.judging import COLUMNS, Row
from dspodfl.schedule import Events, Replay
from dspodfl.summary import summarize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = (
    "config.toml",
    "metrics.parquet",
    "clients.parquet",
    "setting.npz",
    "summary.json",
    "accuracy_vs_delay.png",
    "accuracy_vs_delay.svg",
    "network.png",
    "events.npz",
)
"""What a result's folder may hold, besides ``models/``."""

_INTEGERS = ("seed", "iteration", "sgd_steps", "link_uses", "bytes")
_MODELS = "*-seed*.safetensors"
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, safetensors.SafetensorError)

Key = tuple[str, int]
"""An algorithm and a seed: one run."""


@dataclass(eq=False)
class Result:
    """What a study measured.

    ``metrics`` has a row for each algorithm, seed and evaluated iteration; ``clients`` one for each algorithm, seed
    and client; ``settings`` the graph and rates of each seed; ``summary`` what summary.json holds.
    """

    metrics: pd.DataFrame
    clients: pd.DataFrame
    settings: dict[int, dict[str, np.ndarray]]
    summary: dict[str, Any]
    config_toml: str
    stacked: dict[Key, dict[str, Tensor]] = field(default_factory=dict, repr=False)
    events: dict[Key, tuple[Events, np.ndarray]] = field(default_factory=dict, repr=False)
    times: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False)
    """What the time went into until now, for the summary: writing takes time as well."""

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as plain tables."""
        return tomllib.loads(self.config_toml)

    def models(self, algorithm: str, seed: int = 0) -> list[dict[str, Tensor]]:
        """The final models of one run: a state dict for each client.

        ``result.models("dspodfl", seed=0)[3]`` loads into the module with ``load_state_dict`` (strict where the module
        has no buffers).
        """
        if (algorithm, seed) not in self.stacked:
            held = ", ".join(f"({a!r}, seed={s})" for a, s in self.stacked) or "none: they were not saved"
            raise InputError("models", f"({algorithm!r}, seed={seed})", f"one of the models kept ({held})")
        stacked = self.stacked[algorithm, seed]
        count = len(next(iter(stacked.values())))
        return [{name: values[i].clone() for name, values in stacked.items()} for i in range(count)]

    def plot(self) -> Figure:
        """Accuracy against delay, mean and 1-sigma band over seeds; a matplotlib figure."""
        from dspodfl import plots

        return plots.accuracy_vs_delay(self.metrics, self.title, from_config(self.config))

    def plot_network(self) -> Figure:
        """The graph of the first seed, with its rates; a matplotlib figure."""
        from dspodfl import plots

        seed = next(iter(self.settings))
        return plots.network(self.settings[seed], f"seed {seed}; ")

    def _repr_html_(self) -> str:
        """Show the comparison and the picture in a notebook."""
        from dspodfl import notebook

        return notebook.html(self)

    @property
    def title(self) -> str:
        """A line that says what was run."""
        c = self.config
        model = c["model"].get("name") or c["model"].get("factory")
        partition = c["data"].get("partition", {})
        how = " ".join(f"{v}" if k == "kind" else f"{k}={v}" for k, v in partition.items() if v is not False)
        counts = ", ".join(
            f"{count} {what}{'' if count == 1 else 's'}"
            for count, what in ((c["clients"]["count"], "client"), (c["seeds"], "seed"))
        )
        return f"{c['data']['name']} ({how or 'own shards'}), {model}, {counts}"

    def save(self, folder: str | Path, *, overwrite: bool = False, models: bool = True) -> Path:
        """Write everything to a folder; an existing one is refused unless ``overwrite``.

        Each file is written aside and renamed, so a folder never holds half a file. What a former result left there
        is replaced; files that are not a result's are left alone.
        """
        folder = Path(folder)
        claim(folder, overwrite=overwrite)
        try:
            self._save(folder, models)
        except OSError as error:
            raise DataError(f"{folder}: the result could not be written ({error})") from error
        return folder

    def _save(self, folder: Path, models: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        written = {"config.toml", "metrics.parquet", "clients.parquet", "setting.npz", "summary.json"}
        self.save_setting(folder)
        write(folder / "metrics.parquet", parquet(self.metrics))
        if self.events:
            write(folder / "events.npz", _npz(_packed(self.events)))
            written.add("events.npz")
        written |= self.draw(folder)
        for name in set(FILES) - written:
            (folder / name).unlink(missing_ok=True)
        self._save_models(folder / "models", models)
        if self.times is not None:
            self.summary["study"].update(self.times())
        write(folder / "summary.json", (json.dumps(self.summary, indent=2, ensure_ascii=False) + "\n").encode())

    def save_setting(self, folder: Path) -> None:
        """Write what is known before anything is measured: the configuration, the clients, graphs and rates."""
        write(folder / "config.toml", self.config_toml.encode())
        write(folder / "clients.parquet", parquet(self.clients))
        flat = {f"{seed}/{key}": value for seed, arrays in self.settings.items() for key, value in arrays.items()}
        write(folder / "setting.npz", _npz(flat))

    def draw(self, folder: Path) -> set[str]:
        """Write the pictures; gives their names."""
        from dspodfl.plots import picture

        curves, network = self.plot(), self.plot_network()
        pictures = {
            "accuracy_vs_delay.png": picture(curves, "png"),
            "accuracy_vs_delay.svg": picture(curves, "svg"),
            "network.png": picture(network, "png"),
        }
        for name, content in pictures.items():
            write(folder / name, content)
        return set(pictures)

    def _save_models(self, folder: Path, wanted: bool) -> None:
        for old in folder.glob(_MODELS):
            old.unlink()
        if not wanted or not self.stacked:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
            return
        folder.mkdir(exist_ok=True)
        for (algorithm, seed), tensors in self.stacked.items():
            name = f"{quote(algorithm, safe=' ')}-seed{seed}.safetensors"  # no sign of a name leads out of the folder
            about = {"algorithm": algorithm, "seed": seed, "layout": "each tensor is (clients, *shape)"}
            plain = {key: value.contiguous() for key, value in tensors.items()}
            write(folder / name, safetensors.torch.save(plain, metadata={"run": json.dumps(about)}))

    @staticmethod
    def load(folder: str | Path) -> Result:
        """A result from its folder; the models only if they were saved.

        A run that is on its way, or died on it, is read from its journal, as far as that goes.
        """
        folder = Path(folder)
        on_its_way = (folder / JOURNAL).is_file()
        if not on_its_way and not (folder / "summary.json").is_file():
            raise DataError(f"{folder}: not the folder of a run (no summary.json in it)")
        try:
            settings: dict[int, dict[str, np.ndarray]] = {}
            with (folder / "setting.npz").open("rb") as file, np.load(file, allow_pickle=False) as archive:
                for name in archive.files:
                    seed, _, key = name.partition("/")
                    settings.setdefault(int(seed), {})[key] = archive[name]
            config_toml = (folder / "config.toml").read_text(encoding="utf-8")
            if on_its_way:
                metrics, summary = _journalled(folder / JOURNAL, tomllib.loads(config_toml))
            else:
                metrics = pd.read_parquet(folder / "metrics.parquet")
                summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            result = Result(
                metrics,
                pd.read_parquet(folder / "clients.parquet"),
                settings,
                summary,
                config_toml,
                dict(_load_models(folder / "models")),
                dict(_load_events(folder / "events.npz")),
            )
            result._check()
        except _UNREADABLE as error:
            raise DataError(f"{folder}: a file of this run is missing or damaged ({error})") from error
        return result

    def _check(self) -> None:
        """Refuse tables that are no result's."""
        lost = [name for name in COLUMNS if name not in self.metrics]
        if lost:
            raise ValueError(f"metrics.parquet has no column {lost[0]}")
        if not isinstance(self.summary, dict) or not {"study", "algorithms"} <= self.summary.keys():
            raise ValueError("summary.json has no study or no algorithms")
        if {"data", "model", "clients", "seeds"} - self.config.keys():
            raise ValueError("config.toml lacks a table")


def ordered(rows: Sequence[Row], algorithms: Sequence[str]) -> pd.DataFrame:
    """Rows as the table of metrics.parquet, by algorithm, seed and iteration."""
    place = {name: number for number, name in enumerate(algorithms)}
    return typed(sorted(rows, key=lambda row: (place[str(row["algorithm"])], row["seed"], row["iteration"])))


def typed(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as the table of metrics.parquet."""
    metrics = pd.DataFrame(list(rows), columns=list(COLUMNS))
    for name in COLUMNS[3:]:
        kind: Any = "int64" if name in _INTEGERS else "float64" if name != "diverged" else bool
        metrics[name] = metrics[name].astype(kind)
    return metrics


def progress(rows: Sequence[Row], runs: Sequence[Key]) -> int:
    """The iteration that every run has been measured at, or is past."""
    last = dict.fromkeys(runs, 0)
    for row in rows:
        name = str(row["algorithm"]), int(str(row["seed"]))
        last[name] = max(last[name], int(str(row["iteration"])))
    return min(last.values())


def _journalled(path: Path, config: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Metrics and summary of a run that is on its way."""
    found = journal.read(path)
    metrics = ordered(found.rows, config["algorithms"])
    if metrics.empty:
        raise ValueError(f"{path.name} has no rows yet")
    seeds = range(config["seed"], config["seed"] + config["seeds"])
    done = progress(found.rows, [(name, seed) for name in config["algorithms"] for seed in seeds])
    study = found.header["study"] | found.latest | {"iterations_done": done, "complete": False}
    speed = study["run_iterations"] / max(study["wall_seconds"], 1e-9)
    study = {key: value for key, value in study.items() if key != "run_iterations"}
    targets, at_delay = config["eval"]["targets"], sorted(set(config["eval"]["at_delay"]))
    return metrics, {
        "study": study | {"run_iterations_per_second": speed},
        "algorithms": summarize(metrics, targets, at_delay),
    }


def claim(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that cannot or must not be written, before anything is computed."""
    try:
        if folder.is_dir() and not overwrite:
            raise InputError("out", str(folder), "a folder that does not exist yet (or use --overwrite)")
        if folder.exists() and not folder.is_dir():
            raise InputError("out", str(folder), "a folder; there is a file of that name")
        where = folder
        while not where.exists():
            where = where.parent
        with tempfile.TemporaryFile(dir=where):
            pass
    except OSError as error:
        raise InputError("out", str(folder), f"a folder that can be written ({error})") from None


def write(path: Path, content: bytes) -> None:
    """Write a file aside, force it onto the device and rename it, so that there is never half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def sync(folder: Path) -> None:
    """Force the names in a folder onto the device: what was renamed there stays so."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def parquet(table: pd.DataFrame) -> bytes:
    """A table as a parquet file."""
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _packed(events: Mapping[Key, tuple[Events, np.ndarray]]) -> dict[str, np.ndarray]:
    """Events as bits: ``algorithm/seed/v``, ``…/v_hat``, with the graph's ``…/edges`` and the ``…/shape``."""
    out = {}
    for (algorithm, seed), (e, edges) in events.items():
        key = f"{algorithm}/{seed}"
        out[f"{key}/v"], out[f"{key}/v_hat"] = np.packbits(e.v, axis=1), np.packbits(e.v_hat, axis=1)
        out[f"{key}/edges"] = edges
        out[f"{key}/shape"] = np.array([*e.v.shape, e.v_hat.shape[1]])
    return out


def replay(path: str | Path, algorithm: str, seed: int) -> Replay:
    """The events of one run from the ``events.npz`` that ``--record-events`` writes."""
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            key = f"{algorithm}/{seed}"
            if f"{key}/v" not in archive:
                runs = sorted({name.rsplit("/", 1)[0] for name in archive.files})
                raise InputError("replay", key, f"one of the recorded runs: {', '.join(runs)}")
            return Replay(*_unpacked(archive, key))
    except InputError:
        raise
    except _UNREADABLE as error:
        raise DataError(f"{path}: not a record of events ({error})") from error


def _unpacked(archive: Mapping[str, np.ndarray], key: str) -> tuple[Events, np.ndarray]:
    _, n, links = archive[f"{key}/shape"].tolist()
    v, v_hat = (
        np.unpackbits(archive[f"{key}/{part}"], axis=1, count=count).astype(bool)
        for part, count in (("v", n), ("v_hat", links))
    )
    return Events(v, v_hat), archive[f"{key}/edges"]


def _load_events(path: Path) -> list[tuple[Key, tuple[Events, np.ndarray]]]:
    if not path.is_file():
        return []
    out = []
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        for name in archive.files:
            key, _, part = name.rpartition("/")
            if part == "shape":
                algorithm, _, seed = key.rpartition("/")
                out.append(((algorithm, int(seed)), _unpacked(archive, key)))
    return out


def _load_models(folder: Path) -> list[tuple[Key, dict[str, Tensor]]]:
    out = []
    for path in sorted(folder.glob(_MODELS)):
        with safetensors.safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        out.append(((about["algorithm"], about["seed"]), tensors))
    return out
