"""From a configuration to the network of one seed: its graph, how it changes, and the rates of clients and links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from dspodfl.algorithms import LearningRate, Schedule, own_graph, own_topology
from dspodfl.config import graph as graph_tables
from dspodfl.config import rates as rate_tables
from dspodfl.config import schema
from dspodfl.errors import LEAST, InputError, Registry, user_code
from dspodfl.network import (
    AVAILABILITY,
    CHANNELS,
    DYNAMICS,
    LAWS,
    Diurnal,
    Graph,
    Process,
    Static,
    WeightedTopology,
    generate,
    laws,
    rates,
    read_graph,
)

Tell = Callable[[str, float], None]
"""Called with what is being built, and the share of it that is done."""


@dataclass(frozen=True, eq=False)
class Network:
    """The graph of one seed with its weights, and the rates of its clients and links."""

    topology: WeightedTopology
    rates: rates.Rates


def build_network(
    config: schema.Config,
    seed: int,
    learning_rate: LearningRate,
    *,
    graph: nx.Graph | Graph | None = None,
    duration: Callable[[Network], int],
    tell: Tell = lambda what, share: None,
) -> Network:
    """Build the network of one seed.

    Args:
        config: The resolved configuration.
        seed: The seed, where ``graph.seed`` and ``rates.seed`` say no other.
        learning_rate: The step size, with which rates may grow.
        graph: The graph that a user gave; None: as the configuration says.
        duration: Called where links depend on the length of the runs, with the network at the first iteration; returns
            the iterations of the longest run.
        tell: Called with what is being built.

    Returns:
        The network.

    Raises:
        InputError: The graph is not connected, or a rate is too small or not finite.
    """
    maker = _Maker(config, seed, graph, tell)
    base = maker.base()
    longest = 0
    if DYNAMICS[config.graph.dynamics.kind].takes("horizon"):
        # Which links there will be depends on how long the runs are: that is estimated from the first links.
        static = WeightedTopology(Static(base), config.graph.weights)
        longest = duration(Network(static, maker.rates(base, learning_rate)))
    topology = maker.topology(base, longest)
    tell("rates", 0.5)
    return Network(topology, maker.rates(topology.graph, learning_rate))


def own_networks(
    config: schema.Config,
    seed: int,
    learning_rate: LearningRate,
    shared: Network,
    schedules: Mapping[str, Schedule],
) -> dict[str, Network]:
    """Build the networks of the algorithms that run on a graph, or with weights, of their own.

    The rates of clients, and of links that both graphs have, are those of the shared network: they are drawn at the
    same addresses. Algorithms on the same graph share its rates.

    Args:
        config: The resolved configuration.
        seed: The seed, where ``rates.seed`` says no other.
        learning_rate: The step size, with which rates may grow.
        shared: The network of the study.
        schedules: Algorithm -> its schedule.

    Returns:
        Algorithm -> its network, of those that have their own.

    Raises:
        InputError: An algorithm needs a graph of its own where links come and go, or where their rates are listed.
    """
    maker = _Maker(config, seed, None, lambda what, share: None)
    drawn = {shared.rates.graph.edges.tobytes(): shared.rates}
    found: dict[str, Network] = {}
    for label, schedule in schedules.items():
        with user_code.guarded("algorithms", label, "run on a graph and with weights of its own, but it"):
            unweighted = own_graph(schedule, shared.rates.graph)
        its = shared.rates
        if unweighted is not None:
            _check_own_graph(config, label, server=unweighted.graph.server)
            key = unweighted.graph.edges.tobytes()
            if key not in drawn:
                drawn[key] = maker.rates(unweighted.graph, learning_rate)
            its = drawn[key]
        with user_code.guarded("algorithms", label, "run on a graph and with weights of its own, but it"):
            topology = own_topology(schedule, shared.topology, its, seed, unweighted)
        if topology is not shared.topology:
            found[label] = Network(topology, its)
    return found


def _check_own_graph(config: schema.Config, label: str, *, server: bool) -> None:
    """Refuse an algorithm with a graph of its own where it has no meaning: links that come and go, listed rates.

    Links to a server are none of [graph], and stay whatever becomes of those.
    """
    kind, law = config.graph.dynamics.kind, config.rates.link.law
    if kind != "static" and not server:
        allowed = f"another algorithm where graph.dynamics.kind = {kind!r}: it runs on a graph of its own, which stays"
        raise InputError("algorithms", label, allowed)
    if law in ("list", "csv"):
        allowed = f"another algorithm where rates.link.law = {law!r}: it uses links that are not in [graph]"
        raise InputError("algorithms", label, allowed)


@dataclass(frozen=True, eq=False)
class _Maker:
    """Makes the parts of a network from the tables of a configuration."""

    config: schema.Config
    seed: int
    given: nx.Graph | Graph | None
    tell: Tell

    @property
    def _graph_seed(self) -> int:
        return self.seed if self.config.graph.seed is None else self.config.graph.seed

    def base(self) -> Graph:
        """Return the graph that is given, or that the configuration names."""
        directed = self.config.graph.directed
        graph = self._graph(self.config.graph) if self.given is None else self.given
        graph = Graph.from_networkx(graph, directed=directed) if isinstance(graph, nx.Graph) else graph
        if graph.directed and not directed:
            raise InputError("graph", "a directed graph", "undirected, or used with graph.directed = true")
        return graph.both_ways() if directed else graph

    def _graph(self, table: graph_tables.GraphTable, *, turn: int = 0) -> Graph:
        """Return the graph of a table; ``turn`` is its place among those that a network switches between."""
        n = self.config.clients.count
        if isinstance(table, graph_tables.CustomGraph):
            raise InputError("graph.kind", "custom", "given with the graph itself: run(config, graph=…)")
        if isinstance(table, graph_tables.FileGraph):
            graph = read_graph(table.file, directed=self.config.graph.directed)
            if graph.n != n:
                raise InputError("graph.file", table.file, f"a graph of {n} clients (it has {graph.n})")
            return graph
        common = set(graph_tables.GraphTable.model_fields) | {"kind"}
        parameters = {key: value for key, value in table.model_dump().items() if key not in common}
        allow = self.config.graph.allow_disconnected

        def on_draw(attempt: int) -> None:
            many = f", draw {attempt + 1:,} (those before are not connected)" if attempt else ""
            self.tell(f"graph{many}", 0.0)

        seed = self._graph_seed
        return generate(table.kind, n, seed, allow_disconnected=allow, entity=turn, on_draw=on_draw, **parameters)

    def topology(self, base: Graph, longest: int) -> WeightedTopology:
        """Return the topology that begins with a graph; ``longest`` is the number of iterations of the longest run."""
        table, seed = self.config.graph, self._graph_seed
        parameters = {key: value for key, value in table.dynamics if key != "kind"}
        for key, graphs in graph_tables.graph_lists(table.dynamics).items():
            parameters[key] = [self._graph(graph, turn=turn) for turn, graph in enumerate(graphs, 1)]
        context = {
            "graph": base,
            "seed": seed,
            "radius": getattr(table, "radius", 0.0),
            "horizon": longest,
            "on_progress": lambda share: self.tell("walks of the clients", 0.5 * share),
        }
        made = DYNAMICS[table.dynamics.kind].make(context, parameters)
        if not table.allow_disconnected and not made.time_varying_weights and not made.graph.connected:
            ways = "strongly connected (each client reaches each other along arcs)" if table.directed else "connected"
            raise InputError(
                "graph",
                f"{made.graph.links} links on {self.config.clients.count} clients",
                f"{ways}, or graph.allow_disconnected = true",
            )
        return WeightedTopology(made, table.weights)

    def rates(self, graph: Graph, learning_rate: LearningRate) -> rates.Rates:
        """Return the rates of the clients and links of a graph."""
        table = self.config.rates
        drawn = rates.Rates(
            graph,
            self.seed if table.seed is None else table.seed,
            _law(table.sgd, graph, "rates.sgd"),
            _law(table.link, graph, "rates.link"),
            refresh=table.refresh,
            floor=table.floor,
            growth=learning_rate if table.growth == "learning_rate" else None,
            two_sided=table.link_draw == "two_sided",
            diurnal=None if table.diurnal is None else Diurnal(**table.diurnal.model_dump()),
            availability=_process(AVAILABILITY, table.availability, graph, "rates.availability"),
            channel=_process(CHANNELS, table.channel, graph, "rates.channel"),
            churn=_process(AVAILABILITY, table.churn, graph, "rates.churn"),
        )
        start = np.zeros(1, dtype=np.int64)
        links = drawn.link(start)
        if graph.arcs is not None:
            links = np.stack([links[0], drawn.back(start)[0]], axis=1)[graph.arcs]
        for name, law, values in (("sgd", table.sgd, drawn.sgd(start)), ("link", table.link, links)):
            if not (values >= LEAST).all():  # NaN is not either
                allowed = "a law whose values are finite and at least 2⁻³² ≈ 2.3e-10: nothing rarer is ever drawn"
                raise InputError(f"rates.{name}", law.model_dump(), allowed)
        if drawn.activation is not None:
            drawn.activation.on(start)  # values for each client or link are as many as there are
        return drawn


def _law(table: rate_tables.LawTable, graph: Graph, field: str) -> laws.Distribution | laws.FixedValues:
    return LAWS[table.law].make({"field": field, "graph": graph}, table.model_dump(exclude={"law"}))


def _process(
    registry: Registry[Any], table: rate_tables.ProcessTable | None, graph: Graph, field: str
) -> Process | None:
    if table is None:
        return None
    parameters = table.model_dump(exclude={"kind"})
    made: Process = registry[table.kind].make({"graph": graph, "field": field}, parameters)
    return made
