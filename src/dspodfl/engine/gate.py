"""Iterations in which models decide which links fire: `dspodfl.algorithms.Step.gate` over the clients held here.

Where clients are split, who is at the other end of a link is told over the transport, as rows of models are: both ends
come to the same decision. Rows of models cross as the schedule says, whether or not the gate lets their links through.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dspodfl.engine.ends import Fired
from dspodfl.engine.events import Block
from dspodfl.engine.step import StackStep, Stage
from dspodfl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


class Gates:
    """The gates of a rule that declares them, and what has passed them.

    Args:
        stage: Makes the iterations.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def load(self, block: Block) -> None:
        """Take the events of the next block, of the clients and links held here."""
        self.passed = torch.zeros(block.active.shape, dtype=torch.bool, device=block.active.device)
        """Which links fired, of those held here; False in iterations to come. Shape: (iterations, links)."""

    def at(self, t: int) -> StackStep:
        """Return the t-th iteration of the block, which exchanges through a gate alone."""
        return _Ungated(self._stage, t, _gate_first)

    def through(self, whole: StackStep, t: int, who: Tensor) -> StackStep:
        """Return the t-th iteration with the links of which an end is in ``who``, (clients, 1); they are counted."""
        stage, block = self._stage, self._stage.block
        rows = who if stage.split.shard.is_whole else stage.mixer.with_halo(t, who.to(stage.problem.dtype))
        fires = (rows[:, 0] != 0)[stage.ends.client].view(-1, 2).any(dim=1)
        if block.new is not None:
            fires |= block.new[t]
        active = torch.where(fires, block.active[t], 0.0)
        self.passed[t] |= active != 0
        return _Gated(whole, _OneIteration(stage, t, active), partial(stage.mixer.weighted, t, active))


def _gate_first(*_: Any, **__: Any) -> Any:
    """Refuse to use links that nothing has decided about: what fires is what is counted."""
    raise InputError("the rule", "exchange without gate", "exchange over at.gate(who), since it declares gates = True")


class _Ungated(StackStep):
    """An iteration before the gate: what it exchanges would not be counted."""

    exchange = around = weights_around = _gate_first


class _OneIteration:
    """What `StackStep` asks a `Stage` for, of one iteration with fewer links."""

    def __init__(self, stage: Stage, t: int, active: Tensor) -> None:
        self.split, self.problem, self.ends, self.layout = stage.split, stage.problem, stage.ends, stage.layout
        self.block = replace(stage.block, k=stage.block.k[t : t + 1], active=active[None])
        self.v, self.lr, self.n, self.gates = stage.v[t : t + 1], stage.lr[t : t + 1], stage.n, None
        found = stage.probability
        self.probability = None if found is None else found[min(t, len(found) - 1)][None]
        self.mixer = _At(stage.mixer.with_halo, t)

    @cached_property
    def fired(self) -> Fired:
        """The ends that fire."""
        return Fired.of(self.block.active, self.ends.client)


class _At:
    """Rows of other processes at one iteration of a block, whatever its number here."""

    def __init__(self, with_halo: Callable[[int, Tensor], Tensor], t: int) -> None:
        self._with_halo, self._t = with_halo, t

    def with_halo(self, _: int, x: Tensor) -> Tensor:
        """Return an array with the rows of other processes after its own."""
        return self._with_halo(self._t, x)


class _Gated(StackStep):
    """An iteration in which fewer links fire; all else is that of the whole one."""

    def __init__(self, whole: StackStep, stage: Any, mix: Callable[..., Tensor]) -> None:
        super().__init__(stage, 0, mix)
        self._whole = whole

    @property
    def probability(self) -> Tensor:
        """With which probability each client steps, by the schedule. Shape: (clients, 1)."""
        return self._whole.probability

    @property
    def link_rate(self) -> Tensor:
        """The mean of the rates of each client's links. Shape: (clients, 1)."""
        return self._whole.link_rate

    def gradient(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Compute diag(scale) G(x). Shapes: x (clients, width), scale (clients, 1) -> (clients, width)."""
        return self._whole.gradient(x, scale)

    def gate(self, who: Tensor) -> StackStep:
        """Refuse a second gate: what the first one let through is counted already."""
        raise InputError("the rule", "gate of a gate", "one gate in an iteration")
