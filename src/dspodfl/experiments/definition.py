"""Experiments of the paper, as files: a base setting, a grid, how it is read, what is claimed and what was printed.

experiments/fmnist-labels-uniform.toml     ->     dspodfl reproduce fmnist-labels-uniform
experiments/settings/fmnist-sweep.toml            what it shares with others, and what it changes of that is its ``set``
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dspodfl.analysis import METRICS, Cost, parse
from dspodfl.config import Axis, Cell, Point, Value, assign, cells
from dspodfl.errors import ConfigError, DataError, InputError, bounded, nearest

KINDS = {
    "curves": "accuracy against delay",
    "sweep": "accuracy at a delay, or after the last iteration, against what is varied",
    "accuracy_table": "accuracy after numbers of iterations",
    "delay_table": "delay to target accuracies, split into processing and transmission",
    "tuned": "accuracy at equal costs, each algorithm with the value of an axis that other seeds choose",
}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PointOverrides(_Table):
    """A point whose keys get different values."""

    value: float | int | str
    set: dict[str, Any]


class Over(_Table):
    """What is varied: every key gets each of the values, or points that say what they set."""

    name: str
    keys: list[str] = []
    values: list[float | int | str] = []
    points: list[PointOverrides] = []
    quick: list[float | int | str] = []

    @model_validator(mode="after")
    def _one_way(self) -> Over:
        if bool(self.values) == bool(self.points):
            raise ValueError("needs values, or points, and not both")
        if self.points and self.keys:
            raise ValueError("points say themselves which keys they set")
        unknown = [value for value in self.quick if value not in self._names]
        if unknown:
            raise ValueError(f"quick has {unknown[0]!r}, which is none of the values")
        return self

    @property
    def _names(self) -> list[Value]:
        return [point.value for point in self.points] if self.points else list(self.values)

    def axis(self, quick: bool) -> Axis:
        """Return it as an axis of a grid.

        Args:
            quick: Take the values of ``quick`` alone, where there are some.

        Returns:
            The axis.
        """
        if self.points:
            axis = Axis(self.name, tuple(Point(point.value, point.set) for point in self.points))
        else:
            axis = Axis.of(self.name, self.values, self.keys)
        if not quick or not self.quick:
            return axis
        return Axis(axis.name, tuple(point for point in axis.points if point.value in self.quick))


class Read(_Table):
    """How rows are aggregated: at a delay, after numbers of iterations, or at target accuracies."""

    at_delay: float | None = None
    iterations: list[int] = []
    targets: list[float] = []


class Tune(_Table):
    """What is tuned: each algorithm takes the point of an axis that is best, at a cost, on seeds that are not read."""

    over: str
    """The axis of the grid whose point is chosen."""
    seeds: int = Field(ge=1)
    """How many seeds, after those that are read, choose."""
    at: list[str] = Field(min_length=1)
    """The costs, as ``show --at`` takes them: ``delay=2000``. Each has its own choice, and is read at it."""
    quick: list[str] = []
    """Those of --quick, which runs less far; empty: the same."""

    @model_validator(mode="after")
    def _known(self) -> Tune:
        try:
            for quick in (False, True):
                self.costs(quick)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def costs(self, quick: bool = False) -> tuple[Cost, ...]:
        """Return the costs that runs are read at.

        Args:
            quick: Whether those of ``--quick`` are meant.

        Returns:
            The costs.
        """
        return tuple(parse(text, "tune.at") for text in (self.quick if quick and self.quick else self.at))


class Quick(_Table):
    """What --quick changes."""

    set: dict[str, Any] = {}
    seeds: int = 2


class Check(_Table):
    """What is computed to check a claim, by `dspodfl.experiments.claims`."""

    kind: str
    """One of `dspodfl.experiments.claims.kinds`."""
    algorithm: str | None = None
    among: list[str] = []
    than: list[str] = []
    direction: Literal["rises", "falls"] | None = None
    axis: Literal["raw", "normalized"] = "raw"
    within: float = 0.05
    at: list[float] = []
    baseline: str = ""
    """The experiment that this one is compared with."""


class Printed(_Table):
    """A number that the paper prints."""

    algorithm: str
    iteration: int | None = None
    target: float | None = None
    accuracy: float | None = None
    processing: float | None = None
    transmission: float | None = None
    total: float | None = None


class Experiment(_Table):
    """One figure or table of the paper.

    Attributes:
        name: The name of its file.
        title: One line.
        paper: The figure or table of the paper; empty where it is none of the paper's.
        kind: How it is shown, one of `KINDS`.
        dataset: The data that it needs.
        seeds: The number of seeds.
        claim: What the paper claims there.
        explanation: Why the full run, at the seeds given here, does not bear out all that is claimed.
        base: The configuration that all cells share.
        over: What is varied.
        read: How rows are aggregated.
        tune: What is tuned on further seeds; of the kind ``tuned`` alone.
        quick: What ``--quick`` changes.
        check: What is computed to check the claim.
        printed: The numbers that the paper prints.
    """

    name: str
    title: str
    paper: str
    kind: Literal["curves", "sweep", "accuracy_table", "delay_table", "tuned"]
    dataset: str
    seeds: int = Field(ge=1)
    claim: str
    explanation: str = ""
    base: dict[str, Any]
    over: list[Over] = []
    read: Read = Read()
    tune: Tune | None = None
    quick: Quick = Quick()
    check: list[Check] = []
    printed: list[Printed] = []

    @model_validator(mode="after")
    def _readable(self) -> Experiment:
        if self.kind == "sweep" and not self.over:
            raise ValueError("a sweep needs [[over]]")
        if self.kind == "accuracy_table" and not self.read.iterations:
            raise ValueError("an accuracy_table needs read.iterations")
        if self.kind == "delay_table" and not self.read.targets:
            raise ValueError("a delay_table needs read.targets")
        if (self.kind == "tuned") != (self.tune is not None):
            raise ValueError("[tune] belongs to the kind tuned, and is needed there")
        if self.tune is not None and self.tune.over not in self.axes:
            raise ValueError(f"tune.over = {self.tune.over!r} is not the name of an [[over]]")
        return self

    @property
    def axes(self) -> list[str]:
        """The names of what is varied."""
        return [over.name for over in self.over]

    def cells(self, *, quick: bool = False, seeds: int | None = None, more: dict[str, Any] | None = None) -> list[Cell]:
        """Return the cells of its grid.

        Args:
            quick: Whether the changes and values of ``--quick`` apply.
            seeds: The number of seeds that are read; None: that of the experiment. Those that tune come on top.
            more: Further changes, by dotted keys.

        Returns:
            A cell for each combination of values.

        Raises:
            ConfigError: A configuration is not valid.
        """
        raw = copy.deepcopy(self.base)
        raw["seeds"] = (seeds or (self.quick.seeds if quick else self.seeds)) + (self.tune.seeds if self.tune else 0)
        for key, value in ((self.quick.set if quick else {}) | (more or {})).items():
            assign(raw, key, value)
        if self.read.at_delay is not None:
            also = raw.get("eval", {}).get("at_delay", [])
            assign(raw, "eval.at_delay", sorted({float(value) for value in (*also, self.read.at_delay)}))
        try:
            return cells(raw, [over.axis(quick) for over in self.over], METRICS)
        except ConfigError as error:
            raise ConfigError([f"{self.name}: {line}" for line in error.problems]) from None


def folder() -> Path:
    """Return the folder of the experiment files, which is part of the package."""
    return Path(__file__).parent / "files"


def read(path: Path) -> Experiment:
    """Read an experiment from its file, on top of the setting that it names, if it names one.

    Args:
        path: The TOML file.

    Returns:
        The experiment.

    Raises:
        ConfigError: The file cannot be read, or is not valid.
    """
    raw = _toml(path)
    if "setting" in raw:
        raw = _on_setting(raw, path)
    try:
        return Experiment(name=path.stem, **raw)
    except (ValidationError, TypeError) as error:
        lines = (
            [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()]
            if isinstance(error, ValidationError)
            else [str(error)]
        )
        raise ConfigError([f"{path}: {line}" for line in lines]) from None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return bounded.read_toml(path)
    except DataError as error:
        raise ConfigError([f"{path}: cannot be read ({error})"]) from None


def _on_setting(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The keys of a file, and of the setting that it names those that the file does not have.

    ``set`` changes keys of the base, and ``unset`` leaves them to their defaults.
    """
    name, known = raw.pop("setting"), {file.stem: file for file in (folder() / "settings").glob("*.toml")}
    if name not in known:
        raise ConfigError([f"{path}: setting = {name!r}: must be one of {', '.join(sorted(known))}"])
    if "base" in raw:
        raise ConfigError([f"{path}: base: must be left out where a setting is named; [set] changes its keys"])
    whole = _toml(known[name]) | raw
    for key in whole.pop("unset", []):
        *tables, last = key.split(".")
        table = whole["base"]
        for part in tables:
            table = table.get(part, {})
        if last not in table:
            raise ConfigError([f"{path}: unset = {key!r}: must be a key of the setting {name!r}"])
        del table[last]
    for key, value in whole.pop("set", {}).items():
        assign(whole["base"], key, value)
    return whole


