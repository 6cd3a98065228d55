"""What a user gives in Python instead of naming it in the configuration, and the configuration that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from dspodfl.algorithms import ALGORITHMS, Algorithm, known_rules
from dspodfl.config import AlgorithmTable, schema
from dspodfl.config import data as data_tables
from dspodfl.config import graph as graph_tables
from dspodfl.config import model as model_tables
from dspodfl.errors import DataError, InputError
from dspodfl.network import DYNAMICS, Graph, read_graph
from dspodfl.problem import data as datasets
from dspodfl.problem.data import Dataset, Federation

POINTS, EVERY = 40, 100
"""How often runs are evaluated where nothing is said: along their budget, or between numbers of iterations."""


@dataclass(frozen=True, eq=False)
class UserInputs:
    """What a user gives in Python instead of naming it in the configuration.

    Args:
        model: An nn.Module, or a function that makes one.
        data: A dataset that is partitioned, or the shards of the clients.
        graph: The graph of the clients.
        algorithms: By their labels, which the configuration has in their places.
        code: Whether code that the configuration names is imported; if not, something built in is used instead.
    """

    model: Any = None
    data: Dataset | Federation | None = None
    graph: nx.Graph | Graph | None = None
    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)
    code: bool = True


def user_names(config: schema.Config, *, algorithms: bool = True) -> list[tuple[str, str]]:
    """Return which code of the user a configuration names.

    Args:
        config: The configuration.
        algorithms: Whether schedules and rules count, too; otherwise only the model.

    Returns:
        The key and the name of each, as ``("model.factory", "module:object")``.
    """
    factory = [("model.factory", config.model.factory)] if isinstance(config.model, model_tables.Factory) else []
    custom: list[tuple[str, str]] = []
    for given in config.algorithms:
        schedule = given if isinstance(given, str) else given.name or given.schedule or ""
        rule = given.rule if isinstance(given, AlgorithmTable) else None
        custom += [("algorithms", schedule)] if schedule not in ALGORITHMS else []
        custom += [("algorithms.rule", rule)] if rule is not None and rule not in known_rules() else []
    return factory + (custom if algorithms else [])


def resolve(config: schema.Config, inputs: UserInputs) -> schema.Config:
    """Return the configuration that says what was given in Python, and how many clients that makes.

    Args:
        config: As it was given.
        inputs: What was given in Python.

    Returns:
        The configuration with every value that follows from the inputs.

    Raises:
        InputError: The numbers of clients differ, or a key cannot be used with what was given.
    """
    changes: dict[str, Any] = {}
    if inputs.data is not None:
        dealt = isinstance(inputs.data, Federation)
        partition = None if dealt else getattr(config.data, "partition", data_tables.Labels())
        changes["data"] = data_tables.CustomData(name="custom", partition=partition, seed=config.data.seed)
        if isinstance(config.data, data_tables.Ridge):
            changes["model"] = _penalized(config.model, config.data.l2)
    elif isinstance(config.data, data_tables.CustomData):
        raise InputError("data.name", "custom", "given with the data themselves: run(config, data=…)")
    if inputs.model is not None:
        kind = inputs.model if hasattr(inputs.model, "__qualname__") else type(inputs.model)
        name = f"{kind.__module__}:{kind.__qualname__}"
        given = config.model if isinstance(config.model, model_tables.Factory) else model_tables.Factory(factory=name)
        changes["model"] = given.model_copy(update={"factory": name})
    if inputs.graph is not None:
        if DYNAMICS[config.graph.dynamics.kind].facts.get("positions"):
            raise InputError("graph.dynamics.kind", config.graph.dynamics.kind, "another kind with a custom graph")
        common = {key: getattr(config.graph, key) for key in graph_tables.GraphTable.model_fields}
        changes["graph"] = graph_tables.CustomGraph(kind="custom", **common)
    changes["clients"] = schema.Clients(count=_count(config, inputs))
    changes["eval"] = _evaluated(config)
    return config.model_copy(update=changes)


def _count(config: schema.Config, inputs: UserInputs) -> int:
    """Return the number of clients, on which all sources agree."""
    counts = {}
    if inputs.graph is not None:
        counts["the graph given"] = len(inputs.graph) if isinstance(inputs.graph, nx.Graph) else inputs.graph.n
    elif isinstance(config.graph, graph_tables.FileGraph):
        counts[config.graph.file] = read_graph(config.graph.file, directed=config.graph.directed).n
    if isinstance(inputs.data, Federation):
        counts["the shards given"] = inputs.data.clients
    elif inputs.data is None and isinstance(config.data, data_tables.Npz):
        counts[config.data.path] = load_npz(config.data.path).clients
    explicit = "clients" in config.model_fields_set and "count" in config.clients.model_fields_set
    count = config.clients.count if explicit or not counts else next(iter(counts.values()))
    for source, number in counts.items():
        if number != count:
            raise InputError("clients.count", count, f"{number}, the number of clients in {source}")
    return count


def _evaluated(config: schema.Config) -> schema.Eval:
    """Return where models are evaluated: if nothing is said, along the budget, or at multiples of iterations."""
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


def load_npz(path: str) -> Federation:
    """Read the shards of the clients from a folder.

    Args:
        path: A folder of .npz files, one a client, and test.npz.

    Raises:
        InputError: The folder cannot be read.
    """
    try:
        return datasets.load_npz(path)
    except DataError as error:
        raise InputError("data.path", path, f"a folder of .npz files, one a client, and test.npz ({error})") from error
