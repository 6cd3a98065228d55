"""Ways to advance models on a GPU: whole iterations in Triton kernels, captured and replayed as CUDA graphs.

    Fused      linear models      two passes over the models an iteration
    Networks   other models       gradients of the clients that step alone; beside them mixing, and with it the steps

Where clients are split over processes, rows of the others' come in between, and nothing is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from dspodfl.engine.exchange import Exchange
from dspodfl.engine.mix import Matrices
from dspodfl.engine.stack import Block, Neighbours, Stack
from dspodfl.engine.team import Wait
from dspodfl.kernels import linear, mixing
from dspodfl.models.gradients import has_bias
from dspodfl.problem import Problem
from dspodfl.rule import Rule, Simultaneous

GRAPHS = True
"""Whether iterations are captured and replayed as CUDA graphs."""
_GRAPHED_BYTES = 2**32
"""Models larger than this are advanced without graphs: their kernels take longer than it takes to launch them."""
_BUCKETS = 32
"""Numbers of active clients for which a graph of their own is captured; others are rounded up."""


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
    if problem.device.type != "cuda" or not isinstance(rule, Simultaneous):
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
    """What ways on a GPU share: two buffers of models, events in fixed places, and iterations that become graphs.

    ``at`` is the number of the iteration in the block, on the device, for each buffer its own: an iteration reads the
    one and writes the next number into the other.
    """

    state = None

    def __init__(self, ground: Ground, problem: Problem, theta: Tensor, exchange: Exchange | None = None) -> None:
        self.ground, self.problem = ground, problem
        halo = 0 if exchange is None else exchange.halo
        first = torch.cat([theta, theta.new_zeros(halo, theta.shape[1])]) if halo else theta.contiguous()
        self._models = [first, torch.zeros_like(first) if halo else torch.empty_like(first)]
        self._exchange = exchange
        self._came: Wait = _nothing
        self._turn = 0
        self._ats = torch.zeros(2, 1, dtype=torch.int64, device=theta.device)
        self._frozen: list[int] = []
        self._places: dict[str, Tensor] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._pool: Any = None
        self._graphed = GRAPHS and theta.nbytes <= _GRAPHED_BYTES and exchange is None
        self._first = torch.cuda.Stream(theta.device, priority=-2)  # what runs beside it takes the room it leaves

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        return self._models[self._turn][: self.ground.clients]

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

    def _send(self, t: int, here: Tensor) -> None:
        """Start what crosses to other processes, and what comes from them, at the t-th iteration."""
        if self._exchange is not None:
            self._came = self._exchange.start(t, here[: self.ground.clients])

    def _receive(self, t: int, here: Tensor) -> None:
        """Put what has come behind the rows that are held here, once it is there."""
        if self._exchange is not None:
            self._came()
            rows, came = self._exchange.arrived(t)
            here[self.ground.clients :].index_copy_(0, rows, came)

    def _iterate(self, key: Hashable, work: Callable[[Tensor, Tensor], None]) -> None:
        """One iteration: as it is the first time (kernels are compiled then), captured the second, replayed after."""
        key = (key, self._turn)
        here, there = self._models[self._turn], self._models[1 - self._turn]
        if not self._graphed or key not in self._graphs:
            work(here, there)
            self._graphs[key] = None
        else:
            graph = self._graphs[key]
            if graph is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._first):
                    work(here, there)
                self._graphs[key] = graph
                self._pool = self._pool or graph.pool()
            graph.replay()
        self._turn = 1 - self._turn


def _nothing() -> None:
    """There is nothing to wait for."""


class _Mixed(_OnGpu):
    """Where mixing and stepping are one pass: by whole runs where all are small and of one size, else row by row."""

    def __init__(self, ground: Ground, problem: Problem, theta: Tensor, exchange: Exchange | None = None) -> None:
        super().__init__(ground, problem, theta, exchange)
        sizes = {rows.stop - rows.start for rows in ground.rows}
        self._small = isinstance(ground, Stack) and len(sizes) == 1 and max(sizes) <= mixing.SMALL
        self._links = mixing.Links.of(ground.neighbours, theta.device)
        self._matrices = Matrices(ground, theta.device) if isinstance(ground, Stack) else None

    def _load(self, block: Block) -> None:
        super()._load(block)
        if self._small and self._matrices is not None:
            self._put("p", self._matrices(block.active))

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        super().freeze(run)
        self._small = False  # products of whole matrices would multiply what is not finite by 0
        self._graphs.clear()
        self._pool = None  # it goes with the graphs

    def _mix(self, here: Tensor, there: Tensor, step: Tensor | None = None) -> None:
        """PΘ of the rows that are held here, added to the steps that are there already, if there are any."""
        there = there[: self.ground.clients]
        if self._small:
            mixing.mix_runs(here, there, self._places["p"], self._at, step)
        else:
            mixing.mix_rows(here, there, self._links, self._places["active"], self._at, step)


class Fused(_Mixed):
    """Linear models on a GPU: steps, then mixing, in two kernels."""

    def __init__(self, ground: Ground, problem: Problem, theta: Tensor, exchange: Exchange | None = None) -> None:
        super().__init__(ground, problem, theta, exchange)
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

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._load(block)

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        self._at.fill_(first)
        for t in range(first, last):
            self._iterate(None, partial(self._work, t))

    def _work(self, t: int, here: Tensor, there: Tensor) -> None:
        self._count()
        self._send(t, here)
        own = slice(self.ground.clients)
        self._steps.move(here[own], there[own], self._places["rows"], self._places["step"], self._at)
        self._receive(t, here)
        self._mix(here, there, self._places["step"])


class Networks(_Mixed):
    """Any model on a GPU: gradients of the clients that take a step alone; beside them mixing and each layer's step.

    Three streams: what the next layer waits for comes first, then slopes by parameters, and in the room that they leave
    what waits for memory.
    """

    def __init__(self, ground: Ground, problem: Problem, theta: Tensor, exchange: Exchange | None = None) -> None:
        super().__init__(ground, problem, theta, exchange)
        self._gradient = torch.zeros_like(theta)
        self._grain = max(1, ground.clients // _BUCKETS)
        self._slopes = torch.cuda.Stream(theta.device, priority=-1)
        self._beside = torch.cuda.Stream(theta.device)

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._load(block)
        order = torch.argsort(block.v, dim=1, descending=True, stable=True)  # who takes a step, then the others
        self._put("order", order)
        self._counts = block.v.sum(dim=1).tolist()
        self._quiet = (~(block.v.any(dim=1) | (block.active != 0).any(dim=1))).tolist()

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block; nothing is done in those in which all rest."""
        ready = -1
        for t in range(first, last):
            if self._quiet[t]:
                continue
            if t != ready:
                self._at.fill_(t)
            ready = t + 1
            active = -(-self._counts[t] // self._grain) * self._grain
            active = min(active, self.ground.clients)
            self._iterate(active, partial(self._work, active, t))

    def _work(self, active: int, t: int, here: Tensor, there: Tensor) -> None:
        events, problem = self._places, self.problem
        self._send(t, here)
        if not active:
            self._count()
            self._receive(t, here)
            self._mix(here, there)
            return
        main = torch.cuda.current_stream(here.device)
        self._beside.wait_stream(main)
        with torch.cuda.stream(self._beside):
            self._count()
            self._receive(t, here)
            self._mix(here, there)
        who, x, y = problem.minibatch(events["order"], events["rows"], self._at, active)
        gradient = self._gradient[:active]
        own = there[: self.ground.clients]

        def step(first: int, last: int) -> None:
            self._beside.wait_stream(torch.cuda.current_stream(here.device))
            with torch.cuda.stream(self._beside):
                mixing.less(own, gradient, who, events["step"], self._at, first, last)

        problem.gradients(here, who, x, y, gradient, step, self._slopes)
        main.wait_stream(self._beside)
