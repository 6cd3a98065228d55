"""The configuration, typed: every key, its default and what it may be. Meanings are in docs/configuration.md."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from dspodfl.budget import COLUMNS as BUDGETS
from dspodfl.budget import DEFAULT_DELAY, Budget
from dspodfl.config.data_tables import Data, FmnistMini, Partitioned, Ridge
from dspodfl.config.graph_tables import Geometric, Graph, WaypointDynamics
from dspodfl.config.model_tables import Linear, Logistic, Model, Svm
from dspodfl.config.rate_tables import Rates
from dspodfl.config.tables import WORD, Count, NonNegative, Positive, Seed, Table, as_list, refuse
from dspodfl.errors import ConfigError, nearest
from dspodfl.schedule import SCHEDULES


class Clients(Table):
    """Who takes part."""

    count: Count = 10


class ConstantRate(Table):
    """α(k) = value."""

    kind: Literal["constant"] = "constant"
    value: Positive = 0.01


class DiminishingRate(Table):
    """α(k) = value / √(1 + k/gamma)."""

    kind: Literal["diminishing"]
    value: Positive = 0.01
    gamma: Positive


class StepRate(Table):
    """α(k) = value · factor^⌊k/every⌋."""

    kind: Literal["step"]
    value: Positive = 0.01
    every: Count
    factor: Annotated[float, Field(gt=0, le=1)]


LearningRate = Annotated[ConstantRate | DiminishingRate | StepRate, Field(discriminator="kind")]


class Until(Table):
    """What each run may spend: exactly one of these. A run ends at the first iteration at which it has spent it."""

    delay: Positive | None = None
    normalized_delay: Positive | None = None
    bytes: Positive | None = None
    iterations: Count | None = None

    @model_validator(mode="after")
    def _one(self) -> Until:
        given = {key: value for key, value in self if value is not None}
        if len(given) != 1:
            refuse("train.until", given, f"a table with exactly one of {', '.join(BUDGETS)}")
        return self

    @property
    def budget(self) -> Budget:
        """The one that is given."""
        kind = next(kind for kind in BUDGETS if getattr(self, kind) is not None)
        return Budget(kind, getattr(self, kind))


def _until(given: dict[str, Any]) -> Until | None:
    """What a run may spend where nothing is said: a delay, unless a number of iterations was given."""
    return Until(delay=DEFAULT_DELAY) if given.get("iterations") is None else None


class Train(Table):
    """How the models are updated, and until when."""

    iterations: Count | None = None
    until: Until | None = Field(default_factory=_until)
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    learning_rate: LearningRate = ConstantRate()
    order: Literal["simultaneous", "combine_then_adapt", "adapt_then_combine"] = "simultaneous"
    dfedavg_period: Literal["auto"] | Count = "auto"
    precision: Literal["auto", "fp64", "fp32", "tf32", "bf16"] = "auto"

    @property
    def budget(self) -> Budget:
        """What each run may spend: ``until``, or else the number of iterations."""
        if self.until is not None:
            return self.until.budget
        assert self.iterations is not None
        return Budget("iterations", self.iterations)


class Eval(Table):
    """Where and how the models are looked at."""

    every: Count | None = None
    points: Count | None = None
    at_delay: Annotated[list[Positive], BeforeValidator(as_list)] = []
    targets: Annotated[list[Annotated[float, Field(gt=0, le=1)]], BeforeValidator(as_list)] = [0.4, 0.6, 0.75]


class Checkpoint(Table):
    """When a run that writes to a folder puts away where it stands. None of it changes what is computed."""

    every_iterations: Annotated[int, Field(ge=0, lt=WORD)] = 0
    every_minutes: NonNegative = 10.0
    keep: Count = 2


class Scale(Table):
    """How a study is divided over several processes. None of it changes an event."""

    split: Literal["auto", "runs", "clients"] = "auto"
    timeout: Positive = 300.0


FREE = ("checkpoint", "scale")
"""Tables that change nothing that is computed: a run can be gone on with under others."""

ALGORITHM_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


_DEFAULT_TAGS = (
    ("graph", "kind", "geometric"),
    ("graph.dynamics", "kind", "static"),
    ("rates.sgd", "law", "beta"),
    ("rates.link", "law", "beta"),
    ("data", "name", "fmnist-mini"),
    ("data.partition", "kind", "labels"),
    ("model", "name", "svm"),
    ("train.learning_rate", "kind", "constant"),
)


def _complete(raw: Any) -> Any:
    """Plain Python values, with the default kind where a table does not name its own."""
    out = _plain(raw)
    for path, key, default in _DEFAULT_TAGS:
        table = out
        for part in path.split("."):
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict) and not (path == "model" and "factory" in table):
            table.setdefault(key, default)
    _rename(out)
    if isinstance(out, dict) and isinstance(out.get("data"), dict) and out["data"].get("name") == "ridge":
        out.setdefault("model", {"name": "linear"})
    return out


def _rename(raw: Any) -> None:
    """Read keys of earlier versions as what they are called today."""
    train = raw.get("train") if isinstance(raw, dict) else None
    if isinstance(train, dict) and train.get("until_delay") is not None:
        if train.get("until") is not None:
            both = f"{train['until_delay']!r}: must be left out where until is given"
            raise ConfigError([f"train.until_delay = {both}; until = {{ delay = … }} means the same"])
        train["until"] = {"delay": train.pop("until_delay")}
    elif isinstance(train, dict):
        train.pop("until_delay", None)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return str(value) if isinstance(value, PurePath) else value


class Config(Table):
    """A whole study. ``Config()`` is the paper's default setting on the bundled images.

    >>> Config(train={"iterations": 100}).train.iterations
    100
    """

    seed: Seed = 0
    seeds: Count = 3
    algorithms: Annotated[list[str], BeforeValidator(as_list), Field(min_length=1)] = list(SCHEDULES)
    clients: Clients = Clients()
    graph: Graph = Geometric()
    rates: Rates = Rates()
    data: Data = FmnistMini()
    model: Model = Svm()
    train: Train = Train()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    scale: Scale = Scale()

    def __init__(self, **values: Any) -> None:
        from dspodfl.config.explain import explain

        try:
            super().__init__(**_complete(values))
        except ValidationError as error:
            raise ConfigError(explain(error)) from None

    @model_validator(mode="after")
    def _together(self) -> Config:
        """What no single key can tell."""
        for name in self.algorithms:
            if name not in SCHEDULES and not ALGORITHM_FACTORY.fullmatch(name):
                known = ", ".join(SCHEDULES)
                refuse("algorithms", name, f"one of {known}, or 'package.module:schedule'{nearest(name, SCHEDULES)}")
        twice = [name for name in self.algorithms if self.algorithms.count(name) > 1]
        if twice:
            refuse("algorithms", twice[0], "named once")
        if self.seed + self.seeds > 2**63:
            refuse("seed", self.seed, "such that the last seed is below 2⁶³")
        dynamics = self.graph.dynamics
        if isinstance(dynamics, WaypointDynamics):
            if not isinstance(self.graph, Geometric):
                refuse("graph.dynamics.kind", "waypoint", "used with kind = 'geometric', whose clients have positions")
            if dynamics.speed[0] > dynamics.speed[1]:
                refuse("graph.dynamics.speed", dynamics.speed, "[least, most] with least ≤ most")
        regression = isinstance(self.data, Ridge)
        if regression and isinstance(self.model, Svm | Logistic):
            refuse("model.name", self.model.name, "'linear' (or 'mlp') with the regression data 'ridge'")
        if isinstance(self.model, Linear) and isinstance(self.data, Partitioned):
            allowed = f"a classifier (svm, logistic, mlp, cnn, vgg11) with data {self.data.name!r}"
            refuse("model.name", "linear", allowed)
        return self
