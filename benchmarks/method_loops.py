"""Careful plain PyTorch loops of single methods: what `benchmarks.loops.CarefulLoop` is to DGD.

Models and gradients are rows of two matrices that the modules' parameters are views of, so that nothing is copied.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.loops import CarefulLoop
from dspodfl.algorithms.common_draw import Common
from dspodfl.engine import Run
from dspodfl.problem.models import Model


class Rows(CarefulLoop):
    """A module a client, whose parameters and gradients are views of the rows of ``theta`` and ``gradient``."""

    def __init__(self, model: Model, run: Run, batch_size: int = 16, device: torch.device | str = "cpu") -> None:
        super().__init__(model, run, batch_size, device)
        self.theta = super().vectors()
        self.gradient = torch.zeros_like(self.theta)
        for i, module in enumerate(self.models):
            at = 0
            for parameter in module.parameters():
                part = slice(at, at + parameter.numel())
                parameter.data = self.theta[i, part].view_as(parameter)
                parameter.grad = self.gradient[i, part].view_as(parameter)
                at = part.stop

    def vectors(self) -> Tensor:
        """All models, one row a client."""
        return self.theta

    def compute(self, clients: list[int]) -> None:
        """Write the gradients of some clients into their rows."""
        rows = self.drawn()
        for i in clients:
            index = self.held[i][rows[i]]
            self.gradient[i].zero_()
            self.loss(self.models[i](self.x[index]), self.y[index]).backward()


class TrackingLoop(Rows):
    """Gradient tracking (DIGing) with sporadic clients and links; who does not compute costs nothing."""

    def __init__(self, model: Model, run: Run, batch_size: int = 16, device: torch.device | str = "cpu") -> None:
        super().__init__(model, run, batch_size, device)
        first, graph = np.zeros(1, dtype=np.int64), run.rates.graph
        self.d, self.b = (torch.from_numpy(law(first)[0]).float() for law in (run.rates.sgd, run.rates.link))
        _, weight, _ = run.topology.at(first)
        self.weight = torch.from_numpy(weight[0]).float()
        self.i, self.j = torch.from_numpy(graph.edges).T
        self.mixed = torch.zeros_like(self.theta)

    def iterate(self) -> None:
        """Θ ← PΘ − αVY,  Y ← PY + H⁺ − H; the rows of ``gradient`` are H."""
        v = torch.rand(len(self.d)) < self.d
        weight = self.weight * (torch.rand(len(self.b)) < self.b)
        p = torch.zeros_like(self.p)
        p[self.i, self.j] = p[self.j, self.i] = weight
        p.diagonal().copy_(1 - p.sum(1))
        y = self.mixed - self.gradient
        self.compute(v.nonzero().flatten().tolist())
        y += self.gradient
        self.theta.copy_(torch.addmm(v[:, None] * y, p, self.theta, beta=-self.lr))
        torch.mm(p, y, out=self.mixed)


class ScaffnewLoop(Rows):
    """Scaffnew: corrected steps of all clients, and with a probability the average of all."""

    def __init__(self, model: Model, run: Run, batch_size: int = 16, device: torch.device | str = "cpu") -> None:
        super().__init__(model, run, batch_size, device)
        assert isinstance(run.schedule, Common)
        self.probability = run.schedule.probability
        self.h = torch.zeros_like(self.theta)

    def iterate(self) -> None:
        """Θ̂ = Θ − α(G − h);  Θ ← JΘ̂ or Θ̂;  h ← h + (ϖ/α)(Θ⁺ − Θ̂)."""
        self.compute(list(range(len(self.models))))
        self.theta.sub_(self.gradient - self.h, alpha=self.lr)
        if float(torch.rand(())) < self.probability:
            average = self.theta.mean(0, keepdim=True)
            self.h.add_(average - self.theta, alpha=self.probability / self.lr)
            self.theta.copy_(average.expand_as(self.theta))


LOOPS = {"gradient_tracking": TrackingLoop, "scaffnew": ScaffnewLoop}
"""Methods that have a loop of their own, and a speed to reach; the others have `benchmarks.rule_loop`."""
