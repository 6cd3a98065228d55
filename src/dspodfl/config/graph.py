"""The tables ``[graph]`` and ``graph.dynamics``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PlainSerializer, model_validator

from dspodfl import network
from dspodfl.config.base import Seed, Table, refuse
from dspodfl.config.kinds import one_of, tables
from dspodfl.errors import Entry, InputError
from dspodfl.network import DYNAMICS, GRAPHS, WEIGHTS

GraphKind = Field(description="the kind of graph")
DynamicsKind = Field(description="how the links change over the iterations")
if TYPE_CHECKING:
    Rule = str
else:
    Rule = Literal[tuple(WEIGHTS)]


def _formula(rule: Entry[Any]) -> str:
    return (rule.maker.__doc__ or "").strip().partition("\n")[0].rstrip(".")


class DynamicsTable(Table):
    """How the links change over the iterations."""

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """Which kind it is."""
            ...

    @model_validator(mode="after")
    def _together(self) -> DynamicsTable:
        """Refuse what no single key can tell."""
        entry = DYNAMICS[self.kind]
        for name, graphs in graph_lists(self).items():
            for place, graph in enumerate(graphs):
                for key in sorted(graph.model_fields_set & set(GraphTable.model_fields)):
                    field, value = f"graph.dynamics.{name}[{place}].{key}", graph.model_dump(mode="json")[key]
                    refuse(field, value, "left out: it belongs to the graph table itself, not to one of its turns")
        if "check" in entry.facts:
            try:
                entry.facts["check"](**{one.name: getattr(self, one.name) for one in entry.parameters})
            except InputError as error:
                refuse(error.field, error.value, error.allowed)
        return self


def graph_lists(table: DynamicsTable) -> dict[str, list[GraphTable]]:
    """Return the graphs that a table of dynamics names besides that of the graph table, by their key."""
    values = {name: getattr(table, name) for name in type(table).model_fields}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, list) and any(isinstance(one, GraphTable) for one in value)
    }


def _own_keys(graphs: list[GraphTable]) -> list[dict[str, Any]]:
    return [graph.model_dump(exclude=set(GraphTable.model_fields)) for graph in graphs]


DYNAMICS_TABLES = tables(
    DYNAMICS,
    DynamicsTable,
    "kind",
    DynamicsKind,
    default="static",
    suffix="Dynamics",
    types={list[network.Graph]: Annotated[list["Graph"], PlainSerializer(_own_keys)]},
)
"""The table of each kind of `dspodfl.network.DYNAMICS`."""
globals().update({table.__name__: table for table in DYNAMICS_TABLES.values()})
StaticDynamics = DYNAMICS_TABLES["static"]

if TYPE_CHECKING:
    Dynamics = DynamicsTable
else:
    Dynamics = one_of("kind", *DYNAMICS_TABLES.values())


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
    directed: bool = Field(
        False,
        description="true: each direction of a link fires by itself, with its own b; files list arcs, from and to; for "
        "methods that say so ('dspodfl list algorithms'), with weights 1/(1 + in-degree) and 1/(1 + out-degree)",
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

for _table in DYNAMICS_TABLES.values():
    _table.model_rebuild()  # those with lists of graphs
