"""One run: an algorithm on the graph, the rates and the data of one seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dspodfl.algorithms import Attack, LearningRate, Schedule, draws_independently
from dspodfl.errors import InputError
from dspodfl.network import Budget, Rates, WeightedTopology
from dspodfl.problem.data import Federation


@dataclass(frozen=True, eq=False)
class Run:
    """One algorithm on one seed: everything that decides its events, and the data its clients hold."""

    algorithm: str
    seed: int
    topology: WeightedTopology
    rates: Rates
    schedule: Schedule
    data: Federation
    learning_rate: LearningRate
    budget: Budget | None = None
    """What the run may spend: nothing fires any more once it has. None: no limit but iterations."""
    cap: int | None = None
    """The most iterations of the run; None: as many as the loop makes."""
    link_bytes: int = 0
    """Bytes that one use of a link carries, both ways together."""
    link_models: float = 1.0
    """Models that one use of a link carries each way: its raw transmission delay is multiplied by them."""
    inverse_cap: float | None = None
    """Steps are α times 1/p_i, at most this, where p_i is the probability that client i steps; None: steps are α."""
    need: int | None = None
    """Iterations that the run is expected to take; None: its cap."""
    attack: Attack | None = None
    """Who attacks, and how; None: all clients are honest."""
    gated: bool = False
    """Whether models decide which of the links fire that are drawn: what fires is not known without them."""

    @property
    def clients(self) -> int:
        """The number of rows, m: of the clients, and of a server where there is one, which is the last."""
        return self.rates.graph.n

    @property
    def server(self) -> bool:
        """Whether the last row is that of a server, whose model is evaluated in place of those of the clients."""
        return self.rates.graph.server

    @property
    def members(self) -> int:
        """The number of clients: of all rows but that of a server."""
        return self.rates.graph.clients

    def step_sizes(self, k: np.ndarray) -> np.ndarray:
        """Return the step sizes of the clients: α, or α/p_i by ``inverse_cap``.

        Args:
            k: The iterations.

        Returns:
            Shape (iterations, clients), or (iterations, 1) where all clients have the same.

        Raises:
            InputError: The schedule does not know with which probability clients step.
        """
        alpha = self.learning_rate(k)[:, None]
        if self.inverse_cap is None:
            return alpha
        if not draws_independently(self.schedule):
            allowed = "left out: the schedule does not know with which probability clients step (independent = True)"
            raise InputError("algorithms.settings.inverse_rates", True, f"{allowed} (of {self.algorithm!r})")
        p, _ = self.rates.marginal(*self.schedule.probabilities(k, self.rates))
        return np.asarray(alpha / np.maximum(p, 1.0 / self.inverse_cap))

    @property
    def honest(self) -> np.ndarray:
        """The clients that do not attack, (honest,), ascending; a server is none."""
        every = np.arange(self.members)
        return every if self.attack is None else np.setdiff1d(every, self.attack.clients)

    @property
    def directed(self) -> bool:
        """Whether each direction of a link fires, and is counted, by itself."""
        return self.rates.graph.directed

    @property
    def counted_links(self) -> int:
        """How many links are counted: each, or each of the two directions of each."""
        return self.rates.graph.links * (2 if self.directed else 1)

    @property
    def use_bytes(self) -> int:
        """Bytes of what is counted as one use: of a link, both ways, or of one of its directions."""
        return self.link_bytes // 2 if self.directed else self.link_bytes

    @property
    def limit(self) -> float:
        """The cost at which the run ends, in the unit of its budget."""
        return math.inf if self.budget is None else self.budget.value

    def last(self, iterations: int) -> int:
        """Return the most iterations that the run takes.

        Args:
            iterations: The number of iterations of the loop.

        Returns:
            At most ``iterations``, the cap, and a budget of iterations.
        """
        counted = self.budget is not None and self.budget.kind == "iterations"
        return min(iterations, self.cap or iterations, math.ceil(self.limit) if counted else iterations)

    @property
    def spends(self) -> bool:
        """Whether its events, and not its iterations alone, decide where the run ends."""
        return self.budget is not None and self.budget.kind != "iterations"
