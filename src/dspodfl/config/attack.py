"""The table ``[attack]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from dspodfl.algorithms import ATTACKS
from dspodfl.config.base import WORD, Table, as_list
from dspodfl.config.kinds import one_of, tables

AttackKind = Field(description="what attackers do")


class AttackTable(Table):
    """Clients that attack, and how."""

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """Which attack it is."""
            ...

    clients: Annotated[list[Annotated[int, Field(ge=0, lt=WORD)]], BeforeValidator(as_list), Field(min_length=1)] = (
        Field(description="the attackers, by their numbers; metrics are those of the other clients", examples=[[3, 7]])
    )


KINDS = tables(ATTACKS, AttackTable, "kind", AttackKind, default="", suffix="Attack")
"""The table of each attack of `dspodfl.algorithms.ATTACKS`."""
globals().update({table.__name__: table for table in KINDS.values()})

if TYPE_CHECKING:
    Attack = AttackTable
else:
    Attack = one_of("kind", *KINDS.values())
