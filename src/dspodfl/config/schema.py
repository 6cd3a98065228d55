"""The configuration, typed: every key, its default and what it may be. Meanings are in docs/configuration.md."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

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


class Train(Table):
    """How the models are updated."""

    iterations: Count = 2000
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    learning_rate: LearningRate = ConstantRate()
    order: Literal["simultaneous", "combine_then_adapt", "adapt_then_combine"] = "simultaneous"
    dfedavg_period: Literal["auto"] | Count = "auto"
    until_delay: Positive | None = None
    precision: Literal["auto", "fp64", "fp32", "tf32", "bf16"] = "auto"


class Eval(Table):
    """Where and how the models are looked at."""

    every: Count = 100
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
    timeout: Annotated[float, Field(gt=0, le=1e7)] = 300.0


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
    if isinstance(out, dict) and isinstance(out.get("data"), dict) and out["data"].get("name") == "ridge":
        out.setdefault("model", {"name": "linear"})
    return out


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
        except RecursionError:
            raise ConfigError(["config: lists and tables nest too deep"]) from None

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
