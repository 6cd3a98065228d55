"""The configuration, typed: each key, its default, what it may be and what it means."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model, model_validator

from dspodfl.algorithms import PAPER, schedule_problem
from dspodfl.config.algorithm import AlgorithmItem, labels_of
from dspodfl.config.attack import Attack
from dspodfl.config.base import WORD, Count, NonNegative, Positive, Seed, Table, as_list, refuse
from dspodfl.config.data import Data, FmnistMini, Partitioned, Ridge
from dspodfl.config.graph import Geometric, Graph
from dspodfl.config.learning_rate import ConstantRate, LearningRate
from dspodfl.config.model import Linear, Logistic, Model, Svm
from dspodfl.config.nodes import Nodes
from dspodfl.config.rates import Rates
from dspodfl.config.shorthand import expand
from dspodfl.errors import ConfigError
from dspodfl.network import COST_COLUMNS, COSTS, DEFAULT_DELAY, DYNAMICS, Budget, CostKind


class Clients(Table):
    """Who takes part."""

    count: Count = Field(
        10, description="m, how many; not needed where a graph or data of each client say how many there are"
    )


class _OneCost(Table):
    """What each run may spend: exactly one of these. A run ends at the first iteration at which it has spent it."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = {key: value for key, value in self if value is not None}
        if len(given) != 1:
            refuse("train.until", given, f"a table with exactly one of {', '.join(COST_COLUMNS)}")
        return self

    @property
    def budget(self) -> Budget:
        """The one that is given."""
        kind = next(kind for kind in COST_COLUMNS if getattr(self, kind) is not None)
        return Budget(kind, getattr(self, kind))


def _cost(kind: CostKind) -> tuple[Any, Any]:
    return (Count if kind.whole else Positive) | None, Field(None, description=kind.line, examples=[kind.example])


if TYPE_CHECKING:

    class Until(_OneCost):
        """As above."""

        def __getattr__(self, cost: str) -> float | None: ...
else:
    Until = create_model(
        "Until",
        __base__=_OneCost,
        __doc__=_OneCost.__doc__,
        __module__=__name__,
        **{name: _cost(kind) for name, kind in COSTS.items()},
    )


def _until(given: dict[str, Any]) -> Until | None:
    """Return the default of ``until``: a delay, unless a number of iterations was given."""
    return Until.model_validate({"delay": DEFAULT_DELAY}) if given.get("iterations") is None else None


class Train(Table):
    """How the models are updated, and until when."""

    iterations: Count | None = Field(
        None,
        description="with until: the most iterations of a run (absent: 1.5 times what it is expected to need, at most "
        "10⁶); alone: every run takes this many",
        examples=[2000],
    )
    until: Until | None = Field(
        default_factory=_until,
        description=f"what each run may spend: exactly one of {', '.join(COSTS)}. A run ends at the first iteration at "
        "which it has spent it. Absent, with no iterations given: a delay of 10,000",
    )
    batch_size: Literal["full"] | Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        16,
        description="samples per SGD step, drawn uniformly with replacement from the client's own; "
        '"full": all of them, exact gradients',
    )
    learning_rate: LearningRate = Field(
        ConstantRate(), description="the learning rate α(k); a number alone is a constant one"
    )
    order: Literal["simultaneous", "combine_then_adapt", "adapt_then_combine"] = Field(
        "simultaneous",
        description="simultaneous: Θ ← PΘ − αVG(Θ); combine_then_adapt: gradients at PΘ; "
        "adapt_then_combine: Θ ← P(Θ − αVG(Θ))",
    )
    dfedavg_period: Literal["auto"] | Count = Field(
        "auto", description='SGD iterations D between two exchanges of dfedavg; "auto": the mean of 1/d_i, rounded up'
    )
    precision: Literal["auto", "fp64", "fp32", "tf32", "bf16"] = Field(
        "auto",
        description="of parameters and gradients; auto: fp32 on a CPU, tf32 on CUDA; bf16: gradients in bfloat16, "
        "parameters in float32",
    )

    @property
    def budget(self) -> Budget:
        """What each run may spend: ``until``, or else the number of iterations."""
        if self.until is not None:
            return self.until.budget
        assert self.iterations is not None
        return Budget("iterations", self.iterations)


