"""Clients or links that are on for a part of every period, such as by day."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from dspodfl import rng
from dspodfl.errors import WORD, Doc, Probability
from dspodfl.network.activation import AVAILABILITY, CHANNELS, Entities, States

_ROUNDING = 1e-9


@AVAILABILITY.register("cyclic")
@CHANNELS.register("cyclic")
@dataclass(frozen=True)
class Cyclic:
    """On for the first part of every period, each from its own phase on: while (k + phase) mod period < share · period.

    Which iterations are on is known from the phases alone: events are not independent over time.
    """

    period: Annotated[int, Ge(1), Lt(2**31), Doc("iterations of a period", example=100)]
    share: Annotated[Probability, Doc("the part of a period that is on", example=0.5)]
    phases: Annotated[
        list[Annotated[int, Ge(0), Lt(WORD)]] | None,
        Doc("iterations by which each is ahead: one entry per client or link; drawn uniformly if absent"),
    ] = None

    def states(self, at: Entities) -> States:
        """Return when each of some clients or links is on."""
        length = math.ceil(self.share * self.period - _ROUNDING)
        if self.phases is None:
            word = at.words(np.zeros(1, dtype=np.int64), slots=3)[0, :, 2]
            phase = np.asarray(rng.index_below(word, self.period))
        else:
            phase = at.each(self.phases, "phases").astype(np.int64)
        return States(
            lambda k: (np.asarray(k)[:, None] + phase) % self.period < length,
            np.full(len(at), length / self.period),
        )
