"""Linear models on a GPU: two passes over the models an iteration."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from dspodfl._kernels.cuda import linear, mixing
from dspodfl.engine.events import Block
from dspodfl.engine.exchange import Split
from dspodfl.engine.steppers.cuda_base import CudaStepper
from dspodfl.problem import Problem
from dspodfl.problem.models import has_bias


class CudaLinear(CudaStepper):
    """Linear models on a GPU: steps, then mixing, in two kernels, from one buffer of models to the other."""

    idles = True

    @staticmethod
    def available(problem: Problem) -> bool:
        """Whether there are kernels for a problem."""
        model, device = problem.model, problem.device
        if device.type != "cuda" or not model.is_linear:
            return False
        return linear.available(device, problem.dtype, model.outputs, problem.batch_size)

    def __init__(self, split: Split, problem: Problem, theta: Tensor) -> None:
        super().__init__(split, problem, theta)
        first = torch.cat([theta, theta.new_zeros(self._halo, theta.shape[1])]) if self._halo else theta.contiguous()
        self._models = [first, torch.zeros_like(first) if self._halo else torch.empty_like(first)]
        model = problem.model
        self._steps = linear.Steps(
            problem.x,
            problem.y,
            problem.scale,
            problem.shift,
            problem.batch_of,
            model.outputs,
            problem.stride,
            has_bias(model),
            model.loss,
            model.l2,
            problem.precision,
        )

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        return self._models[self._buffer][: self.shard.clients]

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._load(block)

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        super().freeze(run)
        self._small = False  # products of whole matrices would multiply values that are not finite by 0
        self._graphs.clear()
        self._pool = None  # it goes with the graphs

    def advance(self, first: int, last: int) -> None:
        """Make iterations first … last − 1 of the block."""
        self._at.fill_(first)
        for t in range(first, last):
            self._iterate(None, partial(self._work, t))

    def _work(self, t: int) -> None:
        events, clients = self._places, self.shard.clients
        front, back = self._models[self._buffer], self._models[1 - self._buffer][:clients]
        self._count()
        self._came = self._exchange.start(t, front[:clients])
        self._steps.move(front[:clients], back, events["rows"], events["step"], self._at)
        self._receive(t, front[clients:])
        if self._small:
            mixing.mix_runs(front, back, events["p"], self._at, events["step"])
        else:
            mixing.mix_rows(front, back, self._links, events["active"], self._at, events["step"])
