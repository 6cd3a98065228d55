"""Ways to advance models on a GPU: whole iterations in Triton kernels, captured and replayed as CUDA graphs.

    Fused      linear models      two passes over the models an iteration
    Networks   other models       gradients of the clients that step alone; beside them mixing, and with it the steps

Where clients are split over processes, rows of the others' come in between, and nothing is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from dspodfl._kernels.cuda import linear, mixing
from dspodfl.algorithms import SIMULTANEOUS, Rule, fused_kernel
from dspodfl.engine.exchange import Exchange
from dspodfl.engine.mixer import Matrices
from dspodfl.engine.stack import Block, Neighbours, Stack
from dspodfl.engine.transport.base import Wait
from dspodfl.problem import Problem
from dspodfl.problem.models import has_bias

GRAPHS = True
"""Whether iterations are captured and replayed as CUDA graphs."""
_BUCKETS = 32
"""Numbers of active clients for which a graph of their own is captured; others are rounded up."""
_STEPPED = 0.2
"""Share of a model's parameters that is stepped by one kernel at least."""
_NUMBERS_AT_ONCE = 2**26
"""Parameters that are moved at a time."""


class Ground(Protocol):
    """What is held here: a `Stack`, or a `Shard` of one."""

    @property
    def rows(self) -> list[slice]: ...
    @property
    def links(self) -> list[slice]: ...
    @property
    def clients(self) -> int: ...
    @property
    def neighbours(self) -> Neighbours: ...


def choose(
    ground: Ground,
    problem: Problem,
    rule: Rule,
    theta: Tensor,
    exchange: Callable[[Tensor], Exchange] | None = None,
) -> Fused | Networks | None:
    """The way for a rule and a model on a GPU, or None if there is none. ``theta`` is used up.

    ``exchange`` makes what brings the rows of other processes to where some models are.
    """
    model = problem.model
    if problem.device.type != "cuda" or fused_kernel(rule) != SIMULTANEOUS:
        return None
    if model.is_linear:
        able = linear.available(problem.device, problem.dtype, model.outputs, problem.batch_size)
    else:
        able = problem.dtype == torch.float32 and mixing.available(problem.device, problem.dtype)
    if not able:
        return None
    way = Fused if model.is_linear else Networks
    return way(ground, problem, theta, None if exchange is None else exchange(theta))


class _OnGpu:
    """What ways on a GPU share: events in fixed places, rows of other processes, and iterations that become graphs.

    ``at`` is the number of the iteration in the block, on the device, in one of two places that take turns: an
    iteration reads the one and writes the next number into the other.
    """

    state, rests, idles = None, True, False

    def __init__(self, ground: Ground, problem: Problem, theta: Tensor, exchange: Exchange | None = None) -> None:
        self.ground, self.problem = ground, problem
        self._exchange = exchange
        self._halo = 0 if exchange is None else exchange.halo
        self._came: Wait = _nothing
        self._turn = 0
        self._ats = torch.zeros(2, 1, dtype=torch.int64, device=theta.device)
        self._frozen: list[int] = []
        self._places: dict[str, Tensor] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._pool: Any = None
        self._graphed = GRAPHS and exchange is None
        self._first = torch.cuda.Stream(theta.device, priority=-2)  # what runs beside it takes the room it leaves
        # Whole runs mix at once where all are small and of one size, else row by row.
        sizes = {rows.stop - rows.start for rows in ground.rows}
        self._small = isinstance(ground, Stack) and len(sizes) == 1 and max(sizes) <= mixing.SMALL
        self._links = mixing.Links.of(ground.neighbours, theta.device)
        self._matrices = Matrices(ground, theta.device) if isinstance(ground, Stack) else None

    @property
    def _at(self) -> Tensor:
        return self._ats[self._turn]

    def _count(self) -> None:
        """The next iteration's number, where it will look for it."""
        torch.add(self._at, 1, out=self._ats[1 - self._turn])

    def _put(self, name: str, values: Tensor) -> None:
        """Keep what a block brings where graphs look for it; blocks never get longer."""
        if name not in self._places:
            self._places[name] = values.contiguous().clone()
        else:
            self._places[name][: len(values)].copy_(values)

    def _load(self, block: Block) -> None:
        if self._exchange is not None:
            self._exchange.load(block.active.cpu().numpy())
        self._put("rows", self.problem.draws(block.k))
        self._put("step", block.step)
        self._put("active", block.active)
        if self._small and self._matrices is not None:
            self._put("p", self._matrices(block.active))
        for run in self._frozen:
            self._still(run)

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        self._frozen.append(run)
        if self._places:  # a run may be frozen before the first block comes
            self._still(run)

    def _still(self, run: int) -> None:
        self._places["step"][:, self.ground.rows[run]] = 0
        self._places["active"][:, self.ground.links[run]] = 0

    def _receive(self, t: int, halo: Tensor) -> None:
        """Put what has come from other processes where it is looked for, once it is there."""
        if self._exchange is not None:
            self._came()
            rows, came = self._exchange.arrived(t)
            halo.index_copy_(0, rows, came)

    def _iterate(self, key: Hashable, work: Callable[[], None]) -> None:
        """One iteration: as it is the first time (kernels are compiled then), captured the second, replayed after."""
        key = (key, self._turn)
        if not self._graphed or key not in self._graphs:
            work()
            self._graphs[key] = None
        else:
            graph = self._graphs[key]
            if graph is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._first):
                    work()
                self._graphs[key] = graph
                self._pool = self._pool or graph.pool()
            graph.replay()
        self._turn = 1 - self._turn


