"""What it takes to build a study, in bytes and seconds, from its configuration alone: before anything large starts.

Numbers are rough (links of a random graph are their expectation, bytes a link are measured), and meant to tell a
gigabyte from a terabyte and a second from an hour. What cannot fit is refused with both numbers; what is large is said.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dspodfl.algorithms import ALGORITHMS
from dspodfl.config import data as data_tables
from dspodfl.config import graph as graph_tables
from dspodfl.config import schema
from dspodfl.errors import InputError, gib, memory
from dspodfl.network import GRAPHS
from dspodfl.problem.data import DATASETS, PARTITIONS
from dspodfl.problem.models import Model

OnProgress = Callable[[str, float], None]
"""Called with what is being built, and the share of all that is to be built that is done, from 0 to 1."""

_LINK_BYTES, _LINK_SECONDS = 100, 0.5e-6
"""A link while its graph is drawn."""
_OBJECT_BYTES, _OBJECT_SECONDS = 600, 8e-6
"""A link of the kinds that NetworkX draws: objects of Python."""
_PAIR_SECONDS = 2e-8
"""A pair of clients for which a Bernoulli draw decides."""
_HELD_BYTES = 32
"""A link of a study: its ends, its rate and its weight."""
_CLIENT_BYTES, _CLIENT_SECONDS = 400, 2e-6
"""A client: its position, its rate, its samples."""
_NUMBER_SECONDS = 5e-8
"""A number of synthetic data."""
_RUN_BYTES = 4000
_SAMPLE_BYTES = 40
"""A sample while it is assigned to a client."""
_RUNNING_BYTES = 200
"""A link while its run advances: see `dspodfl.study.waves`."""
_COPIES = 3.5
"""Matrices of the size of all models, while they are trained: see `dspodfl.study.waves`."""
_MOST_NUMBERS = 2**27
"""Numbers drawn at one address."""
LARGE_BYTES, LARGE_SECONDS = 2 * 2**30, 20.0
"""From these on, a note has the numbers."""


@dataclass(frozen=True)
class Demand:
    """One thing that is built: what it is, the key that makes it large, and what it takes for all seeds."""

    what: str
    field: str
    value: object
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Footprint:
    """What it takes to build a study."""

    demands: tuple[Demand, ...]

    @property
    def bytes(self) -> float:
        """Memory, at most, in bytes."""
        return sum(demand.bytes for demand in self.demands)

    @property
    def seconds(self) -> float:
        """Time, in seconds of one processor."""
        return sum(demand.seconds for demand in self.demands)

    @property
    def largest(self) -> Demand:
        """The demand that takes most memory."""
        return max(self.demands, key=lambda demand: demand.bytes)

    def __str__(self) -> str:
        """Both numbers, and what takes most of them."""
        time = f"{self.seconds:,.0f} s" if self.seconds < 600 else f"{self.seconds / 3600:,.1f} hours"
        return f"about {gib(self.bytes)} of memory and {time}, most of it for {self.largest.what}"


def estimate(config: schema.Config, *, graph: bool = True, data: bool = True) -> Footprint:
    """Estimate what building a study takes.

    Args:
        config: the configuration, its number of clients resolved.
        graph: whether the graph is built, rather than given.
        data: whether the data are built, rather than given.

    Returns:
        The demands of it, for all seeds together.

    """
    demands = [_runs(config), *_complete_graphs(config)]
    if graph:
        demands += _graphs(config)
    if data:
        demands.append(_data(config))
    return Footprint(tuple(demands))


def check(config: schema.Config, *, graph: bool = True, data: bool = True) -> str | None:
    """Refuse a study that cannot be built in the memory that is free.

    Args:
        config: the configuration, its number of clients resolved.
        graph: whether the graph is built, rather than given.
        data: whether the data are built, rather than given.

    Returns:
        A sentence with the numbers where building takes much, else None.

    Raises:
        InputError: it does not fit; names the key that makes it large, and both numbers.

    """
    found, free = estimate(config, graph=graph, data=data), memory.available()
    if found.bytes > free:
        demand = found.largest
        raise InputError(
            demand.field,
            demand.value,
            f"smaller: {demand.what} would take about {gib(demand.bytes)} of memory, and {gib(free)} are free",
        )
    if found.bytes > max(LARGE_BYTES, 0.5 * free) or found.seconds > LARGE_SECONDS:
        return f"a large study: building it takes {found}; {gib(free)} are free"
    return None


def check_model(config: schema.Config, model: Model, links: int = 0, state: int = 0) -> None:
    """Refuse a model whose tensors cannot be drawn, or of which the copies of all clients cannot fit.

    Args:
        config: the configuration, its number of clients resolved.
        model: its model, of which no value has been drawn yet.
        links: of the graph of one run.
        state: numbers that a rule keeps beside the models of one run.

    Raises:
        InputError: names the key that makes it large, and the numbers.

    """
    field, value = _model_key(config)
    name, shape = max(model.shapes.items(), key=lambda item: item[1].numel())
    if shape.numel() > _MOST_NUMBERS:
        allowed = (
            f"smaller: tensor {name!r} would have {shape.numel():,} values, and at most {_MOST_NUMBERS:,} are drawn"
        )
        raise InputError(field, value, allowed)
    one, clients = 4.0 * model.parameters, config.clients.count
    elsewhere = torch.cuda.is_available() or int(os.environ.get("WORLD_SIZE", "1")) > 1
    need = _COPIES * one * (1 if elsewhere else clients)
    need += 4.0 * state / clients if elsewhere else 4.0 * state + _RUNNING_BYTES * links
    free = memory.available()
    if need > free:
        who = "one client" if elsewhere else f"{clients:,} clients with {links:,} links"
        allowed = (
            f"smaller: models of {model.parameters:,} parameters for {who} would take about {gib(need)} of memory, "
            f"and {gib(free)} are free"
        )
        if not elsewhere and model.parameters <= 10_000 * clients:
            field, value = "clients.count", clients
        raise InputError(field, value, allowed)


def _model_key(config: schema.Config) -> tuple[str, object]:
    for key in ("hidden", "channels"):
        if hasattr(config.model, key):
            return f"model.{key}", getattr(config.model, key)
    return "model.name", getattr(config.model, "name", getattr(config.model, "factory", None))


# --- the demands --------------------------------------------------------------------------------------------------


def _runs(config: schema.Config) -> Demand:
    runs = config.seeds * len(config.algorithms)
    size = runs * _RUN_BYTES + config.seeds * config.clients.count * _CLIENT_BYTES
    seconds = 1e-4 * runs + config.seeds * config.clients.count * _CLIENT_SECONDS
    large_seeds = config.seeds > config.clients.count
    field, value = ("seeds", config.seeds) if large_seeds else ("clients.count", config.clients.count)
    return Demand(f"{runs:,} runs of {config.clients.count:,} clients", field, value, size, seconds)


def _graphs(config: schema.Config) -> Iterator[Demand]:
    n, seeds, dynamics = config.clients.count, config.seeds, config.graph.dynamics
    turns = [graph for graphs in graph_tables.graph_lists(dynamics).values() for graph in graphs]
    total, building, seconds = 0.0, 0.0, 0.0
    for table in (config.graph, *turns):
        links = expected_links(table, n)
        facts = GRAPHS[table.kind].facts if table.kind in GRAPHS else {}
        objects = facts.get("objects", False)
        pairs = n * (n - 1) / 2 if facts.get("pairs") else 0.0
        total += links
        building = max(building, links * (_OBJECT_BYTES if objects else _LINK_BYTES))
        seconds += links * (_OBJECT_SECONDS if objects else _LINK_SECONDS) + pairs * _PAIR_SECONDS
    if dynamics.kind == "waypoint":
        demand, met = _walks(config, dynamics)
        yield demand
        total, building = max(total, met), max(building, met * _LINK_BYTES)
    held = total * (_HELD_BYTES + len(turns) + 1)
    what = f"graphs of about {total:,.0f} links a seed"
    yield Demand(what, "clients.count", n, building + seeds * held, seeds * seconds)


def _complete_graphs(config: schema.Config) -> Iterator[Demand]:
    """The complete graph of each seed, where algorithms use one; they share it."""
    n, pairs = config.clients.count, config.clients.count * (config.clients.count - 1) / 2
    users = [given for given in config.algorithms if _uses_all_pairs(given)]
    if users:
        what = f"complete graphs of {pairs:,.0f} links a seed, on which an algorithm averages"
        size = pairs * (_LINK_BYTES + config.seeds * _HELD_BYTES)
        yield Demand(what, "clients.count", n, size, config.seeds * pairs * _LINK_SECONDS)


def _uses_all_pairs(given: Any) -> bool:
    table: Any = {"name": given} if isinstance(given, str) else dict(given)
    entry = ALGORITHMS.get(table.get("name") or table.get("schedule") or "")
    return entry is not None and entry.complete is not None and entry.complete(table.get("settings") or {})


def _walks(config: schema.Config, dynamics: Any) -> tuple[Demand, float]:
    """The walks of all clients, and how many pairs may meet."""
    n, horizon = config.clients.count, float(config.train.iterations or 10**6)
    pace = sum(dynamics.speed) / 2
    legs = n * (1.0 + horizon / (_MEAN_LEG / pace + dynamics.pause))
    near = expected_links(config.graph, n)
    met = min(n * (n - 1) / 2, near * (1.0 + pace * horizon / max(getattr(config.graph, "radius", 1.0), 1e-9)))
    seconds = legs * 1e-5 + horizon * (5e-5 + near * 2e-7 + n * 1e-6)
    field, value = ("graph.dynamics.speed", dynamics.speed) if legs > horizon else ("train.iterations", int(horizon))
    what = f"walks of about {legs:,.0f} legs a seed"
    return Demand(what, field, value, config.seeds * legs * 48, config.seeds * seconds), met


_MEAN_LEG = 0.52
"""The mean distance of two uniform points of the unit square."""


def expected_links(table: Any, n: int) -> float:
    """Return the expected number of links of a graph on n clients; 0 where it is read from a file.

    >>> round(expected_links(graph_tables.KINDS["complete"](kind="complete"), 10))
    45
    """
    if table.kind not in GRAPHS:
        return 0.0  # a file is bounded by its size, and what is given is there
    entry = GRAPHS[table.kind]
    parameters = {one.name: getattr(table, one.name) for one in entry.parameters}
    return float(entry.facts["links"](n, **parameters)) if "links" in entry.facts else float(n)


def _data(config: schema.Config) -> Demand:
    table, n, seeds = config.data, config.clients.count, config.seeds
    value: object
    if isinstance(table, data_tables.Ridge):
        numbers = float(table.samples * n + table.test_samples) * table.dimension
        size, square = numbers * (4 * seeds + 24), 16.0 * table.dimension**2
        flops = numbers * table.dimension + float(table.dimension) ** 3
        sizes = {"data.samples": table.samples, "data.dimension": table.dimension, "clients.count": n}
        sizes["data.test_samples"] = table.test_samples
        field = max(sizes, key=lambda key: sizes[key])
        what = f"{numbers:,.0f} numbers of ridge data a seed"
        return Demand(what, field, sizes[field], size + square, seeds * (numbers * _NUMBER_SECONDS + 1e-9 * flops))
    if table.name == "synthetic":
        sizes = {key: getattr(table, key) for key in ("samples", "test_samples", "features", "classes")}
        samples, classes = float(sizes["samples"]), float(sizes["classes"])
        numbers = float(samples + sizes["test_samples"] + 8 * classes) * sizes["features"]
        size, seconds = numbers * 4 * (seeds + 1), seeds * numbers * _NUMBER_SECONDS
        key = max(sizes, key=lambda name: sizes[name])
        field, value = f"data.{key}", sizes[key]
    else:
        facts = DATASETS[table.name].facts if table.name in DATASETS else {}
        samples, features, width = facts.get("size", (0, 0, 0))
        size, seconds, classes = samples * features * width * 2.0, 0.0, 10.0
        field, value = "data.name", table.name
    assigned, more = _partition(getattr(table, "partition", None), n, samples, classes)
    if assigned * seeds > size:
        field, value = "clients.count", n
    what = f"{samples:,.0f} samples a seed, assigned to {n:,} clients"
    return Demand(what, field, value, size + assigned * seeds, seconds + more * seeds)


def _partition(table: Any, n: int, samples: float, classes: float) -> tuple[float, float]:
    """Bytes and seconds for assigning the samples of one seed."""
    if table is None:
        return 0.0, 0.0
    takes = PARTITIONS[table.kind].facts.get("takes")
    if takes is None:
        return samples * _SAMPLE_BYTES, samples * 1e-7
    found: tuple[float, float] = takes(n, samples, classes, **table.model_dump(exclude={"kind"}))
    return found
