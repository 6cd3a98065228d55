"""The table ``train.learning_rate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dspodfl.algorithms import LEARNING_RATES
from dspodfl.config.base import Table
from dspodfl.config.kinds import one_of, tables

RateKind = Field(description="how the learning rate changes over the iterations")


class RateTable(Table):
    """A learning rate."""

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """Which one it is."""
            ...

        @property
        def value(self) -> float:
            """α(0)."""
            ...


KINDS = tables(LEARNING_RATES, RateTable, "kind", RateKind, default="constant", suffix="Rate")
"""The table of each learning rate of `dspodfl.algorithms.LEARNING_RATES`."""
globals().update({table.__name__: table for table in KINDS.values()})
ConstantRate = KINDS["constant"]

if TYPE_CHECKING:
    LearningRate = RateTable
else:
    LearningRate = one_of("kind", *KINDS.values())
