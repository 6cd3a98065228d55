"""The tables ``[graph]`` and ``graph.dynamics``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_serializer, model_validator

from dspodfl.config.base import LEAST, WORD, Count, EventProbability, Seed, Table, as_list, refuse
from dspodfl.config.kinds import one_of, tables
from dspodfl.errors import Entry, shown
from dspodfl.network import GRAPHS, WEIGHTS

GraphKind = Field(description="the kind of graph")
DynamicsKind = Field(description="how the links change over the iterations")
if TYPE_CHECKING:
    Rule = str
else:
    Rule = Literal[tuple(WEIGHTS)]


def _formula(rule: Entry[Any]) -> str:
    return (rule.maker.__doc__ or "").strip().partition("\n")[0].rstrip(".")


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
    def _specific_keys(self, graphs: list[GraphTable]) -> list[dict[str, Any]]:
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
    up: EventProbability = Field(description="the probability that a link exists", examples=[0.9])


class MarkovDynamics(Table):
    """Each link is a Markov chain that appears and fails, stationary from the start."""

    kind: Annotated[Literal["markov"], DynamicsKind]
    up: EventProbability = Field(description="the probability that an absent link appears", examples=[0.1])
    down: EventProbability = Field(description="the probability that a present link fails", examples=[0.05])


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

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """Which kind it is."""
            ...

    weights: Rule = Field(
        "metropolis",
        description="the mixing weight of a link: "
        + ", ".join(f"{name} {_formula(rule)}" for name, rule in WEIGHTS.items()),
    )
    allow_disconnected: bool = Field(
        False, description="true: take the first draw of a random graph, and any graph given, connected or not"
    )
    dynamics: Dynamics = Field(StaticDynamics(), description="how the links change over the iterations")
    seed: Seed | None = Field(
        None, description="draw one graph with this seed for all seeds of the study", examples=[1]
    )


KINDS = tables(GRAPHS, GraphTable, "kind", GraphKind, default="geometric")
"""The table of each kind of `dspodfl.network.GRAPHS`."""
globals().update({table.__name__: table for table in KINDS.values()})
Geometric = KINDS["geometric"]


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


if TYPE_CHECKING:
    Graph = GraphTable
else:
    Graph = one_of("kind", *KINDS.values(), FileGraph, CustomGraph)

SwitchingDynamics.model_rebuild()
