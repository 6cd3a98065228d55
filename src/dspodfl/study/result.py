"""Results: what a study measured, as tables; written to a folder and read back."""

from __future__ import annotations

import hashlib
import io
import json
import tomllib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import safetensors.torch
from torch import Tensor

from dspodfl.algorithms import Replay
from dspodfl.analysis import INTEGERS, METRICS, MetricsRow, complete, from_config, summarize
from dspodfl.config import labels_of
from dspodfl.errors import DataError, InputError, bounded
from dspodfl.network import Events
from dspodfl.study.pictures import PICTURES
from dspodfl.study.store import metrics_log as journal
from dspodfl.study.store.change import Change, Loose
from dspodfl.study.store.claiming import claim
from dspodfl.study.store.files import safetensors_about
from dspodfl.study.store.folder import Folder
from dspodfl.study.store.layout import COMPLETE, INTERRUPTED, MANIFEST, UNFINISHED
from dspodfl.study.store.manifest import DamagedError, Manifest
from dspodfl.study.store.metrics_log import JOURNAL
from dspodfl.study.store.rows import Rows
from dspodfl.study.store.schemas import check_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = (
    "config.toml",
    "metrics.parquet",
    "clients.parquet",
    "setting.npz",
    "summary.json",
    *(file for one in PICTURES for file in one.files),
    "events.npz",
    MANIFEST,
)
"""What a result's folder may hold, besides ``models/``."""
ALWAYS = tuple(name for name in FILES if name not in ("events.npz", MANIFEST))
"""What every result writes."""
FORMAT = 1
"""Of summary.json."""