def names() -> list[str]:
    """Return the names of all experiments: Fashion-MNIST before CIFAR-10, of each the tables first; then others.

    Returns:
        The names, at the end those of experiments that are none of the paper's.

    >>> names()[:2]
    ['fmnist-iid-table-accuracy', 'fmnist-noniid-table-accuracy']
    """
    return [experiment.name for experiment in _all()]


def paper_names() -> list[str]:
    """Return the names of the experiments of the paper, in the order of `names`: what ``reproduce all`` runs.

    Returns:
        The names.

    >>> len(paper_names()), "algorithms-ridge" in paper_names()
    (41, False)
    """
    return [experiment.name for experiment in _all() if experiment.paper]


def _all() -> list[Experiment]:
    found = [read(path) for path in sorted(folder().glob("*.toml"))]
    order = {"accuracy_table": 0, "delay_table": 1, "curves": 2, "sweep": 3, "tuned": 4}
    return sorted(found, key=lambda e: (not e.paper, e.dataset != "fmnist", order[e.kind], e.name))


def named(name: str) -> Experiment:
    """Return an experiment by its name.

    Args:
        name: The name of its file, without the suffix.

    Returns:
        The experiment.

    Raises:
        InputError: There is no such experiment.
        ConfigError: Its file is not valid.
    """
    from dspodfl.experiments.claims import check_kinds

    path = folder() / f"{name}.toml"
    if not path.is_file():
        known = names()
        raise InputError("name", name, f"'all' or one of {', '.join(known)}{nearest(name, known)}")
    found = read(path)
    try:
        check_kinds(found.check)  # not where all are read to be listed: the kinds need pandas
    except InputError as error:
        raise ConfigError([f"{path}: {error}"]) from None
    return found
