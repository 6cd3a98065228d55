"""Linear models on the CPU, by methods beyond the paper's: blocks of iterations in machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.cpu import methods
from dspodfl.algorithms import CORRECTED, CORRECTED_BY_LINK, TRACKING, Rule, fused_kernel
from dspodfl.engine import compiled_linear
from dspodfl.engine.events import Block
from dspodfl.engine.exchange import Split
from dspodfl.engine.steppers.compiled import BUSY, SINGLE, in_huge_pages
from dspodfl.problem import Problem


class CompiledMethod:
    """A rule that declares a kernel, for linear models whose clients are all here: the rule itself is its reference.

    What it carries has the form that the rule gives it, so that either goes on from what the other has saved.

    Args:
        split: The clients held here: all.
        problem: Data and model of these clients.
        rule: The rule, with its settings.
        theta: The initial models, packed, (clients, width).
        state: What the rule carries, where a run is resumed; None: it begins.
    """

    rests, idles = False, False

    @staticmethod
    def available(split: Split, problem: Problem, rule: Rule) -> bool:
        """Whether there is compiled code for a rule, a problem and a shard."""
        known = fused_kernel(rule) in (TRACKING, CORRECTED, CORRECTED_BY_LINK)
        return known and split.shard.is_whole and not split.shard.stack.directed and compiled_linear.available(problem)

    def __init__(self, split: Split, problem: Problem, rule: Rule, theta: Tensor, state: Any = None) -> None:
        self._problem, self._shard, self._kernel, self._rule = problem, split.shard, fused_kernel(rule), rule
        self._methods = compiled_linear.prepared(split, problem)
        carried = rule.init(theta, len(split.shard.link)) if state is None else state
        self._held: Tensor | None = None
        if self._kernel == TRACKING:
            carried, held = carried
            self._held = held.contiguous()
        self._models = _two_buffers(theta)
        self._carried = _two_buffers(carried) if self._kernel == TRACKING else carried.contiguous()
        self._alive = np.ones(len(split.shard.rows), dtype=bool)
        self._single = 0

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        return self._models[: self._shard.clients]

    @property
    def state(self) -> Any:
        """What the rule carries."""
        carried = self._carried[: self._shard.clients]
        return carried if self._held is None else (carried, self._held)

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        rows = self._problem.draws(block.k).numpy()
        found = (tensor.contiguous().numpy() for tensor in (block.v, block.step, block.lr, block.active))
        self._events = methods.Events(rows, *found)
        self._factor = self._factors(block.k)

    def _factors(self, k: np.ndarray) -> np.ndarray | None:
        """How much what flows over each link counts in the correction. Shape: (iterations or 1, links)."""
        if self._kernel == TRACKING:
            return None
        rule: Any = self._rule
        if self._kernel == CORRECTED:
            return np.full((1, len(self._shard.link)), rule.probability)
        stack = self._shard.stack
        q = stack.probabilities(k)
        if rule.factor == "ratio":
            d = stack.step_probabilities(k)
            i, j = stack.edges.T
            with np.errstate(divide="ignore", invalid="ignore"):
                q = np.minimum(q / np.maximum(d[:, i], d[:, j]), 1.0)
        return q

    def advance(self, first: int, last: int) -> None:
        """Make iterations first … last − 1 of the block."""
        rule: Any = self._rule
        factor = self._factor
        yields = self._methods.advance(
            rule.form if self._kernel == TRACKING else "corrected",
            self._models.numpy(),
            self._carried.numpy(),
            None if self._held is None else self._held.numpy(),
            self._events.part(first, last),
            factor=factor if factor is None or len(factor) == 1 else factor[first:last],
            s=1.0 if self._kernel == TRACKING else rule.s,
            alive=self._alive,
            threads=1 if self._single else torch.get_num_threads(),
        )
        # Threads that wait for each other are slower than a single one where another program uses their cores.
        self._single = max(0, self._single - 1) if self._single else SINGLE * (yields > BUSY * (last - first))

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        self._alive[run] = False


def _two_buffers(rows: Tensor) -> Tensor:
    """Return memory for the rows twice, the first of which holds them. Shapes: (clients, width) -> (2 · clients, …)."""
    out = in_huge_pages((2 * len(rows), rows.shape[1]), rows.dtype)
    out[: len(rows)] = rows
    return out
