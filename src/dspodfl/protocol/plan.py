"""What a node knows before the first message: who it is, who its neighbours are, and which links fire when."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache

from dspodfl.errors import InputError
from dspodfl.protocol.messages import SCHEMA_BYTES, Position

_CACHED_ITERATIONS = 1024


@dataclass(frozen=True)
class Plan:
    """The run as one node sees it; both ends of a link compute the same firings from the same configuration.

    Attributes:
        id: The client of this node.
        neighbours: The clients that it has links to, in any order.
        fires: For an iteration k, the neighbours whose link fires, in the order of the graph's edges.
        iterations: K; the run ends with the model at the start of iteration K.
        phases: Exchanges in an iteration: a number, or a function of k.
        sizes: The size of a payload of each phase, in the unit of ``retain``; the last one holds for later phases.
        retain: The most that is kept for one neighbour (in bytes where ``sizes`` are bytes). An iteration and one more
            payload must fit.
        run_id: The name of the run.
        config: Dotted key and fingerprint of everything that determines draws and updates.
        schema: The hash of what is exchanged.
        keep: Checkpoints that stay on disk. A node confirms only what the oldest of them has passed, so that a damaged
            one can be replaced by the one before.
        every_iterations: A checkpoint is taken after this number of iterations; None: not by number.
        every_seconds: A checkpoint is taken after this time; None: not by time.
        patience: Seconds without progress after which a connection is closed; None: max(5 s, 20 × round trip).
        linger: Seconds for which a node that has ended waits for a neighbour that it cannot reach.
    """

    id: int
    neighbours: tuple[int, ...]
    fires: Callable[[int], Collection[int]]
    iterations: int
    phases: int | Callable[[int], int] = 1
    sizes: tuple[int, ...] = (1,)
    retain: int = 64
    run_id: str = ""
    config: tuple[tuple[str, bytes], ...] = ()
    schema: bytes = bytes(SCHEMA_BYTES)
    keep: int = 2
    every_iterations: int | None = 200
    every_seconds: float | None = 30.0
    patience: float | None = None
    linger: float = 60.0
    _fires: Callable[[int], tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.id in self.neighbours or len(set(self.neighbours)) != len(self.neighbours):
            raise InputError("neighbours", self.neighbours, f"distinct nodes other than {self.id}")
        if self.keep < 1:
            raise InputError("checkpoint.keep", self.keep, "at least 1")
        phases = len(self.sizes) if callable(self.phases) else self.phases
        sizes = [self.size(phase) for phase in range(max(phases, 1))]
        least = sum(sizes) + max(sizes)
        if self.retain < least:
            allowed = f"at least {least}, the messages of an iteration ({len(sizes)} phases) and one more"
            raise InputError("nodes.retain", self.retain, allowed)
        fires = self.fires
        object.__setattr__(self, "_fires", lru_cache(_CACHED_ITERATIONS)(lambda k: tuple(fires(k))))

    def size(self, phase: int) -> int:
        """Return the size of a payload of a phase.

        Args:
            phase: The number of the exchange in its iteration.

        Returns:
            The size, in the unit of ``retain``.
        """
        return self.sizes[phase] if phase < len(self.sizes) else self.sizes[-1]

    def firing(self, k: int) -> tuple[int, ...]:
        """Return the neighbours whose link fires at an iteration.

        Args:
            k: The iteration.

        Returns:
            The neighbours in the order of the graph's edges; nothing from the last iteration on.
        """
        return self._fires(k) if k < self.iterations else ()

    def phases_at(self, k: int) -> int:
        """Return the number of exchanges in an iteration.

        Args:
            k: The iteration.

        Returns:
            The number; it is the same for all links that fire.
        """
        return self.phases(k) if callable(self.phases) else self.phases

    def first(self, peer: int, k: int) -> Position | None:
        """Return the first position of a link at or after an iteration.

        Args:
            peer: The neighbour at the other end.
            k: The iteration to search from.

        Returns:
            The position of phase 0, or None if the link fires no more.
        """
        while k < self.iterations:
            if peer in self._fires(k):
                return (k, 0)
            k += 1
        return None

    def after(self, peer: int, position: Position) -> Position | None:
        """Return the position of a link that follows another.

        Args:
            peer: The neighbour at the other end.
            position: A position at which the link fires.

        Returns:
            The next position, or None if it was the last.
        """
        k, phase = position
        return (k, phase + 1) if phase + 1 < self.phases_at(k) else self.first(peer, k + 1)

    def exists(self, peer: int, k: int, phase: int) -> bool:
        """Return whether a link has a position.

        Args:
            peer: The neighbour at the other end.
            k: The iteration; any integer.
            phase: The exchange; any integer.

        Returns:
            Whether the link fires at ``k`` and the iteration has this phase.
        """
        return 0 <= k < self.iterations and 0 <= phase < self.phases_at(k) and peer in self._fires(k)
