"""Two-state Markov chains with random access: the state at any iteration is a pure function of addressed words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dspodfl import rng


@dataclass(eq=False)
class TwoState:
    """Chains that go up with probability ``up`` and down with probability ``down``, stationary from the start.

    A word w below both thresholds forces "up", above both "down": going back to the last such word (or to the
    stationary draw before k = 0) and forward again gives the state.

    Attributes:
        up: The probability that a chain that is down goes up.
        down: The probability that a chain that is up goes down; not both are 0.
        words: Iterations (iterations,) -> words (iterations, chains).
        first: The words of the stationary draw, (chains,).
    """

    up: float
    down: float
    words: Callable[[np.ndarray], np.ndarray]
    first: np.ndarray
    _known: tuple[int, np.ndarray] | None = field(default=None, repr=False)  # an iteration, and the states before it

    @property
    def share(self) -> float:
        """The stationary probability of "up"."""
        return self.up / (self.up + self.down)

    def at(self, k: np.ndarray) -> np.ndarray:
        """Return the state of every chain.

        Args:
            k: Iterations, (iterations,), in any order.

        Returns:
            Whether it is up, (iterations, chains).
        """
        k = np.asarray(k)
        first, last = int(k.min()), int(k.max())
        known = self._known
        before = known[1] if known is not None and known[0] == first else self._before(first)
        states = self._forward(before, np.arange(first, last + 1))
        self._known = last + 1, states[-1]
        return states[k - first]

    def _maps(self, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the next states from down and from up."""
        word = self.words(k)
        return rng.bernoulli(word, self.up), rng.bernoulli(word, 1.0 - self.down)

    def _forward(self, state: np.ndarray, k: np.ndarray) -> np.ndarray:
        from_down, from_up = self._maps(k)
        forced, swaps = from_down == from_up, from_down & ~from_up
        row = np.arange(1, len(k) + 1)[:, None]
        last = np.maximum.accumulate(np.where(forced, row, 0), axis=0)  # 0: none since the start
        swapped = np.concatenate([np.zeros((1, len(state)), dtype=np.int64), np.cumsum(swaps, axis=0)])
        known = np.concatenate([state[None], from_down])
        odd = (swapped[1:] - np.take_along_axis(swapped, last, axis=0)) % 2 == 1
        return np.asarray(np.take_along_axis(known, last, axis=0) ^ odd)

    def _before(self, k: int) -> np.ndarray:
        start, chunk = k, 64
        while start > 0:
            start = max(0, start - chunk)
            from_down, from_up = self._maps(np.arange(start, k))
            if (from_down == from_up).any(axis=0).all():
                break
            chunk *= 2
        state = np.asarray(rng.bernoulli(self.first, self.share))
        return self._forward(state, np.arange(start, k))[-1] if k > start else state
