"""Any model on a GPU: gradients of only the clients that step, concurrently with mixing and the steps."""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor

from dspodfl._kernels.cuda import mixing
from dspodfl.engine.events import Block
from dspodfl.engine.exchange import Split
from dspodfl.engine.steppers.cuda_base import CudaStepper
from dspodfl.problem import Problem

_BUCKETS = 32
"""Numbers of active clients for which a graph is captured; others are rounded up."""
_STEPPED = 0.2
"""Share of a model's parameters that is stepped by one kernel at least."""
_MAX_ELEMENTS_PER_CHUNK = 2**26
"""Parameters that are copied in one batch."""


class CudaNetwork(CudaStepper):
    """Any model on a GPU: gradients of only the clients that take a step; concurrently mixing and each layer's step.

    Every client has two rows of one matrix. A model that mixes is written to its second row, since its neighbours still
    read the first; one that does not mix costs nothing, and takes its step in place. ``row_index`` holds the rows of
    the models before each iteration; rows of other processes come after the clients' rows.

    Three streams, by priority: activations and their gradients, which the next layer waits for; gradients with respect
    to parameters; mixing and steps, which are bound by memory.
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
        self._row_index = torch.arange(clients, device=device)
        self._behind = 2 * clients + torch.arange(self._halo, device=device)
        self._ends = torch.repeat_interleave(torch.arange(clients, device=device), self._links.ptr.diff())
        self._grain = max(1, clients // _BUCKETS)
        self._weight_grads = torch.cuda.Stream(device, priority=-1)
        self._mixing = torch.cuda.Stream(device)

    @cached_property
    def _gradient(self) -> Tensor:
        # Allocated at the first step, when the memory of the initial models is free again.
        return self._models.new_zeros(self.shard.clients, self._models.shape[1])

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        clients = self.shard.clients
        away = torch.nonzero(self._row_index >= clients).squeeze(1)
        for some in away.split(max(1, _MAX_ELEMENTS_PER_CHUNK // self._models.shape[1])):
            self._models[some] = self._models[some + clients]
        self._row_index[away] -= clients
        return self._models[:clients]

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._load(block)
        self._linked = (block.active != 0).any(dim=1)  # those of frozen runs as well: other processes expect them
        self._arrange()

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        super().freeze(run)
        if self._places:
            self._arrange()

    def _arrange(self) -> None:
        """Compute which clients step in each iteration, and the rows of the models.

        The rows are those of models that begin the block in their first rows; `advance` corrects them.
        """
        steps = self._places["step"][: len(self._linked)] != 0
        self._put("order", torch.argsort(steps, dim=1, descending=True, stable=True))  # clients that step come first
        self._counts = steps.sum(dim=1).tolist()
        self._quiet = (~(steps.any(dim=1) | self._linked)).tolist()
        clients, active = self.shard.clients, self._places["active"] != 0
        used = active.index_select(1, self._links.link.long())
        mixes = active.new_zeros((len(active), clients), dtype=torch.int32).index_add_(1, self._ends, used.int()) > 0
        second = torch.nn.functional.pad(mixes.cumsum(dim=0) % 2, (0, 0, 1, 0))
        row_index = clients * second + torch.arange(clients, device=second.device)
        self._put("row_index", torch.cat([row_index, self._behind.expand(len(row_index), -1)], dim=1).int())

    def advance(self, first: int, last: int) -> None:
        """Make iterations first … last − 1 of the block; iterations without events are skipped."""
        clients = self.shard.clients
        row_index = self._places["row_index"][:, :clients]
        swapped = row_index[first] != self._row_index  # models that begin in their second row
        row_index[first:] = (row_index[first:] + clients * swapped) % (2 * clients)
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
        self._row_index = row_index[last].clone()

    def _work(self, active: int, t: int) -> None:
        events, problem, models = self._places, self.problem, self._models
        self._came = self._exchange.start(t, models, events["row_index"][t])
        if not active:
            self._count()
            self._mix(t)
            return
        main = torch.cuda.current_stream(models.device)
        self._mixing.wait_stream(main)
        with torch.cuda.stream(self._mixing):
            self._count()
            self._mix(t)
        who, rows, x, y = problem.minibatch(events["order"], events["rows"], events["row_index"], self._at, active)
        gradient = self._gradient[:active]
        lowest = end = problem.width  # steps are taken from column ``end`` on, gradients computed from ``lowest`` on

        def take() -> None:
            nonlocal end
            self._mixing.wait_stream(main)
            if problem.stacked is not None:
                self._mixing.wait_stream(self._weight_grads)
            with torch.cuda.stream(self._mixing):
                mixing.less(models, gradient, who, events["step"], events["row_index"], self._at, lowest, end)
            end = lowest

        def ready(first: int, last: int) -> None:
            """Take steps in the columns of some layers, last ones first, once they are enough to be worth a kernel."""
            nonlocal lowest
            lowest = first
            if end - lowest >= _STEPPED * problem.width:
                take()

        problem.gradients(models, rows, x, y, gradient, ready, self._weight_grads)
        if lowest < end:
            take()
        main.wait_stream(self._mixing)

    def _mix(self, t: int) -> None:
        """Write PΘ of the clients that mix to their other rows."""
        events, models = self._places, self._models
        self._receive(t, models[2 * self.shard.clients :])
        if self._small:
            mixing.mix_runs(models, models, events["p"], self._at, row_index=events["row_index"])
        else:
            mixing.mix_rows(models, models, self._links, events["active"], self._at, row_index=events["row_index"])
