"""Ways to advance a stack of models through a block of iterations; all give the same models.

`Stepwise` asks the rule, iteration by iteration, with PyTorch's own operations: it works for every model, rule and
device, and is what the others are tested against. The paper's own update has faster ways:

    Compiled            linear models on the CPU    whole blocks in machine code (Numba)
    gpu.Fused           linear models on a GPU      two passes over the models an iteration (Triton), CUDA graphs
    gpu.Networks        other models on a GPU       gradients of the clients that step alone, CUDA graphs
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.cpu import linear as compiled
from dspodfl.algorithms import SIMULTANEOUS, Rule, fused_kernel
from dspodfl.engine.mixer import Mixer
from dspodfl.engine.stack import Block, Stack
from dspodfl.engine.state import unfrozen
from dspodfl.engine.steppers import cuda as gpu
from dspodfl.problem import Problem
from dspodfl.problem.models import has_bias

BUSY, ALONE = 20, 16
"""So many yields an iteration say that the cores are busy; a compiled run then goes on alone for so many calls."""


class Advance(Protocol):
    """A stack of models on its way. Blocks are loaded in order, and their iterations gone through in order."""

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        ...

    @property
    def state(self) -> Any:
        """What the rule carries besides the models."""
        ...

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        ...

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        ...

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        ...

    rests: bool
    """Whether a run without events keeps its models without being frozen."""
    idles: bool
    """Whether a run that is over still costs time: then it is worth leaving it out of the stack."""


def choose(stack: Stack, problem: Problem, rule: Rule, theta: Tensor, state: Any = None) -> Advance:
    """The fastest way that there is for a rule, a model and a device. ``theta`` is used up.

    ``state`` is what the rule carries where it is taken up again; without one, it begins.
    """
    if on_cpu(problem, rule):
        return Compiled(stack, problem, theta)
    return gpu.choose(stack, problem, rule, theta) or Stepwise(stack, problem, rule, theta, state)


def on_cpu(problem: Problem, rule: Rule) -> bool:
    """Whether compiled code for the CPU does what the rule and the model ask for."""
    exact = problem.compute == problem.dtype and problem.device.type == "cpu"
    return fused_kernel(rule) == SIMULTANEOUS and problem.model.is_linear and exact and compiled.available()


class Stepwise:
    """One iteration at a time, as the rule says it."""

    rests, idles = False, True

    def __init__(self, stack: Stack, problem: Problem, rule: Rule, theta: Tensor, state: Any = None) -> None:
        self.theta, self._rule, self._problem, self._stack = theta, rule, problem, stack
        self.state: Any = rule.init(theta) if state is None else state
        self._mixer = Mixer(stack, problem.device, problem.dtype)
        self._alive: Tensor | None = None

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._mixer.load(block.active)
        self._v = block.v.to(self._problem.dtype).unbind()
        self._lr = block.lr.unbind()
        self._batches = self._problem.batches(block.k)

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        for t in range(first, last):
            x, y = self._batches[t]
            mix, gradient = partial(self._mixer.apply, t), partial(_gradient, self._problem, x, y)
            new, state = self._rule.step(self.theta, mix, gradient, self._v[t], self._lr[t], self.state)
            self.theta, self.state = unfrozen(self._alive, (new, state), (self.theta, self.state))

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        if self._alive is None:
            self._alive = torch.ones(len(self.theta), dtype=torch.bool, device=self.theta.device)
        self._alive[self._stack.rows[run]] = False


def _gradient(problem: Problem, x: Tensor, y: Tensor, theta: Tensor, scale: Tensor | None = None) -> Tensor:
    return problem.gradient(theta, x, y, scale)


def in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty tensor in NumPy's memory, which lies in huge pages where there are any: fewer to look up."""
    return torch.from_numpy(np.empty(shape, dtype=str(dtype).removeprefix("torch.")))


class Compiled:
    """Linear models on the CPU: a run's models stay in a core's cache for a whole block."""

    state, rests, idles = None, False, False

    def __init__(self, stack: Stack, problem: Problem, theta: Tensor) -> None:
        self.theta, self._problem = theta.contiguous(), problem
        self._other = in_huge_pages(tuple(self.theta.shape), self.theta.dtype)
        self._neighbours = stack.neighbours
        self._first = torch.tensor([0, *(rows.stop for rows in stack.rows)]).numpy()
        self._alive = torch.ones(len(stack.runs), dtype=torch.bool).numpy()
        self._alone = 0

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._rows = self._problem.draws(block.k).numpy()
        self._step, self._active = block.step.numpy(), block.active.contiguous().numpy()

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        problem, links = self._problem, self._neighbours
        yields = compiled.advance(
            theta=self.theta.numpy(),
            other=self._other.numpy(),
            x=problem.x.numpy(),
            scale=problem.scale,
            shift=problem.shift,
            y=problem.y.numpy(),
            rows=self._rows[first:last],
            batch_of=problem.batch_of.numpy(),
            step=self._step[first:last],
            ptr=links.ptr,
            col=links.col,
            link=links.link,
            active=self._active[first:last],
            first=self._first,
            alive=self._alive,
            loss=problem.model.loss,
            bias=has_bias(problem.model),
            l2=problem.model.l2,
            threads=1 if self._alone else torch.get_num_threads(),
        )
        # Threads that wait for one another are slower than one where something else has their cores.
        self._alone = max(0, self._alone - 1) if self._alone else ALONE * (yields > BUSY * (last - first))

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        self._alive[run] = False
