"""From a configuration to a study: graphs, rates, data and schedules of every seed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, assert_never

import networkx as nx
import numpy as np

from dspodfl.algorithms import ALGORITHMS, Algorithm, Rule, Schedule, known_rules, make, without_code
from dspodfl.algorithms import learning_rate as lr
from dspodfl.config import AlgorithmTable, footprint, label_of, schema
from dspodfl.config import data as data_tables
from dspodfl.config import graph as graph_tables
from dspodfl.config import model as model_tables
from dspodfl.config import rates as rate_tables
from dspodfl.engine import Run, horizon
from dspodfl.errors import LEAST, DataError, InputError, user_code
from dspodfl.network import LAWS, Events, Graph, Part, generate, rates, read_graph, topology
from dspodfl.problem import data as datasets
from dspodfl.problem import models, optimum
from dspodfl.problem.data import DATASETS, PARTITIONS, Dataset, Federation, with_channel_axis
from dspodfl.study.rule_check import check_rule
from dspodfl.study.study import Study

POINTS, EVERY = 40, 100
"""How often runs are evaluated where nothing is said: along their budget, or between numbers of iterations."""

_DATA = 0.3
"""The share of building that the data of all seeds are taken to be."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What all algorithms of one seed share."""

    seed: int
    wiring: topology.Wiring
    rates: rates.Rates
    data: Federation
    caps: Mapping[str, tuple[int, int]]
    """Algorithm -> the most iterations of its run, and how many it is expected to take."""


@dataclass(frozen=True, eq=False)
class Own:
    """What a user brings in Python instead of naming it in the configuration."""

    model: Any = None
    data: Dataset | Federation | None = None
    graph: nx.Graph | Graph | None = None
    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)
    """By their labels, which the configuration has in their places."""
    code: bool = True
    """Whether code that the configuration names is imported; if not, something built in stands for it."""


def build(
    config: schema.Config,
    own: Own | None = None,
    library: dict[str, Dataset] | None = None,
    on_progress: footprint.OnProgress | None = None,
) -> tuple[schema.Config, Study, list[Setting]]:
    """The resolved configuration, the study and what its seeds share.

    Datasets found in a ``library`` are taken from there, and others put there: studies that share one can be stacked
    on one copy of their samples. ``on_progress`` is called with what is being built, and the share that is done. What
    does not fit into memory is an `InputError` before anything is built; what is large is a warning with numbers.
    """
    own = own or Own()
    config = _resolve(config, own)
    _announce(config, own, on_progress)
    shared = _Shared(config, own, {} if library is None else library, on_progress)
    rate = _learning_rate(config)
    seeds = range(config.seed, config.seed + config.seeds)
    data = {seed: shared.data(seed) for seed in seeds}
    model = _model(config, data[config.seed], own)
    parts = {label_of(given): _parts(given, config, own) for given in config.algorithms}
    schedules = {label: schedule for label, (schedule, _) in parts.items()}
    for label, (_, rule) in parts.items():
        check_rule(label, rule, model.parameters)
    settings = [shared.setting(seed, rate, data[seed], schedules, model) for seed in seeds]
    if own.code or not user_names(config, algorithms=False):
        footprint.check_model(config, model, settings[0].rates.graph.links)
        _check_optimum(model, data[config.seed])
        settings = _with_optimum(model, settings)
    runs = [
        replace(made, budget=config.train.budget, cap=s.caps[name][0], need=s.caps[name][1])
        for name, fire in schedules.items()
        for s in settings
        for made in [Run(name, s.seed, s.wiring, s.rates, fire, s.data, rate, link_bytes=_link_bytes(model))]
    ]
    rules = [rule for _, rule in parts.values() for _ in settings]
    study = Study(
        runs,
        model,
        rules,
        config.train.batch_size,
        config.eval.every,
        config.eval.points,
        sorted(set(config.eval.at_delay)),
        config.train.precision,
        eval_samples=config.eval.samples or 0,
        eval_clients=config.eval.clients or 0,
    )
    return config, study, settings


def _link_bytes(model: models.Model) -> int:
    """What one use of a link carries: a model of float32 each way."""
    return 2 * 4 * model.parameters


class LargeStudyWarning(UserWarning):
    """Building a study takes much memory or time."""