_MODELS = "*-seed*.safetensors"
_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error),
    safetensors.SafetensorError,
)

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
    notes: list[str] = field(default_factory=list, repr=False)
    """What was found wrong when it was read, and did not keep it from being read: damaged lines of a journal."""

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
        from dspodfl.analysis import figures as plots

        return plots.accuracy_vs_delay(self.metrics, self.title, from_config(self.config))

    def plot_network(self) -> Figure:
        """The graph of the first seed, with its rates; a matplotlib figure."""
        from dspodfl.analysis import figures as plots

        seed = next(iter(self.settings))
        return plots.network(self.settings[seed], f"seed {seed}; ")

    def _repr_html_(self) -> str:
        """Show the comparison and the picture in a notebook."""
        from dspodfl.analysis import notebook

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

        Every file is written to a temporary one and renamed, so that a folder never holds half a file. What a former
        run has left there is replaced; files of others are left alone, and where one has a name that is written,
        that is an error.
        """
        folder = Path(folder)
        claim(folder, overwrite=overwrite, names=self._names(models))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            id_ = hashlib.sha256(f"{self.config_toml}{json.dumps(self.summary)}".encode()).hexdigest()[:16]
            self.write(Folder(folder), id_, models=models)
        except OSError as error:
            raise DataError(f"{folder}: the result could not be written ({error})") from error
        return folder

    def record(self) -> dict[str, Any]:
        """The summary as it is written: with what it is, and in which format."""
        return {"kind": "run", "format": FORMAT, **self.summary}

    def _names(self, models: bool) -> list[str]:
        """The files that are written."""
        own = [model_file(*key) for key in self.stacked] if models else []
        return [*ALWAYS, *(["events.npz"] if self.events else []), *own]

    def write(self, folder: Folder, id: str, *, models: bool, about: Mapping[str, Any] | None = None) -> None:
        """Let the files of this result take the place of what the folder has of a run."""
        state = COMPLETE if self.summary["study"].get("complete", True) else INTERRUPTED
        with folder.change(state=state, id=id, about=about, only=True) as change:
            self._save(change, models)

    def _save(self, change: Change, models: bool) -> None:
        self.save_setting(change)
        change.write("metrics.parquet", parquet(self.metrics))
        if self.events:
            change.write("events.npz", _npz(_packed(self.events)))
        self.draw(change)
        for (algorithm, seed), tensors in self.stacked.items() if models else ():
            about = {"algorithm": algorithm, "seed": seed, "layout": "each tensor is (clients, *shape)"}
            plain = {key: value.contiguous() for key, value in tensors.items()}
            content = safetensors.torch.save(plain, metadata={"run": json.dumps(about)})
            change.write(model_file(algorithm, seed), content)
        if self.times is not None:
            self.summary["study"].update(self.times())
        change.write("summary.json", (json.dumps(self.record(), indent=2, ensure_ascii=False) + "\n").encode())

    def save_setting(self, change: Change) -> None:
        """Write what is known before anything is measured: the configuration, the clients, graphs and rates."""
        change.write("config.toml", self.config_toml.encode())
        change.write("clients.parquet", parquet(self.clients))
        flat = {f"{seed}/{key}": value for seed, arrays in self.settings.items() for key, value in arrays.items()}
        change.write("setting.npz", _npz(flat))

    def draw(self, folder: Path | Change | Loose) -> set[str]:
        """Write the pictures; gives their names."""
        from dspodfl.analysis.figures import picture

        if isinstance(folder, Path):
            with Folder(folder).change() as change:
                return self.draw(change)
        drawn = [(one, one.figure(self)) for one in PICTURES]
        for one, figure in drawn:
            for file, form in zip(one.files, one.formats, strict=True):
                folder.write(file, picture(figure, form))
        return {file for one, _ in drawn for file in one.files}

    @staticmethod
    def load(folder: str | Path) -> Result:
        """Read a result from its folder, every file compared with its checksum; the models only if they were saved.

        A run that is not finished is read from its journal, as far as that goes; ``notes`` says what is damaged in it.

        Raises:
            DataError: it is not the folder of a run, nothing was measured yet, or a file (it is named) is damaged.
        """
        folder = Path(folder)
        files = Folder(folder)
        manifest = files.manifest()
        on_its_way = _on_its_way(folder, manifest)
        try:
            settings: dict[int, dict[str, np.ndarray]] = {}
            with np.load(io.BytesIO(files.read("setting.npz")), allow_pickle=False) as archive:
                for name in archive.files:
                    seed, _, key = name.partition("/")
                    settings.setdefault(int(seed), {})[key] = archive[name]
            config_toml = read_config(files)
            notes: list[str] = []
            if on_its_way:
                metrics, summary, notes = _journalled(folder / JOURNAL, tomllib.loads(config_toml))
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
                dict(_load_events(files)),
                notes=notes,
            )
            result._check()
        except _UNREADABLE as error:
            raise DataError(f"{folder}: a file of this run is missing or damaged ({error})") from error
        return result

    def _check(self) -> None:
        """Refuse tables that are no result's."""
        lost = [name for name in METRICS if name not in self.metrics]
        if lost:
            raise ValueError(f"metrics.parquet has no column {lost[0]}")
        wrong = [name for name in METRICS[1:] if self.metrics[name].dtype.kind not in "iufb"]
        if wrong:
            raise ValueError(f"metrics.parquet: {wrong[0]} has no numbers")
        if not self.settings or any({"edges", "d", "b"} - arrays.keys() for arrays in self.settings.values()):
            raise ValueError("setting.npz lacks the graph or the rates of a seed")
        config = self.config
        if {"data", "model", "clients", "seeds"} - config.keys():
            raise ValueError("config.toml lacks a table")
        tables = all(isinstance(config[name], dict) for name in ("data", "model", "clients"))
        if not tables or not {"name"} <= config["data"].keys() or not {"count"} <= config["clients"].keys():
            raise ValueError("config.toml is not a resolved configuration")


def _on_its_way(folder: Path, manifest: Manifest | None) -> bool:
    """Whether a folder has to be read from its journal; one that holds no run is an error."""
    if manifest is None:
        begun = (folder / JOURNAL).is_file()
        if not begun and not (folder / "summary.json").is_file():
            raise DataError(f"{folder}: not the folder of a run (no summary.json in it)")
        return begun
    if manifest.kind != "run":
        raise DataError(f"{folder}: not the folder of a run, but of kind {manifest.kind!r} (no summary.json in it)")
    if manifest.state == COMPLETE:  # a journal is what a process left that ended before it could delete it
        return False
    if has_journal(folder, manifest):
        return True
    if "summary.json" not in manifest.files:
        raise DataError(f"{folder}: nothing was measured yet; resume it with: dspodfl run --resume {folder}")
    return False


def has_journal(folder: Path, manifest: Manifest) -> bool:
    """Whether the journal in a folder is that of its run; where its first line is damaged, it may be."""
    found = journal.header(folder / JOURNAL)
    if found is None:
        return manifest.state == UNFINISHED and (folder / JOURNAL).is_file()
    return bool(found.get("id", "") == manifest.id)


