"""Poisson clocks as a jump chain: an iteration is one tick of one client's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dspodfl import rng
from dspodfl.errors import Doc, Positive
from dspodfl.network.activation import AVAILABILITY, Entities, States
from dspodfl.rng import MASK, Stream


@AVAILABILITY.register("clocks", churn=False)
@dataclass(frozen=True)
class Clocks:
    """Poisson clocks, one tick an iteration: exactly one client is on, client i with probability rate_i / Σ rate.

    The jump chain of independent Poisson clocks. Where iterations are slots of equal length in which any number of
    clocks may tick, take the law ``poisson`` for ``rates.sgd``.
    """

    rate: Annotated[
        Positive | list[Positive], Doc("ticks of a clock in a unit of time: one number, or one per client", example=1.0)
    ]

    def states(self, at: Entities) -> States:
        """Return when each client is on."""
        rate = at.each(self.rate, "rate")
        share = rate / rate.sum()
        upper = np.cumsum(share)
        upper[-1] = 1.0

        def on(k: np.ndarray) -> np.ndarray:
            u = rng.uniform(at.seed, Stream.CLOCK, MASK, MASK, np.asarray(k), first=2)[..., 0]
            ticks = np.searchsorted(upper, u, side="right")
            return np.asarray(ticks[:, None] == np.arange(len(at)))

        return States(on, share)