def _announce(config: schema.Config, own: Own, on_progress: footprint.OnProgress | None) -> None:
    """Refuse what does not fit, and say what is large, before anything is built."""
    note = footprint.check(config, graph=own.graph is None, data=own.data is None)
    if note is not None and on_progress is not None:
        on_progress(note, 0.0)
    elif note is not None:
        warnings.warn(note, LargeStudyWarning, stacklevel=3)


def user_names(config: schema.Config, *, algorithms: bool = True) -> list[tuple[str, str]]:
    """Which code of the user a configuration names: keys and values."""
    factory = [("model.factory", config.model.factory)] if isinstance(config.model, model_tables.Factory) else []
    own: list[tuple[str, str]] = []
    for given in config.algorithms:
        schedule = given if isinstance(given, str) else given.name or given.schedule or ""
        rule = given.rule if isinstance(given, AlgorithmTable) else None
        own += [("algorithms", schedule)] if schedule not in ALGORITHMS else []
        own += [("algorithms.rule", rule)] if rule is not None and rule not in known_rules() else []
    return factory + (own if algorithms else [])


def _resolve(config: schema.Config, own: Own) -> schema.Config:
    """Say in the configuration what was brought in Python, and how many clients that makes."""
    changes: dict[str, Any] = {}
    if own.data is not None:
        dealt = isinstance(own.data, Federation)
        partition = None if dealt else getattr(config.data, "partition", data_tables.Labels())
        changes["data"] = data_tables.CustomData(name="custom", partition=partition, seed=config.data.seed)
        if isinstance(config.data, data_tables.Ridge):
            changes["model"] = _penalized(config.model, config.data.l2)
    elif isinstance(config.data, data_tables.CustomData):
        raise InputError("data.name", "custom", "given with the data themselves: run(config, data=…)")
    if own.model is not None:
        kind = own.model if hasattr(own.model, "__qualname__") else type(own.model)
        name = f"{kind.__module__}:{kind.__qualname__}"
        given = config.model if isinstance(config.model, model_tables.Factory) else model_tables.Factory(factory=name)
        changes["model"] = given.model_copy(update={"factory": name})
    counts = {}
    if own.graph is not None:
        if isinstance(config.graph.dynamics, graph_tables.WaypointDynamics):
            raise InputError("graph.dynamics.kind", "waypoint", "another kind with a custom graph")
        common = {key: getattr(config.graph, key) for key in graph_tables.GraphTable.model_fields}
        changes["graph"] = graph_tables.CustomGraph(kind="custom", **common)
        counts["the graph given"] = len(own.graph) if isinstance(own.graph, nx.Graph) else own.graph.n
    elif isinstance(config.graph, graph_tables.FileGraph):
        counts[config.graph.file] = read_graph(config.graph.file).n
    if isinstance(own.data, Federation):
        counts["the shards given"] = own.data.clients
    elif own.data is None and isinstance(config.data, data_tables.Npz):
        counts[config.data.path] = _npz(config.data.path).clients
    explicit = "clients" in config.model_fields_set and "count" in config.clients.model_fields_set
    count = config.clients.count if explicit or not counts else next(iter(counts.values()))
    for source, number in counts.items():
        if number != count:
            raise InputError("clients.count", count, f"{number}, the number of clients in {source}")
    changes["clients"] = schema.Clients(count=count)
    changes["eval"] = _evaluated(config)
    return config.model_copy(update=changes)


def _evaluated(config: schema.Config) -> schema.Eval:
    """Where models are evaluated if nothing is said: along the budget, or, with iterations alone, every so often."""
    given = config.eval
    if given.every is not None or given.points is not None:
        return given
    key = {"points": POINTS} if config.train.until is not None else {"every": EVERY}
    return given.model_copy(update=key)


def _penalized(model: Any, l2: float) -> Any:
    """Give a linear model the penalty of the ridge problem that the configuration names."""
    if not isinstance(model, model_tables.Linear):
        return model
    if model.l2 not in (None, l2):
        raise InputError("model.l2", model.l2, f"left out: the penalty is data.l2 = {l2}")
    return model.model_copy(update={"l2": l2})


