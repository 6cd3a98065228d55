"""Links that are good or bad as two-state Markov chains, and lose more when they are bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from dspodfl import rng
from dspodfl.errors import Doc, EventProbability
from dspodfl.network.activation import CHANNELS, Entities, States
from dspodfl.network.processes.markov import chain_of

Loss = Annotated[float, Ge(0), Le(1)]


@CHANNELS.register("gilbert_elliott")
@dataclass(frozen=True)
class GilbertElliott:
    """Each link is a Markov chain, good or bad; it carries models with probability 1 − loss of its state.

    A link that a schedule fires with probability b exchanges with b (1 − loss_good) or b (1 − loss_bad).
    """

    up: Annotated[EventProbability, Doc("the probability that a bad link becomes good", example=0.1)]
    down: Annotated[EventProbability, Doc("the probability that a good link becomes bad", example=0.05)]
    loss_good: Annotated[Loss, Doc("the probability that a good link loses an exchange")] = 0.0
    loss_bad: Annotated[Loss, Doc("the probability that a bad link loses an exchange")] = 1.0

    def states(self, at: Entities) -> States:
        """Return when each link carries models."""
        chain = chain_of(at, self.up, self.down)
        carries = chain.share * (1.0 - self.loss_good) + (1.0 - chain.share) * (1.0 - self.loss_bad)

        def on(k: np.ndarray) -> np.ndarray:
            good = chain.at(k)
            if (self.loss_good, self.loss_bad) == (0.0, 1.0):
                return good
            word = at.words(k, slots=3)[..., 2]
            return np.asarray(rng.bernoulli(word, np.where(good, 1.0 - self.loss_good, 1.0 - self.loss_bad)))

        return States(on, np.full(len(at), carries))
