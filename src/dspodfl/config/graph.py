"""The tables ``[graph]`` and ``graph.dynamics``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_serializer, model_validator

from dspodfl.config.base import LEAST, WORD, Chance, Count, Positive, Seed, Table, as_list, refuse
from dspodfl.errors import shown

GraphKind = Field(description="the kind of graph")
DynamicsKind = Field(description="how the links change over the iterations")
ROWS = "number of rows, a divisor of the number of clients; as square as possible if not given"
COLUMNS = "number of columns, as for rows"


class StaticDynamics(Table):
    """The same links always."""

    kind: Annotated[Literal["static"], DynamicsKind] = "static"


class SwitchingDynamics(Table):
    """The graph of the table, then those of the list, in a cycle or each from its own iteration on."""

    kind: Annotated[Literal["switching"], DynamicsKind]
    graphs: Annotated[list[Graph], BeforeValidator(as_list), Field(min_length=1)] = Field(
        description="the graphs that follow that of the table, each a table with its kind and its own keys",
        examples=[[{"kind": "ring"}]],
    )
    period: Count | None = Field(
        None,
        description="iterations that each graph is used for, in a cycle; give either period or times",
        examples=[100],
    )
    times: Annotated[list[Annotated[int, Field(ge=0, lt=WORD)]], BeforeValidator(as_list)] | None = Field(
        None,
        description="the iteration from which each graph is used: one entry per graph, the first 0; instead of period",
    )

    @field_serializer("graphs")
    def _own_keys(self, graphs: list[GraphTable]) -> list[dict[str, Any]]:
        return [graph.model_dump(exclude=set(GraphTable.model_fields)) for graph in graphs]

    @model_validator(mode="after")
    def _plain(self) -> SwitchingDynamics:
        for turn, graph in enumerate(self.graphs):
            for key in sorted(graph.model_fields_set & set(GraphTable.model_fields)):
                field, value = f"graph.dynamics.graphs[{turn}].{key}", graph.model_dump(mode="json")[key]
                refuse(field, value, "left out: it belongs to the graph table itself, not to one of its turns")
        if (self.period is None) == (self.times is None):
            other = f"times (= {shown(self.times, 80)})"
            refuse("graph.dynamics.period", self.period, f"given, or else {other}, and not both")
        return self


class BernoulliDynamics(Table):
    """Each link exists with probability ``up``, drawn again at each iteration."""

    kind: Annotated[Literal["bernoulli"], DynamicsKind]
    up: Chance = Field(description="the probability that a link exists", examples=[0.9])


class MarkovDynamics(Table):
    """Each link is a Markov chain that appears and fails, stationary from the start."""

    kind: Annotated[Literal["markov"], DynamicsKind]
    up: Chance = Field(description="the probability that an absent link appears", examples=[0.1])
    down: Chance = Field(description="the probability that a present link fails", examples=[0.05])


Speed = Annotated[float, Field(ge=LEAST, le=2)]
"""Sides of the unit square per iteration; above 2, several waypoints would be visited within one iteration."""


class WaypointDynamics(Table):
    """Clients of a geometric graph walk to random waypoints; links are the pairs within ``radius``."""

    kind: Annotated[Literal["waypoint"], DynamicsKind]
    speed: Annotated[list[Speed], BeforeValidator(as_list), Field(min_length=2, max_length=2)] = Field(
        [0.001, 0.01],
        description="the least and the greatest speed, in sides of the unit square per iteration",
    )
    pause: Annotated[float, Field(ge=0, le=1e9)] = Field(
        0.0, description="iterations that a client rests at each waypoint"
    )


Dynamics = Annotated[
    StaticDynamics | SwitchingDynamics | BernoulliDynamics | MarkovDynamics | WaypointDynamics,
    Field(discriminator="kind"),
]


class GraphTable(Table):
    """What every kind of graph may have besides its own parameters."""

    weights: Literal["metropolis", "lazy_metropolis", "max_degree", "equal_neighbour"] = Field(
        "metropolis",
        description="the mixing weight of a link: metropolis 1/(1 + max(|N_i|, |N_j|)), lazy_metropolis "
        "1/(2 max(|N_i|, |N_j|)), max_degree 1/(1 + max_i |N_i|), equal_neighbour 1/(1 + |N_i|) "
        "where all degrees are equal",
    )
    allow_disconnected: bool = Field(
        False, description="true: take the first draw of a random graph, and any graph given, connected or not"
    )
    dynamics: Dynamics = Field(StaticDynamics(), description="how the links change over the iterations")
    seed: Seed | None = Field(
        None, description="draw one graph with this seed for all seeds of the study", examples=[1]
    )


class Geometric(GraphTable):
    """Clients uniform in the unit square, linked within ``radius``; redrawn until connected."""

    kind: Annotated[Literal["geometric"], GraphKind] = "geometric"
    radius: Positive = Field(0.4, description="the distance within which two clients are linked")


class Ring(GraphTable):
    """A cycle."""

    kind: Annotated[Literal["ring"], GraphKind]


class Path(GraphTable):
    """A line."""

    kind: Annotated[Literal["path"], GraphKind]


class Star(GraphTable):
    """Client 0 in the middle."""

    kind: Annotated[Literal["star"], GraphKind]


class Complete(GraphTable):
    """Each client linked to every other."""

    kind: Annotated[Literal["complete"], GraphKind]


class Grid(GraphTable):
    """A grid of rows × columns."""

    kind: Annotated[Literal["grid"], GraphKind]
    rows: Count | None = Field(None, description=ROWS, examples=[2])
    columns: Count | None = Field(None, description=COLUMNS, examples=[5])


class Torus(GraphTable):
    """A grid whose opposite sides are joined."""

    kind: Annotated[Literal["torus"], GraphKind]
    rows: Count | None = Field(None, description=ROWS, examples=[2])
    columns: Count | None = Field(None, description=COLUMNS, examples=[5])


class ErdosRenyi(GraphTable):
    """Each pair linked with probability ``p``; redrawn until connected."""

    kind: Annotated[Literal["erdos_renyi"], GraphKind]
    p: Chance = Field(0.5, description="the probability that a pair is linked")


class Regular(GraphTable):
    """Random, each client with ``degree`` neighbours; redrawn until connected."""

    kind: Annotated[Literal["regular"], GraphKind]
    degree: Count = Field(4, description="neighbours of each client; degree × clients must be even")


class SmallWorld(GraphTable):
    """Watts–Strogatz: a ring whose links are rewired at random; redrawn until connected."""

    kind: Annotated[Literal["small_world"], GraphKind]
    neighbours: Annotated[int, Field(ge=2, lt=WORD)] = Field(
        4, description="neighbours of each client in the ring, even"
    )
    rewire: Annotated[float, Field(ge=0, le=1)] = Field(0.1, description="the probability that a link is rewired")


class Exponential(GraphTable):
    """Client i linked to i ± 1, 2, 4, 8, … (modulo the number of clients)."""

    kind: Annotated[Literal["exponential"], GraphKind]


class FileGraph(GraphTable):
    """A graph from a file; the names of the clients are kept as labels."""

    kind: Annotated[Literal["file"], GraphKind]
    file: str = Field(
        description="an edge list (two columns), an adjacency matrix (.csv, a row per client) or GraphML (.graphml)",
        examples=["edges.csv"],
    )


class CustomGraph(GraphTable):
    """A graph that was given in Python: ``run(config, graph=…)``."""

    kind: Annotated[Literal["custom"], GraphKind]


Graph = Annotated[
    Geometric
    | Ring
    | Path
    | Star
    | Complete
    | Grid
    | Torus
    | ErdosRenyi
    | Regular
    | SmallWorld
    | Exponential
    | FileGraph
    | CustomGraph,
    Field(discriminator="kind"),
]


SwitchingDynamics.model_rebuild()
