"""What fired, kept run by run while a study runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspodfl.engine import Block, Run, Stack
from dspodfl.network import Events

Fired = tuple[int, int, Events]
"""A run, an iteration, and what fired from there on."""
_BLOCK = 1000
"""Iterations whose events are drawn again at a time."""


class Recorder:
    """The events of the runs of a study, by their numbers."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[int, Events]] = {}  # run -> first iteration of a block -> its events
        self._news: list[Fired] = []

    def add(self, block: Block, wave: list[int]) -> None:
        """The events of a block; what is known of its iterations already, or of later ones, gives way to them."""
        start = int(block.k[0])
        for n, r in enumerate(wave):
            if n in block.over:  # nothing of it is drawn any more
                continue
            events = block.events(n)
            self.insert(r, start, events)
            if block.stack.runs[n].gated:
                self._news.append((r, start, events))

    def insert(self, run: int, start: int, events: Events) -> None:
        """The events of a run from an iteration on; what is known from there on gives way to them."""
        parts = self._parts.setdefault(run, {})
        while parts:
            first = next(reversed(parts))
            before = parts[first]
            if first + len(before.v) <= start:
                break
            del parts[first]
            if first < start:
                back = None if before.back is None else before.back[: start - first]
                parts[first] = Events(before.v[: start - first], before.v_hat[: start - first], back)
        parts[start] = events

    def news(self) -> list[Fired]:
        """What fired since the last call, of runs whose models decide it: it cannot be drawn again."""
        found, self._news = self._news, []
        return found

    def redraw(self, runs: Sequence[Run], wave: list[int], iterations: int) -> None:
        """What fired in the first iterations of a wave: draws are addressed, so that they can be had again."""
        for block in Stack([runs[r] for r in wave]).blocks(iterations, _BLOCK):
            self.add(block, wave)

    @property
    def runs(self) -> list[int]:
        """Those of which anything is known."""
        return sorted(self._parts)

    def events(self, run: int, iterations: int | None = None) -> Events:
        """What fired in the first iterations of a run, or all. Shapes: (iterations, clients), (iterations, links)."""
        parts = self._parts[run].values()
        v, v_hat = (np.concatenate([getattr(part, name) for part in parts])[:iterations] for name in ("v", "v_hat"))
        back = [part.back for part in parts if part.back is not None]
        return Events(v, v_hat, np.concatenate(back)[:iterations] if back else None)
