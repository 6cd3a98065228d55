"""The callback that reports the progress of downloads; in a module of its own, which imports nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

downloading: ContextVar[Callable[[str, float], None] | None] = ContextVar("downloading", default=None)
"""Called with a sentence and the share that is done while a file is downloaded; the progress that is shown sets it."""