class _Shared:
    """What the seeds of a study have in common, loaded once."""

    def __init__(
        self,
        config: schema.Config,
        own: Own,
        library: dict[str, Dataset],
        on_progress: footprint.OnProgress | None = None,
    ) -> None:
        self.config, self.own, self.n = config, own, config.clients.count
        self._on_progress = on_progress
        self._fixed: Dataset | Federation | None = own.data
        table = config.data
        if own.data is None and isinstance(table, data_tables.Npz):
            self._fixed = _npz(table.path)
        elif own.data is None and table.name in DATASETS and not DATASETS[table.name].takes("seed"):
            name = f"{table.name} {parameters}" if (parameters := _parameters(table)) else table.name
            if name not in library:
                library[name] = DATASETS[table.name].make({"root": None, "progress": True}, parameters)
            self._fixed = library[name]
        if self._fixed is not None and isinstance(config.model, model_tables.Cnn | model_tables.Vgg11):
            self._fixed = with_channel_axis(self._fixed)

    def _tell(self, seed: int, what: str, share: float) -> None:
        """Say what of a seed is being built; a share of what there is to do for it is done.

        The data of all seeds come first, then the graph and the rates of each.
        """
        if self._on_progress:
            done = (seed - self.config.seed + share) / self.config.seeds
            whole = _DATA * done if what == "data" else _DATA + (1 - _DATA) * done
            self._on_progress(f"seed {seed}: {what}", whole)

    def setting(
        self,
        seed: int,
        rate: lr.LearningRate,
        data: Federation,
        schedules: Mapping[str, Schedule],
        model: models.Model,
    ) -> Setting:
        """Graph, rates, data and caps of one seed."""
        config, self._seed = self.config, seed
        base = self._graph(config.graph, seed if config.graph.seed is None else config.graph.seed)

        def caps(wiring: topology.Wiring, drawn: rates.Rates) -> dict[str, tuple[int, int]]:
            found = {}
            for name, fire in schedules.items():
                if name not in ALGORITHMS:
                    _check_schedule(name, fire, drawn, seed)
                run = Run(name, seed, wiring, drawn, fire, data, rate, link_bytes=_link_bytes(model))
                found[name] = horizon.cap(run, config.train.budget, config.train.iterations)
            return found

        walk = 0
        if isinstance(config.graph.dynamics, graph_tables.WaypointDynamics):
            # Which links clients that walk will have depends on how long they walk: that is known from the first ones.
            still = topology.Wiring(topology.Static(base), config.graph.weights)
            found = caps(still, self._rates(seed, base, rate))
            walk = max(most for most, _ in found.values())
        wiring = self._wiring(base, seed if config.graph.seed is None else config.graph.seed, walk)
        self._tell(seed, "rates", 0.5)
        drawn = self._rates(seed, wiring.topology.graph, rate)
        return Setting(seed, wiring, drawn, data, found if walk else caps(wiring, drawn))

    def _rates(self, seed: int, graph: Graph, rate: lr.LearningRate) -> rates.Rates:
        table = self.config.rates
        drawn = rates.Rates(
            graph,
            seed if table.seed is None else table.seed,
            _law(table.sgd, graph, "rates.sgd"),
            _law(table.link, graph, "rates.link"),
            refresh=table.refresh,
            floor=table.floor,
            growth=rate if table.growth == "learning_rate" else None,
            two_sided=table.link_draw == "two_sided",
        )
        start = np.zeros(1, dtype=np.int64)
        for name, law, values in (("sgd", table.sgd, drawn.sgd(start)), ("link", table.link, drawn.link(start))):
            if not (values >= LEAST).all():  # NaN is not either
                allowed = "a law whose values are finite and at least 2⁻³² ≈ 2.3e-10: nothing rarer is ever drawn"
                raise InputError(f"rates.{name}", law.model_dump(), allowed)
        return drawn

    def _graph(self, table: graph_tables.GraphTable, seed: int, *, turn: int = 0) -> Graph:
        if turn == 0 and self.own.graph is not None:
            given = self.own.graph
            return Graph.from_networkx(given) if isinstance(given, nx.Graph) else given
        if isinstance(table, graph_tables.CustomGraph):
            raise InputError("graph.kind", "custom", "given with the graph itself: run(config, graph=…)")
        if isinstance(table, graph_tables.FileGraph):
            graph = read_graph(table.file)
            if graph.n != self.n:
                raise InputError("graph.file", table.file, f"a graph of {self.n} clients (it has {graph.n})")
            return graph
        common = set(graph_tables.GraphTable.model_fields) | {"kind"}
        parameters = {key: value for key, value in table.model_dump().items() if key not in common}
        allow = self.config.graph.allow_disconnected

        def on_draw(attempt: int) -> None:
            many = f", draw {attempt + 1:,} (those before are not connected)" if attempt else ""
            self._tell(self._seed, f"graph{many}", 0.0)

        return generate(table.kind, self.n, seed, allow_disconnected=allow, entity=turn, on_draw=on_draw, **parameters)

    def _wiring(self, base: Graph, seed: int, walk: int) -> topology.Wiring:
        """The changing graph that begins with one; ``walk`` is for how many iterations clients move."""
        table = self.config.graph
        dynamics = table.dynamics
        made: topology.Topology
        match dynamics:
            case graph_tables.StaticDynamics():
                made = topology.Static(base)
            case graph_tables.SwitchingDynamics():
                turns = [base, *(self._graph(g, seed, turn=t) for t, g in enumerate(dynamics.graphs, 1))]
                made = topology.Switching(turns, period=dynamics.period, times=dynamics.times)
            case graph_tables.BernoulliDynamics():
                made = topology.Flicker(base, seed, dynamics.up)
            case graph_tables.MarkovDynamics():
                made = topology.Markov(base, seed, dynamics.up, dynamics.down)
            case graph_tables.WaypointDynamics():
                radius = getattr(table, "radius", 0.0)
                speed = (dynamics.speed[0], dynamics.speed[1])
                walking = partial(self._tell, self._seed, "walks of the clients")
                made = topology.Waypoint(base, seed, radius, walk, speed, dynamics.pause, lambda s: walking(0.5 * s))
            case _:
                assert_never(dynamics)
        if not table.allow_disconnected and not made.moving and not made.graph.connected:
            raise InputError(
                "graph",
                f"{made.graph.links} links on {self.n} clients",
                "connected, or graph.allow_disconnected = true",
            )
        return topology.Wiring(made, table.weights)

    def data(self, seed: int) -> Federation:
        """What the clients of one seed hold."""
        self._tell(seed, "data", 0.0)
        seed = seed if self.config.data.seed is None else self.config.data.seed
        table = self.config.data
        if isinstance(self._fixed, Federation):
            return self._fixed
        if isinstance(table, data_tables.Ridge):
            made = datasets.ridge(seed, self.n, **table.model_dump(exclude={"name", "seed"}))
            known = isinstance(self.config.model, model_tables.Linear)  # the minimizer is that of the linear model
            return made if known else replace(made, optimum=None)
        dataset = self._fixed
        if dataset is None:
            made_for = {"seed": seed, "root": None, "progress": True}
            dataset = DATASETS[table.name].make(made_for, _parameters(table))
        assert isinstance(dataset, Dataset)
        assert isinstance(table, data_tables.Partitioned | data_tables.CustomData)
        return deal(dataset, table.partition, self.n, seed)


