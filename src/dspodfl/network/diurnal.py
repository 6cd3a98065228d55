"""Rates that rise and fall with the time of day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspodfl import rng
from dspodfl.errors import InputError
from dspodfl.rng import Stream


@dataclass(frozen=True)
class Diurnal:
    """Rates that rise and fall over a period: d_i(k) = d_i (1 + amplitude · sin 2π(k/period + phase_i)), at most 1.

    Attributes:
        period: Iterations of a period.
        amplitude: By which share d_i rises and falls.
        phases: Of each client, in periods; None: drawn uniformly.
    """

    period: float
    amplitude: float
    phases: Sequence[float] | None = None

    def factor(self, k: np.ndarray, clients: int, seed: int) -> np.ndarray:
        """Return by what d_i is multiplied.

        Args:
            k: Iterations, (iterations,).
            clients: The number of clients.
            seed: The seed of the phases.

        Returns:
            Shape (iterations, clients).

        Raises:
            InputError: There are too few or too many phases.
        """
        if self.phases is None:
            phase = rng.uniform(seed, Stream.AVAILABLE, np.arange(clients), first=2)[:, 0]
        elif len(self.phases) == clients:
            phase = np.asarray(self.phases, dtype=np.float64)
        else:
            allowed = f"one for each of the {clients} clients"
            raise InputError("rates.diurnal.phases", f"{len(self.phases)} values", allowed)
        turns = np.asarray(k)[:, None] / self.period + phase
        return np.asarray(1.0 + self.amplitude * np.sin(2.0 * np.pi * turns))
