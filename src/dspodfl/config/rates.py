"""The table ``[rates]``, its laws, and the processes by which clients and links are on or off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dspodfl.config.base import WORD, EventProbability, Positive, Seed, Table, as_list
from dspodfl.config.kinds import one_of, tables
from dspodfl.errors import Registry
from dspodfl.network import AVAILABILITY, CHANNELS, LAWS

LawName = Field(description="the law that the rates are drawn from, or how they are given")


class LawTable(Table):
    """A law of rates."""

    if TYPE_CHECKING:

        @property
        def law(self) -> str:
            """Which law it is."""
            ...


TABLES = tables(LAWS, LawTable, "law", LawName, default="beta", suffix="Law")
"""The table of each law of `dspodfl.network.LAWS`."""
globals().update({table.__name__: table for table in TABLES.values()})
BetaLaw = TABLES["beta"]

if TYPE_CHECKING:
    Law = LawTable
else:
    Law = one_of("law", *TABLES.values())


ProcessKind = Field(description="the process")


class ProcessTable(Table):
    """When clients or links are on, whatever a schedule fires."""

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """Which process it is."""
            ...


_CHURN = Registry[Any]("rates.churn.kind", AVAILABILITY.context)
for _name, _entry in AVAILABILITY.items():
    if _entry.facts.get("churn", True):
        _CHURN.register(_name, line=_entry.line, **_entry.facts)(_entry.maker)

AVAILABILITY_TABLES = tables(AVAILABILITY, ProcessTable, "kind", ProcessKind, default="", suffix="Availability")
"""The table of each process of `dspodfl.network.AVAILABILITY`."""
CHANNEL_TABLES = tables(CHANNELS, ProcessTable, "kind", ProcessKind, default="", suffix="Channel")
"""The table of each process of `dspodfl.network.CHANNELS`."""
CHURN_TABLES = tables(_CHURN, ProcessTable, "kind", ProcessKind, default="", suffix="Churn")
"""The table of each process of `dspodfl.network.AVAILABILITY` by which clients may be absent."""
for _tables in (AVAILABILITY_TABLES, CHANNEL_TABLES, CHURN_TABLES):
    globals().update({table.__name__: table for table in _tables.values()})

if TYPE_CHECKING:
    Availability = ProcessTable
    Channel = ProcessTable
    Churn = ProcessTable
else:
    Availability = one_of("kind", *AVAILABILITY_TABLES.values())
    Channel = one_of("kind", *CHANNEL_TABLES.values())
    Churn = one_of("kind", *CHURN_TABLES.values())


class Diurnal(Table):
    """How the rates of clients rise and fall over a period."""

    period: Positive = Field(description="iterations of a period", examples=[1000.0])
    amplitude: Annotated[float, Field(ge=0, le=1)] = Field(
        description="by which share d_i rises and falls", examples=[0.5]
    )
    phases: Annotated[list[Annotated[float, Field(ge=0, le=1)]] | None, BeforeValidator(as_list)] = Field(
        None, description="by which part of a period each client is ahead; drawn uniformly if absent"
    )


class Rates(Table):
    """How often clients can compute and links can carry a model."""

    sgd: Law = Field(BetaLaw(), description="the law of d_i, the rate at which client i can compute an SGD step")
    link: Law = Field(BetaLaw(), description="the law of b_ij, the rate at which link (i, j) can carry models")
    refresh: Annotated[int, Field(ge=0, lt=WORD)] = Field(
        0, description="N > 0: both are drawn again every N iterations; 0: once"
    )
    floor: EventProbability = Field(1e-6, description="drawn rates are clipped to [floor, 1]; summary.json counts them")
    growth: Literal["none", "learning_rate"] = Field(
        "none", description="learning_rate: d_i(k) = 1 − (1 − d_i) α(k)/α(0), which grows as the learning rate falls"
    )
    link_draw: Literal["symmetric", "two_sided"] = Field(
        "symmetric",
        description="symmetric: one draw per link and iteration; two_sided: both ends draw, so that a link fires with "
        "probability 1 − (1 − b)² (to explain printed delay tables of the paper)",
    )
    diurnal: Diurnal | None = Field(
        None,
        description="rates that rise and fall: d_i(k) = d_i (1 + amplitude · sin 2π(k/period + phase_i)), at most 1",
    )
    availability: Availability | None = Field(
        None, description="when clients can step, whatever an algorithm fires; absent: always"
    )
    channel: Channel | None = Field(
        None, description="when links can carry models, whatever an algorithm fires; absent: always"
    )
    churn: Churn | None = Field(
        None,
        description="when clients are there: an absent one neither steps nor exchanges, and comes back with its model; "
        "absent: always",
    )
    seed: Seed | None = Field(
        None, description="draw the rates with this seed for all seeds of the study", examples=[1]
    )
