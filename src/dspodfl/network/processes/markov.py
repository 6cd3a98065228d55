"""Clients that come and go as two-state Markov chains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dspodfl.errors import Doc, EventProbability
from dspodfl.network.activation import AVAILABILITY, Entities, States
from dspodfl.network.chain import TwoState


@AVAILABILITY.register("markov")
@dataclass(frozen=True)
class Markov:
    """Each client is a Markov chain that comes and goes, stationary from the start.

    It is on in a share up/(up + down) of the iterations, for 1/down of them on average, and off for 1/up.

    >>> from dspodfl.network import Graph, Rates, laws
    >>> ring, always = Graph.from_edges(3, [(0, 1), (1, 2), (0, 2)]), laws.FixedValues(1.0)
    >>> drawn = Rates(ring, 0, always, always, availability=Markov(up=0.1, down=0.3))
    >>> drawn.activation.share[0].tolist()
    [0.25, 0.25, 0.25]
    """

    up: Annotated[EventProbability, Doc("the probability that one that is off comes on", example=0.1)]
    down: Annotated[EventProbability, Doc("the probability that one that is on goes off", example=0.05)]

    def states(self, at: Entities) -> States:
        """Return when each of some clients or links is on."""
        chain = chain_of(at, self.up, self.down)
        return States(chain.at, np.full(len(at), chain.share))


def chain_of(at: Entities, up: float, down: float) -> TwoState:
    """Return the chains of clients or links: slot 0 of an iteration moves them, slot 1 at k = 0 starts them.

    Args:
        at: Their addresses.
        up: The probability that one that is off comes on.
        down: The probability that one that is on goes off.

    Returns:
        Their chains.
    """
    first = at.words(np.zeros(1, dtype=np.int64), slots=2)[0, :, 1]
    return TwoState(up, down, lambda k: at.words(k)[..., 0], first)