def _parameters(table: data_tables.DataTable) -> dict[str, Any]:
    """What a table says of its dataset alone."""
    return table.model_dump(exclude={"name", *data_tables.Partitioned.model_fields})


def _npz(path: str) -> Federation:
    try:
        return datasets.load_npz(path)
    except DataError as error:
        raise InputError("data.path", path, f"a folder of .npz files, one a client, and test.npz ({error})") from error


def _check_optimum(model: models.Model, federation: Federation) -> None:
    best = federation.optimum
    if best is not None and best.shape != (model.parameters,):
        allowed = f"({model.parameters},), one number for each parameter of {model.name}"
        raise InputError("data.optimum", f"shape {best.shape}", allowed)


def _with_optimum(model: models.Model, settings: list[Setting]) -> list[Setting]:
    """The same with θ* wherever it is not known yet and can be found; seeds that share their data share it."""
    found: dict[int, Federation] = {}
    for setting in settings:
        data = setting.data
        if id(data) not in found:
            best = optimum.minimizer(model, data) if data.optimum is None else None
            found[id(data)] = data if best is None else replace(data, optimum=best)
    return [replace(setting, data=found[id(setting.data)]) for setting in settings]


def deal(dataset: Dataset, partition: Any, clients: int, seed: int) -> Federation:
    """A dataset dealt to clients as a partition table says."""
    context = {"y": dataset.y_train, "clients": clients, "seed": seed}
    parts = PARTITIONS[partition.kind].make(context, partition.model_dump(exclude={"kind"}))
    return Federation(dataset, parts.shards, parts.report() | dict(dataset.about))


