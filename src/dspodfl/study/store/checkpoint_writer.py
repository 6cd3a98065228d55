"""When a checkpoint is due, and how it is written: what the folders of runs and of grids have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from dspodfl.engine import LocalTransport, Transport
from dspodfl.errors import DataError
from dspodfl.study.store.checkpoint import Checkpoint, CheckpointStore
from dspodfl.study.store.folder import Folder

_SHORTEST, _LONGEST = 0.1, 0.5
"""Seconds between two places where a session can be stopped, about."""


class CheckpointWriter:
    """Write checkpoints of a session into a folder, when they are due.

    Args:
        folder: The folder; its checkpoints are in ``checkpoints/``.
        clock: Seconds that never go back.
        kind: What the folder is written as.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic, kind: str = "run") -> None:
        self.folder, self.store = folder, CheckpointStore(folder)
        self._files = Folder(folder, kind)
        self._every_iterations, self._every_minutes, self._clock = 0, 0.0, clock
        self._saved, self._since, self._stride = clock(), clock(), 1
        self._place: tuple[Any, ...] | None = None  # finished waves, iteration, runs behind of the last checkpoint

    def when(self, every_iterations: int, every_minutes: float, keep: int) -> None:
        """Set when a checkpoint is due.

        Args:
            every_iterations: After this number of iterations; 0: never for that reason.
            every_minutes: After this time; 0: never for that reason.
            keep: The number of checkpoints that are kept.
        """
        self._every_iterations, self._every_minutes, self.store.keep = every_iterations, every_minutes, keep

    def reach(self, iteration: int) -> int:
        """Return how far a session advances before it checks whether to stop: a fraction of a second.

        Args:
            iteration: Where it is now.

        Returns:
            The iteration of the next check.
        """
        self._since = self._clock()
        ahead = iteration + self._stride
        if self._every_iterations:
            ahead = min(ahead, iteration - iteration % self._every_iterations + self._every_iterations)
        return ahead

    def due(self, iteration: int, paused: bool) -> bool:
        """Return whether a checkpoint is due.

        Args:
            iteration: Where the session is now.
            paused: Whether it paused there, instead of evaluating.

        Returns:
            Whether it is due.
        """
        now = self._clock()
        if paused:
            took = now - self._since
            self._stride = min(2**20, 2 * self._stride) if took < _SHORTEST else self._stride
            self._stride = max(1, self._stride // 2) if took > _LONGEST else self._stride
        by_count = self._every_iterations > 0 and iteration > 0 and iteration % self._every_iterations == 0
        return by_count or 0 < self._every_minutes * 60 <= now - self._saved

    def save(self, made: Checkpoint, team: Transport | None = None) -> None:
        """Write a checkpoint, once a place; all ranks call it together, and each writes its own shards.

        Args:
            made: The checkpoint.
            team: The ranks; default: this process alone.

        Raises:
            DataError: A file could not be written; the last checkpoint stays as it is.
        """
        place = len(made.plan.done), made.iteration, made.about.get("behind")
        if (team or LocalTransport()).broadcast(place == self._place):
            return
        self.store.files = self._files
        try:
            self.store.save(made, team)
        except OSError as error:
            self._fail("a checkpoint", error)
        self._saved, self._place = self._clock(), place

    def _fail(self, what: str, error: OSError) -> NoReturn:
        how = "the last checkpoint is as it was" if self.store.committed() else "there is no checkpoint yet"
        raise DataError(f"{self.folder}: {what} could not be written ({error}); {how}") from error
