"""Models that could not be written, because the disk is full, wait in memory until there is room."""

from __future__ import annotations

import threading

from dspodfl.errors import DataError
from dspodfl.nodes.log import Log
from dspodfl.nodes.models_file import ModelsWriter, StoredModel

MOST_BYTES = 64 * 2**20
"""Bytes of models that wait at most; beyond that the node ends, and can be resumed from its last checkpoint."""


class ModelsBuffer:
    """Writes the models of a run, those that could not be written later.

    A checkpoint is durable only when all models before it are: `sync` writes them, or fails.

    Args:
        writer: Writes them.
        log: Where it is said that models wait.
    """

    def __init__(self, writer: ModelsWriter, log: Log) -> None:
        self._writer, self._log = writer, log
        self._waiting: list[tuple[int, StoredModel]] = []
        self._bytes = 0
        self._lock = threading.Lock()

    def append(self, iteration: int, stored: StoredModel) -> str | None:
        """Append the model of an iteration, or keep it until it can be written.

        Args:
            iteration: The number of updates made.
            stored: The model.

        Returns:
            A line for the log, or None.

        Raises:
            DataError: It cannot be written, and too much waits already.
        """
        with self._lock:
            try:
                self._write_waiting()
                return self._writer.append(iteration, stored)
            except DataError as error:
                if self._bytes > MOST_BYTES:
                    raise
                first = not self._waiting
                self._waiting.append((iteration, stored))
                self._bytes += stored.model.nbytes * (1 if stored.averaged is None else 2)
                return f"{error}; models wait in memory until there is room" if first else None

    def diverged(self, iteration: int) -> str | None:
        """Write that a model was no longer finite.

        Args:
            iteration: The number of updates made.

        Returns:
            A line for the log, or None.

        Raises:
            DataError: It cannot be written.
        """
        with self._lock:
            self._write_waiting()
            return self._writer.diverged(iteration)

    def sync(self) -> None:
        """Write all models that wait, and force all onto the device.

        Raises:
            DataError, OSError: They cannot be.
        """
        with self._lock:
            self._write_waiting()
            self._writer.sync()

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        while self._waiting:
            self._writer.append(*self._waiting[0])
            del self._waiting[0]
        self._bytes = 0
        self._log.warn("the models that waited are written", event="written")
