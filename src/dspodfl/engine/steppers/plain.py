"""One iteration at a time, by the rule, with PyTorch's operations: for every model, rule and device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dspodfl.algorithms import Rule, gates_links
from dspodfl.engine.ends import unaliased
from dspodfl.engine.events import Block
from dspodfl.engine.exchange import Split
from dspodfl.engine.gate import Gates
from dspodfl.engine.mixer import HaloMixer, Mixer
from dspodfl.engine.state import unfrozen
from dspodfl.engine.step import Stage
from dspodfl.problem import Problem


class Plain:
    """Calls the rule, iteration by iteration.

    Args:
        split: The clients held here, and the transport to the others.
        problem: Data and model of these clients.
        rule: What is called.
        theta: The initial models, packed, (clients, width).
        state: What the rule carries, where a run is resumed; None: it begins.
        mixes_first: Whether the rule mixes the models as they are before the iteration: rows of other processes
            are then requested before the gradients are computed.
    """

    rests, idles = False, True

    def __init__(
        self,
        split: Split,
        problem: Problem,
        rule: Rule,
        theta: Tensor,
        state: Any = None,
        *,
        mixes_first: bool = False,
    ) -> None:
        self.theta, self._rule, self._rows = theta, rule, split.shard.rows
        self.state: Any = unaliased(rule.init(theta, len(split.shard.link)) if state is None else state)
        self._mixer: Mixer | HaloMixer
        if split.shard.is_whole:
            self._mixer = Mixer(split.shard.stack, problem.device, problem.dtype)
        else:
            alone = split.shard.stack.attack is None and not gates_links(rule)
            self._mixer = HaloMixer(split, theta, rule, mixes_first=mixes_first, alone=alone)
        self._stage = Stage(split, problem, rule, self._mixer)
        if gates_links(rule):
            self._stage.gates = Gates(self._stage)
        self._alive: Tensor | None = None

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        if block.into is None:  # on directed graphs rules exchange, and never mix
            self._mixer.load(block.active)
        self._stage.load(block)

    def advance(self, first: int, last: int) -> None:
        """Make iterations first … last − 1 of the block."""
        self._mixer.limit(last)
        for t in range(first, last):
            new, state = self._rule.step(self.theta, self.state, self._stage.at(t, self.theta))
            self._mixer.end()
            self.theta, self.state = unfrozen(self._alive, (new, state), (self.theta, self.state))

    def passed(self, first: int, last: int) -> Tensor:
        """Return which links of the shard fired at iterations first … last − 1, where the rule decides it."""
        found: Tensor = self._stage.gates.passed[first:last]
        return found

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        if self._alive is None:
            self._alive = torch.ones(len(self.theta), dtype=torch.bool, device=self.theta.device)
        self._alive[self._rows[run]] = False