class Eval(Table):
    """Where and how the models are evaluated."""

    every: Count | None = Field(
        None,
        description="evaluate at each multiple of this number of iterations; absent: points, or 100 where the study "
        "has a number of iterations alone",
        examples=[100],
    )
    points: Count | None = Field(
        None,
        description="evaluate each run where its cost first reaches each of this many equal parts of its budget; "
        "absent: 40, unless every is given",
        examples=[40],
    )
    at_delay: Annotated[list[Positive], BeforeValidator(as_list)] = Field(
        [], description="also evaluate each run exactly where its cumulative raw total delay first reaches these"
    )
    targets: Annotated[list[Annotated[float, Field(gt=0, le=1)]], BeforeValidator(as_list)] = Field(
        [0.4, 0.6, 0.75], description="accuracies whose delays summary.json reports"
    )
    samples: Annotated[int, Field(ge=0, lt=WORD)] | None = Field(
        None,
        description="evaluate on this many test samples, drawn without replacement, the same in every run; absent, 0 "
        "or more than there are: all",
        examples=[1000],
    )
    clients: Annotated[int, Field(ge=0, lt=WORD)] | None = Field(
        None,
        description="evaluate this many clients of each run, drawn by seed, the same for every algorithm; absent, 0 or "
        "more than there are: all. θ̄ and consensus_error are of all clients",
        examples=[5],
    )


class Checkpoint(Table):
    """When a run that writes to a folder saves a checkpoint. None of it changes what is computed."""

    every_iterations: Annotated[int, Field(ge=0, lt=WORD)] = Field(
        0, description="save a checkpoint at each multiple of this; 0: not for this reason"
    )
    every_minutes: NonNegative = Field(
        10.0,
        description="save one after this many minutes; 0: not for this reason. Ctrl-C and SIGTERM save one in any "
        "case. every_seconds may be given in its place. On nodes half a minute, and 200 iterations, unless given",
    )
    keep: Count = Field(2, description="how many of the newest checkpoints are kept")


class Scale(Table):
    """How a study is divided over several processes. None of it changes an event."""

    split: Literal["auto", "runs", "clients"] = Field(
        "auto",
        description="what each rank gets: some runs of the study, or some clients of each run; auto: runs where there "
        "are at least as many as ranks",
    )
    timeout: Annotated[float, Field(gt=0, le=1e7)] = Field(
        300.0, description="seconds after which a rank that does not answer counts as lost"
    )


FREE = ("checkpoint", "scale", "nodes")
"""Tables that change nothing that is computed: a run can be resumed with others."""


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


def _complete(raw: Any, renamed: dict[str, str]) -> Any:
    """Return plain Python values, with the default kind where a table names none.

    Args:
        raw: The values as they were given.
        renamed: Gets the keys that are read as other ones: key of today -> key as it was written.
    """
    out = _plain(raw)
    if isinstance(out, dict):
        out = expand(out)
    for path, key, default in _DEFAULT_TAGS:
        table = out
        for part in path.split("."):
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict) and not (path == "model" and "factory" in table):
            table.setdefault(key, default)
    _rename(out, renamed)
    if isinstance(out, dict) and isinstance(out.get("data"), dict) and out["data"].get("name") == "ridge":
        out.setdefault("model", {"name": "linear"})
    return out


