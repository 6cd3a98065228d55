"""Results: what a study measured, as tables, and how they are written to a folder."""

from __future__ import annotations

import hashlib
import io
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import safetensors.torch
from torch import Tensor

from dspodfl.analysis import from_config
from dspodfl.errors import DataError, InputError
from dspodfl.study.pictures import PICTURES
from dspodfl.study.store.change import Change, Loose
from dspodfl.study.store.claiming import claim
from dspodfl.study.store.events_file import EVENTS, RunEvents, packed
from dspodfl.study.store.folder import Folder
from dspodfl.study.store.layout import COMPLETE, INTERRUPTED, MANIFEST
from dspodfl.study.tables import Key, parquet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = (
    "config.toml",
    "metrics.parquet",
    "clients.parquet",
    "setting.npz",
    "summary.json",
    *(file for one in PICTURES for file in one.files),
    EVENTS,
    MANIFEST,
)
"""What a result's folder may hold, besides ``models/``."""
ALWAYS = tuple(name for name in FILES if name not in (EVENTS, MANIFEST))
"""What every result writes."""
KIND, FORMAT = "run", 1
"""Of summary.json."""


@dataclass(eq=False)
class Result:
    r"""What a study measured.

    Attributes:
        metrics: A row for each algorithm, seed and evaluated iteration, with the columns `dspodfl.analysis.METRICS`.
        clients: A row for each algorithm, seed and client.
        settings: Seed -> its graph and rates: ``edges`` (links, 2), ``d`` (clients,), ``b`` (links,).
        summary: What summary.json holds.
        config_toml: The resolved configuration.
        stacked: Algorithm and seed -> final models, each tensor (clients, \*shape).
        events: Algorithm and seed -> recorded events, and the links (links, 2).
        times: Returns the seconds spent until now by kind, for the summary: writing takes time as well.
        notes: Lines about damage that did not prevent reading: damaged lines of a log of metrics.
    """

    metrics: pd.DataFrame
    clients: pd.DataFrame
    settings: dict[int, dict[str, np.ndarray]]
    summary: dict[str, Any]
    config_toml: str
    stacked: dict[Key, dict[str, Tensor]] = field(default_factory=dict, repr=False)
    events: dict[Key, RunEvents] = field(default_factory=dict, repr=False)
    times: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False)
    notes: list[str] = field(default_factory=list, repr=False)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as plain tables."""
        return tomllib.loads(self.config_toml)

    def models(self, algorithm: str, seed: int = 0) -> list[dict[str, Tensor]]:
        """Return the final models of one run.

        ``result.models("dspodfl", seed=0)[3]`` loads into the module with ``load_state_dict`` (strict where the module
        has no buffers).

        Args:
            algorithm: The label of the algorithm.
            seed: The seed.

        Returns:
            A state dict for each client; where the algorithm has a server, the last is that of the server.

        Raises:
            InputError: The models of this run were not kept.
        """
        if (algorithm, seed) not in self.stacked:
            held = ", ".join(f"({a!r}, seed={s})" for a, s in self.stacked) or "none: they were not saved"
            raise InputError("models", f"({algorithm!r}, seed={seed})", f"one of the models kept ({held})")
        stacked = self.stacked[algorithm, seed]
        count = len(next(iter(stacked.values())))
        return [{name: values[i].clone() for name, values in stacked.items()} for i in range(count)]

    def plot(self) -> Figure:
        """Draw accuracy against delay, with the mean and the 1-sigma band over seeds.

        Returns:
            A matplotlib figure.
        """
        from dspodfl.analysis import figures as plots

        return plots.accuracy_vs_delay(self.metrics, self.title, from_config(self.config))

    def plot_network(self) -> Figure:
        """Draw the graph of the first seed, with its rates.

        Returns:
            A matplotlib figure.
        """
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

    def save(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        models: bool = True,
        about: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write everything to a folder; an existing one is refused unless ``overwrite``.

        Every file is written to a temporary one and renamed, so that a folder never holds half a file. What a former
        run has left there is replaced. Files of others stay.

        Args:
            folder: The folder.
            overwrite: Whether it may exist.
            models: Whether the models are written too.
            about: What the manifest says of the run: its configuration, options and source; nothing, if left out.

        Returns:
            The folder.

        Raises:
            InputError: It exists, cannot be written, or a file of others has a name that must be written.
            DataError: A file could not be written.
        """
        folder = Path(folder)
        claim(folder, overwrite=overwrite, names=self._names(models))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            id_ = hashlib.sha256(f"{self.config_toml}{json.dumps(self.summary)}".encode()).hexdigest()[:16]
            self.write(Folder(folder), id_, models=models, about=about)
        except OSError as error:
            raise DataError(f"{folder}: the result could not be written ({error})") from error
        return folder

    def record(self) -> dict[str, Any]:
        """Return the content of summary.json.

        Returns:
            The summary, with ``kind`` and ``format``.
        """
        return {"kind": KIND, "format": FORMAT, **self.summary}

    def _names(self, models: bool) -> list[str]:
        """The files that are written."""
        files = [model_file(*key) for key in self.stacked] if models else []
        return [*ALWAYS, *([EVENTS] if self.events else []), *files]

    def write(self, folder: Folder, id: str, *, models: bool, about: Mapping[str, Any] | None = None) -> None:
        """Replace what a folder has of a run by the files of this result.

        Args:
            folder: The folder; it exists.
            id: The id of the run.
            models: Whether the models are written too.
            about: What the run was started with; as it was, if left out.
        """
        state = COMPLETE if self.summary["study"].get("complete", True) else INTERRUPTED
        with folder.change(state=state, id=id, about=about, only=True) as change:
            self._save(change, models)

    def _save(self, change: Change, models: bool) -> None:
        self.save_setting(change)
        change.write("metrics.parquet", parquet(self.metrics))
        if self.events:
            change.write(EVENTS, _npz(packed(self.events)))
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
        """Write the files that do not depend on measurements: the configuration, the clients, graphs and rates.

        Args:
            change: Takes the files.
        """
        change.write("config.toml", self.config_toml.encode())
        change.write("clients.parquet", parquet(self.clients))
        flat = {f"{seed}/{key}": value for seed, arrays in self.settings.items() for key, value in arrays.items()}
        change.write("setting.npz", _npz(flat))

    def draw(self, folder: Path | Change | Loose) -> set[str]:
        """Write the pictures.

        Args:
            folder: The folder, or what takes the files.

        Returns:
            The names of their files.
        """
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

        A run that is not finished is read from its log of metrics, as far as that goes; ``notes`` says what is damaged
        in it.

        Args:
            folder: The folder of a run.

        Returns:
            The result.

        Raises:
            DataError: It is not the folder of a run, no row was written yet, or a file (it is named) is missing or
                damaged.
        """
        from dspodfl.study import result_reader

        return result_reader.load(Path(folder))


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def model_file(algorithm: str, seed: int) -> str:
    """Return the file of the models of a run.

    Args:
        algorithm: The label of the algorithm; characters that a file name cannot have are quoted, a long one is cut.
        seed: The seed.

    Returns:
        Its path within the folder of the run.
    """
    name = quote(algorithm, safe=" ")
    if len(name) > 150:
        name = f"{name[:100]}-{hashlib.sha256(algorithm.encode()).hexdigest()[:16]}"
    return f"models/{name}-seed{seed}.safetensors"
