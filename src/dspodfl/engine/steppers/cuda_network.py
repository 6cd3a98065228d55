"""Any model on a GPU: gradients of the clients that step alone; at the same time mixing, and with it the steps."""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor

from dspodfl._kernels.cuda import mixing
from dspodfl.engine.exchange import Split
from dspodfl.engine.stack import Block
from dspodfl.engine.steppers.cuda_base import CudaStepper
from dspodfl.problem import Problem

_BUCKETS = 32
"""Numbers of active clients for which a graph of their own is captured; others are rounded up."""
_STEPPED = 0.2
"""Share of a model's parameters that is stepped by one kernel at least."""
_NUMBERS_AT_ONCE = 2**26
"""Parameters that are moved at a time."""


class CudaNetwork(CudaStepper):
    """Any model on a GPU: gradients of the clients that take a step alone; beside them mixing and each layer's step.

    Every client has two rows of one matrix. A model that mixes goes to the other one, since its neighbours still read
    it where it is; one that does not costs nothing, and takes its step in place. ``homes`` say where models are before
    each iteration; rows that came from other processes lie behind.

    Three streams: what the next layer waits for comes first, then slopes by parameters, and in the room that they leave
    what waits for memory.
    """

    @staticmethod
    def available(problem: Problem) -> bool:
        """Whether there are kernels for a problem."""
        if problem.device.type != "cuda" or problem.model.is_linear:
            return False
        return problem.dtype == torch.float32 and mixing.available(problem.device, problem.dtype)

    def __init__(self, split: Split, problem: Problem, theta: Tensor) -> None:
        super().__init__(split, problem, theta)
        clients, device = split.shard.clients, theta.device
        self._models = theta.new_zeros(2 * clients + self._halo, theta.shape[1])
        self._models[:clients] = theta
        self._home = torch.arange(clients, device=device)
        self._behind = 2 * clients + torch.arange(self._halo, device=device)
        self._ends = torch.repeat_interleave(torch.arange(clients, device=device), self._links.ptr.diff())
        self._grain = max(1, clients // _BUCKETS)
        self._slopes = torch.cuda.Stream(device, priority=-1)
        self._beside = torch.cuda.Stream(device)

    @cached_property
    def _gradient(self) -> Tensor:
        return self._models.new_zeros(self.shard.clients, self._models.shape[1])  # once the first models are gone

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        clients = self.shard.clients
        away = torch.nonzero(self._home >= clients).squeeze(1)
        for some in away.split(max(1, _NUMBERS_AT_ONCE // self._models.shape[1])):
            self._models[some] = self._models[some + clients]
        self._home[away] -= clients
        return self._models[:clients]

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._load(block)
        self._linked = (block.active != 0).any(dim=1)  # those of frozen runs as well: other processes count on them
        self._arrange()

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        super().freeze(run)
        if self._places:
            self._arrange()

    def _arrange(self) -> None:
        """Who takes a step, iteration by iteration, and where models will be.

        That is, if all are in their first rows before the first.
        """
        steps = self._places["step"][: len(self._linked)] != 0
        self._put("order", torch.argsort(steps, dim=1, descending=True, stable=True))  # who does, then the others
        self._counts = steps.sum(dim=1).tolist()
        self._quiet = (~(steps.any(dim=1) | self._linked)).tolist()
        clients, active = self.shard.clients, self._places["active"] != 0
        used = active.index_select(1, self._links.link.long())
        mixes = active.new_zeros((len(active), clients), dtype=torch.int32).index_add_(1, self._ends, used.int()) > 0
        second = torch.nn.functional.pad(mixes.cumsum(dim=0) % 2, (0, 0, 1, 0))
        homes = clients * second + torch.arange(clients, device=second.device)
        self._put("homes", torch.cat([homes, self._behind.expand(len(homes), -1)], dim=1).int())

    def advance(self, first: int, last: int) -> None:
        """Make iterations first … last − 1 of the block; nothing is done in those in which all rest."""
        clients = self.shard.clients
        homes = self._places["homes"][:, :clients]
        other = homes[first] != self._home  # who begins in the other row goes on there
        homes[first:] = (homes[first:] + clients * other) % (2 * clients)
        ready = -1
        for t in range(first, last):
            if self._quiet[t]:
                continue
            if t != ready:
                self._at.fill_(t)
            ready = t + 1
            active = -(-self._counts[t] // self._grain) * self._grain
            active = min(active, clients)
            self._iterate(active, partial(self._work, active, t))
        self._home = homes[last].clone()

    def _work(self, active: int, t: int) -> None:
        events, problem, models = self._places, self.problem, self._models
        self._came = self._exchange.start(t, models, events["homes"][t])
        if not active:
            self._count()
            self._mix(t)
            return
        main = torch.cuda.current_stream(models.device)
        self._beside.wait_stream(main)
        with torch.cuda.stream(self._beside):
            self._count()
            self._mix(t)
        who, home, x, y = problem.minibatch(events["order"], events["rows"], events["homes"], self._at, active)
        gradient = self._gradient[:active]
        lowest = end = problem.width  # from the end on steps are taken; from the lowest on gradients are on their way

        def take() -> None:
            nonlocal end
            self._beside.wait_stream(main)
            if problem.stacked is not None:
                self._beside.wait_stream(self._slopes)
            with torch.cuda.stream(self._beside):
                mixing.less(models, gradient, who, events["step"], events["homes"], self._at, lowest, end)
            end = lowest

        def ready(first: int, last: int) -> None:
            """Take steps in the columns of some layers, last ones first, once they are enough to be worth a kernel."""
            nonlocal lowest
            lowest = first
            if end - lowest >= _STEPPED * problem.width:
                take()

        problem.gradients(models, home, x, y, gradient, ready, self._slopes)
        if lowest < end:
            take()
        main.wait_stream(self._beside)

    def _mix(self, t: int) -> None:
        """PΘ for those who mix, into their other rows."""
        events, models = self._places, self._models
        self._receive(t, models[2 * self.shard.clients :])
        if self._small:
            mixing.mix_runs(models, models, events["p"], self._at, row_index=events["homes"])
        else:
            mixing.mix_rows(models, models, self._links, events["active"], self._at, row_index=events["homes"])
