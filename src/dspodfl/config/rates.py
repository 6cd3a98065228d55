"""The table ``[rates]`` and its laws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dspodfl.config.base import WORD, EventProbability, Seed, Table
from dspodfl.config.kinds import one_of, tables
from dspodfl.network import LAWS

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
    seed: Seed | None = Field(
        None, description="draw the rates with this seed for all seeds of the study", examples=[1]
    )
