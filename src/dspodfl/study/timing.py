"""Where the time of a study goes: building, training, evaluation, writing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

STAGES = ("building", "training", "evaluation", "writing")


class Stopwatch:
    """Counts seconds by stage. Stages may be nested: what an inner one takes is not counted for the outer one.

    >>> ticks = iter(range(10))
    >>> watch = Stopwatch(clock=lambda: float(next(ticks)))
    >>> with watch.during("training"):
    ...     with watch.during("evaluation"):
    ...         pass
    >>> watch.seconds
    {'building': 0.0, 'training': 2.0, 'evaluation': 1.0, 'writing': 0.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._stages: list[str] = []
        self._since = 0.0

    def add(self, before: Mapping[str, float]) -> None:
        """Count what was spent before, by a run that is resumed."""
        for stage in STAGES:
            self._seconds[stage] += float(before.get(stage, 0.0))

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Count the time until the end of the block for a stage."""
        self._count()
        self._stages.append(stage)
        try:
            yield
        finally:
            self._count()
            self._stages.pop()

    def _count(self) -> None:
        if not self._stages:
            self._since = self._clock()
            return
        now = self._clock()
        self._seconds[self._stages[-1]] += now - self._since
        self._since = now

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage so far."""
        if self._stages:
            self._count()
        return dict(self._seconds)

    @property
    def total(self) -> float:
        """Seconds of all stages so far."""
        return sum(self.seconds.values())


def spent(seconds: Mapping[str, float]) -> str:
    """Return one line that says what the time went into, the largest part first.

    Args:
        seconds: Stage -> seconds.

    Returns:
        The line.

    >>> spent({"building": 0.02, "training": 90.0, "evaluation": 30.0, "writing": 1.25})
    'time: training 1 min 30 s (74%), evaluation 30 s (25%), writing 1.2 s (1%), building 0.0 s (0%)'
    """
    whole = sum(seconds.values()) or 1.0
    parts = sorted(seconds.items(), key=lambda item: -item[1])
    return "time: " + ", ".join(f"{stage} {in_words(value)} ({value / whole:.0%})" for stage, value in parts)


def in_words(seconds: float) -> str:
    """Return a duration in words.

    >>> in_words(0.31), in_words(42.4), in_words(754), in_words(5400), in_words(3e5)
    ('0.3 s', '42 s', '12 min 34 s', '1 h 30 min', '3 d 11 h')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left = round(seconds)
    if left >= 3600:
        left = round(left / 60) * 60
    for place, (unit, size) in enumerate(units):
        if left >= size:
            smaller, step = units[place + 1]
            rest = left % size // step
            return f"{left // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{left} s"


def roughly(seconds: float) -> str:
    """Return an estimate of a duration in words, with few digits.

    >>> roughly(42), roughly(100), roughly(754), roughly(5400), roughly(3e5)
    ('less than a minute', '2 minutes', '13 minutes', '1.5 hours', '3.5 days')
    """
    if seconds < 55:
        return "less than a minute"
    unit, size = ("minute", 60) if seconds < 5400 else ("hour", 3600) if seconds < 36 * 3600 else ("day", 86400)
    count = seconds / size
    number = f"{count:.0f}" if unit == "minute" or count >= 10 else f"{count:.1f}".removesuffix(".0")
    return f"{number} {unit}{'' if number == '1' else 's'}"
