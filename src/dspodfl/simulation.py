"""Run a configuration, in Python: ``result = run(Config(...))``."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dspodfl._version import __version__
from dspodfl.config import Config, dumps
from dspodfl.config.build import Own, Setting, build
from dspodfl.data import Dataset, Federation
from dspodfl.engine import Block
from dspodfl.errors import InputError
from dspodfl.graph import Graph
from dspodfl.plan import Plan
from dspodfl.results import Key, Result
from dspodfl.schedule import SCHEDULES, Events, Schedule
from dspodfl.study import COLUMNS, Measurement, Row, Watch, choose_device, choose_precision, measure
from dspodfl.summary import summarize

_CLIPPED = ("clipped_sgd_rates", "clipped_link_rates")
_INTEGERS = ("seed", "iteration", "sgd_steps", "link_uses", "bytes")


@dataclass(frozen=True, eq=False)
class Update:
    """What a callback hears after each evaluation; a callback that returns True ends the study there."""

    iteration: int
    iterations: int
    rows: list[Row]
    _measurement: Measurement
    _names: list[Key]

    def theta(self, algorithm: str, seed: int) -> Tensor:
        """The current stacked parameters of one run that advances here. Shape: (clients, p)."""
        for r in self._measurement.wave:
            if self._names[r] == (algorithm, seed):
                return self._measurement.models(r)
        raise KeyError((algorithm, seed))


Callback = Callable[[Update], object]


class Simulation:
    """A study that is being run: iterate over it, and take the result whenever you like.

    ``run`` is this with the loop inside; iterate yourself to be able to stop and still have what was measured.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        model: Any = None,
        data: Any = None,
        graph: nx.Graph | Graph | None = None,
        schedules: Mapping[str, Schedule] | None = None,
        device: str = "auto",
        record_events: bool = False,
        tick: Callable[[int], None] | None = None,
        on_plan: Callable[[Plan], None] | None = None,
    ) -> None:
        config = config or Config()
        self.device = choose_device(device)
        choose_precision(config.train.precision, self.device)
        if schedules:
            config = _with_schedules(config, schedules)
        own = Own(model, _own_data(data), graph, schedules)
        self.config, self.study, self.settings = build(config, own)
        self.precision = choose_precision(self.study.precision, self.device)[0]
        self.plan: Plan | None = None
        self._tick, self._on_plan, self._record = tick, on_plan, record_events
        self._names: list[Key] = [(run.algorithm, run.seed) for run in self.study.runs]
        self._begin()

    def _begin(self) -> None:
        self._rows: list[Row] = []
        self._accuracies: dict[int, Tensor | None] = {}
        self._recorded: dict[int, dict[int, Events]] = {}
        self._kept: dict[int, Tensor] = {}
        self._last: Measurement | None = None
        self._seconds, self._iterations, self._of_wave = 0.0, 0, 0

    def __iter__(self) -> Iterator[Update]:
        """Run the study; each evaluation of each wave is an update. ``tick`` hears how many iterations are done."""
        self._begin()
        start = time.perf_counter()
        before = 0

        def tick(iteration: int, runs: int) -> None:
            self._iterations += runs
            self._of_wave = iteration
            self._seconds = time.perf_counter() - start
            if self._tick:
                self._tick(before + iteration)

        def planned(plan: Plan) -> None:
            self.plan = plan
            if self._on_plan:
                self._on_plan(plan)

        def recorded(block: Block, wave: list[int]) -> None:
            for n, r in enumerate(wave):
                if block.k[0] == 0:
                    self._recorded[r] = {}
                self._recorded[r][int(block.k[0])] = block.events(n)

        watch = Watch(tick, recorded if self._record else Watch.block, planned)
        for found in measure(self.study, self.device, watch):
            if self._last is not None and self._last.wave != found.wave:
                before += self.study.iterations if self._last.iteration == self.study.iterations else 0
            self._rows += found.rows
            self._accuracies.update(zip(found.runs, found.accuracies, strict=True))
            self._last = found
            self._seconds = time.perf_counter() - start
            yield Update(found.iteration, self.study.iterations, found.rows, found, self._names)
            if found.iteration == self.study.iterations and len(found.wave) < len(self.study.runs):
                # The models of the next wave will take the place of these.
                self._kept |= {r: found.models(r).cpu() for r in found.wave}

    @property
    def measured(self) -> bool:
        """Whether there is anything to make a result of."""
        return bool(self._rows)

    def result(self) -> Result:
        """What has been measured so far."""
        if self._last is None:
            raise InputError("result", "nothing", "taken after at least one evaluation")
        order = {name: number for number, name in enumerate(self.config.algorithms)}
        rows = sorted(self._rows, key=lambda row: (order[str(row["algorithm"])], row["seed"], row["iteration"]))
        metrics = typed(rows)
        return Result(
            metrics,
            self._clients(),
            {setting.seed: _arrays(setting) for setting in self.settings},
            {
                "study": self._about(),
                "algorithms": summarize(metrics, self.config.eval.targets, sorted(set(self.config.eval.at_delay))),
            },
            dumps(self.config.model_dump()),
            dict(self._models()),
            dict(self._events()),
        )

    def _clients(self) -> pd.DataFrame:
        tables = []
        for r, run in enumerate(self.study.runs):
            graph, own = run.rates.graph, self._accuracies.get(r)
            tables.append(
                pd.DataFrame(
                    {
                        "algorithm": run.algorithm,
                        "seed": run.seed,
                        "client": np.arange(run.clients),
                        "name": [graph.label(i) for i in range(run.clients)],
                        "degree": graph.degree,
                        "d": run.rates.sgd(np.zeros(1, dtype=np.int64))[0],
                        "samples": run.data.sizes,
                        "labels": _labels(run.data),
                        "final_accuracy": np.nan if own is None else own.numpy(),
                    }
                )
            )
        return pd.concat(tables, ignore_index=True)

    def _models(self) -> Iterator[tuple[Key, dict[str, Tensor]]]:
        assert self._last is not None
        for r, name in enumerate(self._names):
            if r in self._kept:
                yield name, self.study.model.unflatten(self._kept[r])
            elif r in self._last.wave:
                yield name, self.study.model.unflatten(self._last.models(r).detach().cpu())

    def _events(self) -> Iterator[tuple[Key, tuple[Events, np.ndarray]]]:
        for r, blocks in sorted(self._recorded.items()):
            done = self.study.iterations if r in self._kept else self._of_wave
            v = np.concatenate([blocks[k].v for k in sorted(blocks)])[:done]
            v_hat = np.concatenate([blocks[k].v_hat for k in sorted(blocks)])[:done]
            yield self._names[r], (Events(v, v_hat), self.study.runs[r].rates.graph.edges)

    def _about(self) -> dict[str, Any]:
        """Provenance: speed, versions, device, commit, and what should be known of the data and the rates."""
        last = dict.fromkeys(self._names, 0)
        for row in self._rows:
            name = str(row["algorithm"]), int(str(row["seed"]))
            last[name] = max(last[name], int(str(row["iteration"])))
        done = min(last.values())
        return {
            "iterations": self.study.iterations,
            "iterations_done": done,
            "complete": done == self.study.iterations,
            "runs": len(self.study.runs),
            "parameters": self.study.model.parameters,
            "wall_seconds": self._seconds,
            "run_iterations_per_second": self._iterations / max(self._seconds, 1e-9),
            "precision": self.precision,
            "plan": None if self.plan is None else self.plan.report(),
            **provenance(self.device),
            "seeds": {
                str(s.seed): {
                    "clients": s.rates.graph.n,
                    "links": s.rates.graph.links,
                    **dict(zip(_CLIPPED, s.rates.clipped(self.study.iterations), strict=True)),
                    "data": {key: _plain(value) for key, value in s.data.report.items()},
                }
                for s in self.settings
            },
        }