def _law(table: rate_tables.LawTable, graph: Graph, field: str) -> rates.Law | rates.Given:
    return LAWS[table.law].make({"field": field, "graph": graph}, table.model_dump(exclude={"law"}))


def _learning_rate(config: schema.Config) -> lr.LearningRate:
    table = config.train.learning_rate
    return lr.LEARNING_RATES[table.kind].make({}, table.model_dump(exclude={"kind"}))


def _parts(given: str | AlgorithmTable, config: schema.Config, own: Own) -> tuple[Schedule, Rule]:
    """The schedule and the rule of an algorithm of the configuration."""
    label = label_of(given)
    if label in own.algorithms:
        value = own.algorithms[label]
    else:
        value = as_algorithm(given, config)
        value = value if own.code else without_code(value)
    return make(value, value_of=partial(_value_of, config))


def as_algorithm(given: str | AlgorithmTable, config: schema.Config) -> Algorithm:
    """Return an algorithm of a configuration as a value; where it names no rule, the rule is ``train.order``."""
    table: dict[str, Any] = (
        {"name" if given in ALGORITHMS else "schedule": given} if isinstance(given, str) else dict(given)
    )
    name, rule = table.get("name"), table.get("rule")
    if rule is None and name is not None and ALGORITHMS[name].rule is not None:
        rule = name
    schedule, settings = name or table["schedule"], table.get("settings", {})
    return Algorithm(label_of(given), schedule=schedule, rule=rule or config.train.order, settings=settings)


def _value_of(config: schema.Config, key: str) -> Any:
    """The value of a dotted key of a configuration."""
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


def _check_schedule(name: str, found: Any, drawn: rates.Rates, seed: int) -> None:
    """Try a custom schedule on the first iteration, so that no run begins with one that is not valid."""
    allowed = "a Schedule, a callable (k, part, rates) -> Events"
    if not callable(found):
        raise InputError("algorithms", name, f"{allowed}, not a {type(found).__name__}")
    graph = drawn.graph
    with user_code.guarded("algorithms", name, f"{allowed}; it"):
        events = found(np.zeros(1, dtype=np.int64), Part.whole(graph, seed), drawn)
    if not isinstance(events, Events):
        raise InputError("algorithms", name, f"{allowed}; it gave a {type(events).__name__}")
    for what, given, count in (("v", events.v, graph.n), ("v_hat", events.v_hat, graph.links)):
        shape, dtype = np.shape(given), getattr(given, "dtype", type(given).__name__)
        if shape != (1, count) or dtype != np.bool_:
            wanted = f"{what} of shape (iterations, {count}), bool"
            raise InputError("algorithms", name, f"{allowed} with {wanted}; at k = [0] it gave {shape}, {dtype}")


def _model(config: schema.Config, federation: Federation, own: Own) -> models.Model:
    table, dataset = config.model, federation.dataset
    shape, outputs, regression = dataset.input_shape, dataset.outputs, dataset.classes is None
    if isinstance(table, model_tables.Factory) and not own.code:
        user_code.check_name(table.factory, "model.factory")
        return models.build("linear" if regression else "svm", shape, outputs)
    if isinstance(table, model_tables.Factory):
        made = own.model if own.model is not None else models.load_factory(table.factory)
        return models.from_module(
            made,
            shape,
            outputs,
            loss=table.loss,
            regression=regression,
            l2=table.l2,
            name=table.factory,
            arguments=table.arguments or None,
        )
    if regression and isinstance(table, model_tables.Svm | model_tables.Logistic):
        raise InputError("model.name", table.name, "linear, mlp or a factory: the data are a regression problem")
    if not regression and isinstance(table, model_tables.Linear):
        raise InputError("model.name", "linear", "a classifier: the data have classes")
    parameters = table.model_dump(exclude={"name"}, exclude_none=True)
    if isinstance(config.data, data_tables.Ridge):
        if isinstance(table, model_tables.Linear) and table.l2 not in (None, config.data.l2):
            raise InputError("model.l2", table.l2, f"left out: the penalty is data.l2 = {config.data.l2}")
        if isinstance(table, model_tables.Linear):
            parameters["l2"] = config.data.l2
    return models.build(table.name, shape, outputs, **parameters)
