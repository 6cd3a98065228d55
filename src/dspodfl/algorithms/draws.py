"""Random words for a schedule that decides more than the shared draws of clients and links do.

`dspodfl.algorithms.draw` reads the streams SGD and LINK, which all methods share: that is what pairs them. A schedule
that needs further random numbers takes a parameter named ``draws``, and `make` passes a `Draws` of its method to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dspodfl import rng
from dspodfl.rng import Stream

if TYPE_CHECKING:
    from dspodfl.network import Part

PARAMETER = "draws"
"""The parameter through which a schedule receives its `Draws`. It is no setting."""


@dataclass(frozen=True)
class Draws:
    """Random words of one method, by address: (seed of the run, method, client or link, iteration, slot).

    They are independent of the words of every other method and stream. They depend on no label and on no setting, so
    that two settings of one method are paired. The same address has the same words however runs are stacked, clients
    are split and iterations are cut into blocks.

    Args:
        method: The registered name of the method, or ``"module:object"`` of a custom schedule.

    >>> from dspodfl.network import Part, generate
    >>> part = Part.whole(generate("ring", 5, 0), seed=7)
    >>> Draws("pairwise").clients(np.arange(3), part).shape, Draws("pairwise").links(np.arange(3), part, slots=2).shape
    ((3, 5, 1), (3, 5, 2))
    """

    method: str

    def clients(self, k: np.ndarray, part: Part, slots: int = 1) -> np.ndarray:
        """Return words of the clients of a part.

        Args:
            k: The iterations, (iterations,).
            part: The clients, and the seed of the run.
            slots: The number of words of each address.

        Returns:
            Integers in [0, 2³²), (iterations, clients of the part, slots).
        """
        return self._words(k, part, part.client, np.int64(0), slots)

    def links(self, k: np.ndarray, part: Part, slots: int = 1) -> np.ndarray:
        """Return words of the links of a part; the two ends of a link read the same words.

        Args:
            k: The iterations, (iterations,).
            part: The links, and the seed of the run.
            slots: The number of words of each address.

        Returns:
            Integers in [0, 2³²), (iterations, links of the part, slots).
        """
        return self._words(k, part, part.ends[:, 0], part.ends[:, 1], slots)

    def common(self, k: np.ndarray, part: Part, slots: int = 1) -> np.ndarray:
        """Return words that all clients and links of a run share.

        Args:
            k: The iterations, (iterations,).
            part: The seed of the run; which clients it holds does not matter.
            slots: The number of words of each iteration.

        Returns:
            Integers in [0, 2³²), (iterations, slots).
        """
        nobody = np.array([rng.MASK])  # i = j = 2³² − 1: neither a client, where j = 0, nor a link, where i < j
        return self._words(k, part, nobody, nobody, slots)[:, 0]

    def _words(self, k: np.ndarray, part: Part, i: np.ndarray, j: np.ndarray | np.int64, slots: int) -> np.ndarray:
        seed = rng.seed_of(part.seed, self.method)
        return np.asarray(rng.words(seed, Stream.METHOD, i, j, np.asarray(k)[:, None], slots=slots))


def reference_of(part: Any) -> str:
    """Return ``"module:object"`` of a schedule, a class of them or a function: what its draws are addressed by.

    Args:
        part: An object; one that is neither a class nor a function is called as its class is.

    Returns:
        Its module and its qualified name.

    >>> from dspodfl.algorithms import schedules
    >>> reference_of(schedules.dfedavg), reference_of(schedules.dspodfl)
    ('dspodfl.algorithms.schedules:dfedavg', 'dspodfl.algorithms.schedules:Sporadic')
    """
    while isinstance(part, partial):
        part = part.func
    named = part if hasattr(part, "__qualname__") else type(part)
    return f"{named.__module__}:{named.__qualname__}"


def bound(schedule: Any, parameters: Iterable[str], draws: Draws) -> Any:
    """Return a schedule that is called with (k, part, rates) alone: its draws are filled in, where it takes them.

    Args:
        schedule: A schedule, (k, part, rates) or (k, part, rates, draws).
        parameters: The names of its parameters.
        draws: Those of its method.
    """
    return partial(schedule, **{PARAMETER: draws}) if PARAMETER in parameters else schedule