def run(
    config: Config | None = None,
    *,
    model: Any = None,
    data: Any = None,
    graph: nx.Graph | Graph | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    device: str = "auto",
    callbacks: Sequence[Callback] = (),
    record_events: bool = False,
) -> Result:
    """Run a study and give its result.

    ``model``: an nn.Module, or a function that makes one. ``data``: a `Dataset`, a `Federation`, a pair of torch
    Datasets (train, test), or arrays (x_train, y_train, x_test, y_test). ``graph``: a NetworkX graph.
    ``schedules``: algorithms of one's own, by name, run beside those that the configuration names (alone, where it
    names none).

    >>> result = run(Config(seeds=1, algorithms=["dspodfl"], train={"iterations": 20}))
    >>> result.metrics["iteration"].tolist()
    [0, 20]
    """
    simulation = Simulation(
        config,
        model=model,
        data=data,
        graph=graph,
        schedules=schedules,
        device=device,
        record_events=record_events,
    )
    for update in simulation:
        answers = [callback(update) for callback in callbacks]
        if any(isinstance(answer, bool | np.bool_) and answer for answer in answers):
            break
    return simulation.result()


def typed(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as the table of metrics.parquet."""
    metrics = pd.DataFrame(list(rows), columns=list(COLUMNS))
    for name in COLUMNS[3:]:
        kind: Any = "int64" if name in _INTEGERS else "float64" if name != "diverged" else bool
        metrics[name] = metrics[name].astype(kind)
    return metrics


def provenance(device: torch.device) -> dict[str, Any]:
    """Where numbers come from: device, versions, commit."""
    names = ("torch", "numpy", "scipy", "networkx", "pandas", "pyarrow", "pydantic", "numba", "triton")
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"cpu ({torch.get_num_threads()} threads)",
        "versions": {
            "dspodfl": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in names if _installed(name)},
        },
        "commit": _commit(),
    }


def _with_schedules(config: Config, schedules: Mapping[str, Schedule]) -> Config:
    clash = [name for name in schedules if name in SCHEDULES]
    if clash:
        raise InputError("schedules", clash[0], f"a name of its own, not one of {', '.join(SCHEDULES)}")
    named = [*config.algorithms] if "algorithms" in config.model_fields_set else []
    return config.model_copy(update={"algorithms": [*named, *(n for n in schedules if n not in named)]})


def _own_data(data: Any) -> Dataset | Federation | None:
    if data is None or isinstance(data, Dataset | Federation):
        return data
    if isinstance(data, tuple | list) and len(data) == 2:
        return Dataset.from_torch(*data)
    if isinstance(data, tuple | list) and len(data) == 4:
        return Dataset.from_arrays(*data)
    raise InputError(
        "data", type(data).__name__, "a Dataset, a Federation, (train, test) or (x_train, y_train, x_test, y_test)"
    )


def _arrays(setting: Setting) -> dict[str, np.ndarray]:
    """What setting.npz holds of a seed; rates are those of the first iteration."""
    graph, start = setting.rates.graph, np.zeros(1, dtype=np.int64)
    out = {"edges": graph.edges, "d": setting.rates.sgd(start)[0], "b": setting.rates.link(start)[0]}
    if graph.positions is not None:
        out["positions"] = graph.positions
    if graph.labels is not None:
        out["labels"] = np.array(graph.labels)
    return out


def _labels(data: Federation) -> list[list[int]]:
    """The labels that each client holds, in order; none in a regression."""
    if data.dataset.classes is None:
        return [[] for _ in data.shards]
    client = np.repeat(np.arange(data.clients), data.sizes)
    held = np.zeros((data.clients, data.dataset.classes), dtype=bool)
    held[client, data.dataset.y_train[np.concatenate(data.shards)]] = True
    return [np.flatnonzero(row).tolist() for row in held]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _commit() -> str | None:
    """The commit of the source tree that this package runs from, if it does."""
    here = Path(__file__).resolve().parent
    try:
        if _git(here, "ls-files", "--error-unmatch", Path(__file__).name) is None:
            return None
        return _git(here, "rev-parse", "HEAD")
    except (OSError, subprocess.TimeoutExpired):
        return None


def _git(folder: Path, *words: str) -> str | None:
    """What git says, or None where it says no."""
    command = ["git", "-C", str(folder), *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    return found.stdout.strip() if found.returncode == 0 else None
