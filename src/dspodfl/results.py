"""Results: what a study measured, as tables; written to a folder and read back."""

from __future__ import annotations

import io
import json
import os
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import safetensors.torch
from torch import Tensor

from dspodfl.errors import DataError, InputError
from dspodfl.schedule import Events

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

        return plots.accuracy_vs_delay(self.metrics, self.title)

    def plot_network(self) -> Figure:
        """The graph of the first seed, with its rates; a matplotlib figure."""
        from dspodfl import plots

        seed = next(iter(self.settings))
        return plots.network(self.settings[seed], f"seed {seed}; ")

    @property
    def title(self) -> str:
        """A line that says what was run."""
        c = self.config
        model = c["model"].get("name") or c["model"].get("factory")
        partition = c["data"].get("partition", {})
        how = " ".join(f"{v}" if k == "kind" else f"{k}={v}" for k, v in partition.items() if v is not False)
        return (
            f"{c['data']['name']} ({how or 'own shards'}), {model}, {c['clients']['count']} clients, {c['seeds']} seeds"
        )

    def save(self, folder: str | Path, *, overwrite: bool = False, models: bool = True) -> Path:
        """Write everything to a folder; an existing one is refused unless ``overwrite``.

        Each file is written aside and renamed, so a folder never holds half a file. What a former result left there
        is replaced; files that are not a result's are left alone.
        """
        folder = Path(folder)
        claim(folder, overwrite=overwrite)
        folder.mkdir(parents=True, exist_ok=True)
        written = {"config.toml", "metrics.parquet", "clients.parquet", "setting.npz", "summary.json"}
        _write(folder / "config.toml", self.config_toml.encode())
        _write(folder / "metrics.parquet", _parquet(self.metrics))
        _write(folder / "clients.parquet", _parquet(self.clients))
        flat = {f"{seed}/{key}": value for seed, arrays in self.settings.items() for key, value in arrays.items()}
        _write(folder / "setting.npz", _npz(flat))
        _write(folder / "summary.json", (json.dumps(self.summary, indent=2, ensure_ascii=False) + "\n").encode())
        if self.events:
            _write(folder / "events.npz", _npz(_packed(self.events)))
            written.add("events.npz")
        written |= self.draw(folder)
        for name in set(FILES) - written:
            (folder / name).unlink(missing_ok=True)
        self._save_models(folder / "models", models)
        return folder

    def draw(self, folder: Path) -> set[str]:
        """Write the pictures; gives their names."""
        pictures: dict[str, Callable[[], Figure]] = {"accuracy_vs_delay": self.plot, "network": self.plot_network}
        names = set()
        for name, make in pictures.items():
            figure = make()
            for ending in ("png", "svg") if name != "network" else ("png",):
                buffer = io.BytesIO()
                metadata = {"Date": None} if ending == "svg" else None
                figure.savefig(buffer, format=ending, metadata=metadata)
                _write(folder / f"{name}.{ending}", buffer.getvalue())
                names.add(f"{name}.{ending}")
        return names

    def _save_models(self, folder: Path, wanted: bool) -> None:
        for old in folder.glob("*.safetensors"):
            old.unlink()
        if not wanted or not self.stacked:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
            return
        folder.mkdir(exist_ok=True)
        for (algorithm, seed), tensors in self.stacked.items():
            name = f"{algorithm.replace(':', '.')}-seed{seed}.safetensors"
            about = {"algorithm": algorithm, "seed": str(seed), "layout": "each tensor is (clients, *shape)"}
            plain = {key: value.contiguous() for key, value in tensors.items()}
            _write(folder / name, safetensors.torch.save(plain, metadata=about))

    @staticmethod
    def load(folder: str | Path) -> Result:
        """A result from its folder; the models only if they were saved."""
        folder = Path(folder)
        if not (folder / "summary.json").is_file():
            raise DataError(f"{folder}: not the folder of a run (no summary.json in it)")
        try:
            settings: dict[int, dict[str, np.ndarray]] = {}
            with np.load(folder / "setting.npz", allow_pickle=False) as archive:
                for name in archive.files:
                    seed, _, key = name.partition("/")
                    settings.setdefault(int(seed), {})[key] = archive[name]
            return Result(
                pd.read_parquet(folder / "metrics.parquet"),
                pd.read_parquet(folder / "clients.parquet"),
                settings,
                json.loads((folder / "summary.json").read_text(encoding="utf-8")),
                (folder / "config.toml").read_text(encoding="utf-8"),
                dict(_load_models(folder / "models")),
            )
        except (OSError, ValueError, KeyError, EOFError, safetensors.SafetensorError) as error:
            raise DataError(f"{folder}: a file of this run is missing or damaged ({error})") from error


def claim(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that cannot or must not be written, before anything is computed."""
    if folder.is_dir():
        if not overwrite:
            raise InputError("out", str(folder), "a folder that does not exist yet (or use --overwrite)")
    elif folder.exists():
        raise InputError("out", str(folder), "a folder; there is a file of that name")
    where = folder
    while not where.exists():
        where = where.parent
    if not where.is_dir() or not os.access(where, os.W_OK | os.X_OK):
        raise InputError("out", str(folder), f"a folder that can be written ({where} cannot)")


def _write(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _parquet(table: pd.DataFrame) -> bytes:
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


def _load_models(folder: Path) -> list[tuple[Key, dict[str, Tensor]]]:
    out = []
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            about = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        out.append(((about["algorithm"], int(about["seed"])), tensors))
    return out