def _nothing() -> None:
    """There is nothing to wait for."""


class Fused(_OnGpu):
    """Linear models on a GPU: steps, then mixing, in two kernels, from one buffer of models to another."""

    idles = True

    def __init__(self, ground: Ground, problem: Problem, theta: Tensor, exchange: Exchange | None = None) -> None:
        super().__init__(ground, problem, theta, exchange)
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
        return self._models[self._turn][: self.ground.clients]

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._load(block)

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        super().freeze(run)
        self._small = False  # products of whole matrices would multiply what is not finite by 0
        self._graphs.clear()
        self._pool = None  # it goes with the graphs

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        self._at.fill_(first)
        for t in range(first, last):
            self._iterate(None, partial(self._work, t))

    def _work(self, t: int) -> None:
        events, clients = self._places, self.ground.clients
        here, there = self._models[self._turn], self._models[1 - self._turn][:clients]
        self._count()
        if self._exchange is not None:
            self._came = self._exchange.start(t, here[:clients])
        self._steps.move(here[:clients], there, events["rows"], events["step"], self._at)
        self._receive(t, here[clients:])
        if self._small:
            mixing.mix_runs(here, there, events["p"], self._at, events["step"])
        else:
            mixing.mix_rows(here, there, self._links, events["active"], self._at, events["step"])


class Networks(_OnGpu):
    """Any model on a GPU: gradients of the clients that take a step alone; beside them mixing and each layer's step.

    Every client has two rows of one matrix. A model that mixes goes to the other one, since its neighbours still read
    it where it is; one that does not costs nothing, and takes its step in place. ``homes`` say where models are before
    each iteration; rows that came from other processes lie behind.

    Three streams: what the next layer waits for comes first, then slopes by parameters, and in the room that they leave
    what waits for memory.
    """

    def __init__(self, ground: Ground, problem: Problem, theta: Tensor, exchange: Exchange | None = None) -> None:
        super().__init__(ground, problem, theta, exchange)
        clients, device = ground.clients, theta.device
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
        return self._models.new_zeros(self.ground.clients, self._models.shape[1])  # once the first models are gone

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        clients = self.ground.clients
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
        clients, active = self.ground.clients, self._places["active"] != 0
        used = active.index_select(1, self._links.link.long())
        mixes = active.new_zeros((len(active), clients), dtype=torch.int32).index_add_(1, self._ends, used.int()) > 0
        second = torch.nn.functional.pad(mixes.cumsum(dim=0) % 2, (0, 0, 1, 0))
        homes = clients * second + torch.arange(clients, device=second.device)
        self._put("homes", torch.cat([homes, self._behind.expand(len(homes), -1)], dim=1).int())

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block; nothing is done in those in which all rest."""
        clients = self.ground.clients
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
        if self._exchange is not None:
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
        self._receive(t, models[2 * self.ground.clients :])
        if self._small:
            mixing.mix_runs(models, models, events["p"], self._at, homes=events["homes"])
        else:
            mixing.mix_rows(models, models, self._links, events["active"], self._at, homes=events["homes"])