def read_summary(files: Folder) -> dict[str, Any]:
    """Read summary.json within bounds, and check the types of what it says.

    Raises:
        DataError: names the file, and the field.
    """
    try:
        content = bounded.parse_json(files.read("summary.json", bounded.JSON))
    except ValueError as error:
        raise DamagedError(f"{files.path}: summary.json is damaged ({error})") from None
    if isinstance(content, dict):
        kind, later = content.pop("kind", "run"), content.pop("format", FORMAT)
        if kind != "run" or not isinstance(later, int) or later > FORMAT:
            raise DataError(f"{files.path}: summary.json is of kind {kind!r}, format {later!r}; here 'run', {FORMAT}")
    check_summary(content, f"{files.path}: summary.json")
    return dict(content)


def read_config(files: Folder) -> str:
    """Read config.toml within bounds; what it says is not checked.

    Raises:
        DataError: names the file.
    """
    try:
        text = files.read("config.toml", bounded.TOML).decode()
        bounded.parse_toml(text)
    except ValueError as error:
        raise DamagedError(f"{files.path}: config.toml is damaged ({error})") from None
    return text


def read_parquet(content: bytes) -> pd.DataFrame:
    """Read a table, and verify the checksums of its pages."""
    return pd.read_parquet(io.BytesIO(content), page_checksum_verification=True)


def ordered(rows: Iterable[MetricsRow], algorithms: Sequence[str]) -> pd.DataFrame:
    """Rows as the table of metrics.parquet, by algorithm, seed and iteration."""
    place = {name: number for number, name in enumerate(algorithms)}
    if isinstance(rows, Rows):
        table = rows.to_frame()
        places = table["algorithm"].map(place).to_numpy()
        order = np.lexsort((table["iteration"].to_numpy(), table["seed"].to_numpy(), places))
        return table.iloc[order].reset_index(drop=True)
    return typed(sorted(rows, key=lambda row: (place[str(row["algorithm"])], row["seed"], row["iteration"])))


def typed(rows: Iterable[MetricsRow]) -> pd.DataFrame:
    """Rows as the table of metrics.parquet."""
    if isinstance(rows, Rows):
        return rows.to_frame()
    metrics = pd.DataFrame(list(rows), columns=list(METRICS))
    for name in METRICS[3:]:
        kind: Any = "int64" if name in INTEGERS else "float64" if name != "diverged" else bool
        metrics[name] = metrics[name].astype(kind)
    return metrics


def progress(rows: Iterable[MetricsRow], runs: Sequence[Key]) -> int:
    """The iteration that every run has been measured at, or is past."""
    if isinstance(rows, Rows):
        return min(rows.last.get((name, seed), 0) for name, seed in runs)
    last = dict.fromkeys(runs, 0)
    for row in rows:
        name = str(row["algorithm"]), int(str(row["seed"]))
        last[name] = max(last[name], int(str(row["iteration"])))
    return min(last.values())


def _journalled(path: Path, config: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any], list[str]]:
    """Metrics and summary of a run that is not finished, and what is damaged in its journal."""
    found = journal.read(path, Rows(), METRICS)
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


def parquet(table: pd.DataFrame) -> bytes:
    """A table as a parquet file, whose pages have checksums."""
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False, write_page_checksum=True)
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
    path = Path(path)
    try:
        content = Folder(path.parent).read(path.name)
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
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


def _load_events(files: Folder) -> list[tuple[Key, tuple[Events, np.ndarray]]]:
    if not files.holds("events.npz"):
        return []
    out = []
    with np.load(io.BytesIO(files.read("events.npz")), allow_pickle=False) as archive:
        for name in archive.files:
            key, _, part = name.rpartition("/")
            if part == "shape":
                algorithm, _, seed = key.rpartition("/")
                out.append(((algorithm, int(seed)), _unpacked(archive, key)))
    return out


def _load_models(files: Folder, manifest: Manifest | None) -> list[tuple[Key, dict[str, Tensor]]]:
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


def model_file(algorithm: str, seed: int) -> str:
    """The file of a run's models: no name of an algorithm leads out of the folder, or is too long for it."""
    name = quote(algorithm, safe=" ")
    if len(name) > 150:
        name = f"{name[:100]}-{hashlib.sha256(algorithm.encode()).hexdigest()[:16]}"
    return f"models/{name}-seed{seed}.safetensors"
