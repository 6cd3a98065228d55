"""The tables ``[graph]`` and ``graph.dynamics``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_serializer, model_validator

from dspodfl.config.tables import LEAST, WORD, Chance, Count, Positive, Seed, Table, as_list, refuse
from dspodfl.errors import shown


class StaticDynamics(Table):
    """The same links always."""

    kind: Literal["static"] = "static"


class SwitchingDynamics(Table):
    """The graph of the table and then these, in turn: each for ``period`` iterations, or each from its time on."""

    kind: Literal["switching"]
    graphs: Annotated[list[Graph], BeforeValidator(as_list), Field(min_length=1)]
    period: Count | None = None
    times: Annotated[list[Annotated[int, Field(ge=0, lt=WORD)]], BeforeValidator(as_list)] | None = None

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
    """Every link exists with probability ``up``, anew at every iteration."""

    kind: Literal["bernoulli"]
    up: Chance


class MarkovDynamics(Table):
    """An absent link appears with probability ``up``, a present one fails with probability ``down``."""

    kind: Literal["markov"]
    up: Chance
    down: Chance


Speed = Annotated[float, Field(ge=LEAST, le=2)]
"""Sides of the unit square per iteration; above 2, several waypoints would be visited within one iteration."""


class WaypointDynamics(Table):
    """Clients walk to random waypoints; speed (least, most) in sides of the unit square per iteration."""

    kind: Literal["waypoint"]
    speed: Annotated[list[Speed], BeforeValidator(as_list), Field(min_length=2, max_length=2)] = [0.001, 0.01]
    pause: Annotated[float, Field(ge=0, le=1e9)] = 0.0


Dynamics = Annotated[
    StaticDynamics | SwitchingDynamics | BernoulliDynamics | MarkovDynamics | WaypointDynamics,
    Field(discriminator="kind"),
]


class GraphTable(Table):
    """What every kind of graph may have besides its own parameters."""

    weights: Literal["metropolis", "lazy_metropolis", "max_degree", "equal_neighbour"] = "metropolis"
    allow_disconnected: bool = False
    dynamics: Dynamics = StaticDynamics()
    seed: Seed | None = None


class Geometric(GraphTable):
    """Uniform in the unit square, linked within ``radius``; redrawn until connected."""

    kind: Literal["geometric"] = "geometric"
    radius: Positive = 0.4


class Ring(GraphTable):
    """A cycle."""

    kind: Literal["ring"]


class Path(GraphTable):
    """A line."""

    kind: Literal["path"]


class Star(GraphTable):
    """Client 0 in the middle."""

    kind: Literal["star"]


class Complete(GraphTable):
    """Everyone with everyone."""

    kind: Literal["complete"]


class Grid(GraphTable):
    """Rows × columns, as square as possible if not given."""

    kind: Literal["grid"]
    rows: Count | None = None
    columns: Count | None = None


class Torus(GraphTable):
    """A grid whose opposite sides are joined."""

    kind: Literal["torus"]
    rows: Count | None = None
    columns: Count | None = None


class ErdosRenyi(GraphTable):
    """Every pair with probability ``p``; redrawn until connected."""

    kind: Literal["erdos_renyi"]
    p: Chance = 0.5


class Regular(GraphTable):
    """A random graph in which every client has ``degree`` neighbours."""

    kind: Literal["regular"]
    degree: Count = 4


class SmallWorld(GraphTable):
    """Watts–Strogatz: a ring with ``neighbours`` each, links rewired with probability ``rewire``."""

    kind: Literal["small_world"]
    neighbours: Annotated[int, Field(ge=2, lt=WORD)] = 4
    rewire: Annotated[float, Field(ge=0, le=1)] = 0.1


class Exponential(GraphTable):
    """Client i with i ± 1, 2, 4, 8, … (modulo the number of clients)."""

    kind: Literal["exponential"]


class FileGraph(GraphTable):
    """An edge list (.csv, .txt, .edgelist: two columns) or GraphML (.graphml)."""

    kind: Literal["file"]
    file: str


class CustomGraph(GraphTable):
    """A NetworkX graph that was given in Python."""

    kind: Literal["custom"]


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