def _rename(raw: Any, renamed: dict[str, str]) -> None:
    """Replace keys of version 0.1 by those of today."""
    train = raw.get("train") if isinstance(raw, dict) else None
    if isinstance(train, dict) and train.get("until_delay") is not None:
        if train.get("until") is not None:
            both = f"{train['until_delay']!r}: must be left out where until is given"
            raise ConfigError([f"train.until_delay = {both}; until = {{ delay = … }} means the same"])
        train["until"] = {"delay": train.pop("until_delay")}
        renamed["train.until.delay"] = "train.until_delay"
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

    seed: Seed = Field(
        0, description="the first seed; a seed decides graph, rates, partition, initial model, minibatches and events"
    )
    seeds: Count = Field(3, description="how many seeds: seed, seed + 1, …; results are compared over them")
    algorithms: Annotated[list[AlgorithmItem], BeforeValidator(as_list), Field(min_length=1)] = Field(
        list(PAPER),
        description="what is compared: names ('dspodfl list algorithms'), a custom 'package.module:schedule', or "
        "tables { name = … } or { schedule = …, rule = … }, both with label, settings and local",
    )
    clients: Clients = Field(Clients(), description="who takes part")
    graph: Graph = Field(Geometric(), description="who is linked to whom, and with which weights models are mixed")
    rates: Rates = Field(Rates(), description="how often clients can compute and links can carry models")
    data: Data = Field(FmnistMini(), description="what the clients learn from")
    model: Model = Field(Svm(), description="what the clients train")
    attack: Attack | None = Field(
        None, description="clients that attack, and how; absent: all clients are honest. Metrics are of honest clients"
    )
    train: Train = Field(Train(), description="how the models are updated, and for how long")
    eval: Eval = Field(Eval(), description="where and how the models are evaluated")
    checkpoint: Checkpoint = Field(Checkpoint(), description="when the state of a run is saved, to resume from")
    scale: Scale = Field(Scale(), description="how a study is divided over several processes")
    nodes: Nodes | None = Field(
        None, description="how clients run as processes of their own (dspodfl node, dspodfl up); absent: its defaults"
    )

    def __init__(self, **values: Any) -> None:
        from dspodfl.config.messages import explain

        renamed: dict[str, str] = {}
        try:
            super().__init__(**_complete(values, renamed))
        except ValidationError as error:
            raise ConfigError(explain(error, renamed)) from None
        except RecursionError:
            raise ConfigError(["config: lists and tables nest too deep"]) from None

    @classmethod
    def from_toml(cls, path: str | Path) -> Config:
        """Read a configuration from a TOML file.

        Args:
            path: the file; relative paths in it are relative to its folder.

        Raises:
            ConfigError: the file is missing, is no TOML, or says something that cannot be used.
        """
        from dspodfl.config.toml import load

        return load(Path(path))

    @property
    def labels(self) -> list[str]:
        """What rows, figures and tables call the algorithms, in order."""
        return labels_of(self.algorithms)

    @model_validator(mode="after")
    def _together(self) -> Config:
        """Validate what involves several keys."""
        for given in self.algorithms:
            problem = schedule_problem(given) if isinstance(given, str) else None
            if problem:
                refuse("algorithms", given, problem)
        twice = [label for label in self.labels if self.labels.count(label) > 1]
        if twice:
            same = twice[0] not in self.algorithms
            refuse("algorithms", twice[0], "the label of one algorithm alone" if same else "named once")
        if self.seed + self.seeds > 2**63:
            refuse("seed", self.seed, "such that the last seed is below 2⁶³")
        kind = self.graph.dynamics.kind
        if DYNAMICS[kind].facts.get("positions") and self.graph.kind != "geometric":
            refuse("graph.dynamics.kind", kind, "used with kind = 'geometric', whose clients have positions")
        if self.graph.directed and self.graph.weights != "metropolis":
            allowed = "left out where graph.directed = true: weights are 1/(1 + in-degree) and 1/(1 + out-degree)"
            refuse("graph.weights", self.graph.weights, allowed)
        if self.graph.directed and self.rates.link_draw != "symmetric":
            allowed = "left out where graph.directed = true: each direction draws by itself"
            refuse("rates.link_draw", self.rates.link_draw, allowed)
        regression = isinstance(self.data, Ridge)
        if regression and isinstance(self.model, Svm | Logistic):
            refuse("model.name", self.model.name, "'linear' (or 'mlp') with the regression data 'ridge'")
        if regression and self.attack is not None and self.attack.kind == "label_flip":
            refuse("attack.kind", "label_flip", "another attack: the data 'ridge' are a regression without labels")
        if isinstance(self.model, Linear) and isinstance(self.data, Partitioned):
            allowed = f"a classifier (svm, logistic, mlp, cnn, vgg11) with data {self.data.name!r}"
            refuse("model.name", "linear", allowed)
        return self
