"""Ways to advance a stack of models through a block of iterations; all give the same models.

`Stepwise` asks the rule, iteration by iteration, with PyTorch's own operations: it works for every model, rule and
device, and is what the others are tested against. The paper's own update has faster ways:

    Compiled   linear models on the CPU    whole blocks in machine code (Numba)
    Fused      linear models on a GPU      two passes over the models an iteration (Triton), CUDA graphs
    Networks   other models on a GPU       gradients of the clients that step alone, one pass to mix and step, graphs
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dspodfl.engine.mix import Matrices, Mixer
from dspodfl.engine.stack import Block, Stack
from dspodfl.kernels import compiled, linear, mixing
from dspodfl.models.gradients import has_bias
from dspodfl.problem import Problem
from dspodfl.rule import Rule, Simultaneous

GRAPHS = True
"""Whether iterations on a GPU are captured and replayed as CUDA graphs."""
_GRAPHED_BYTES = 2**32
"""Models larger than this are advanced without graphs: their kernels take longer than it takes to launch them."""
BUSY, ALONE = 20, 16
"""So many yields an iteration say that the cores are busy; a compiled run then goes on alone for so many calls."""
_BUCKETS = 32
"""Numbers of active clients for which a graph of their own is captured; others are rounded up."""


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


def choose(stack: Stack, problem: Problem, rule: Rule, theta: Tensor, state: Any = None) -> Advance:
    """The fastest way that there is for a rule, a model and a device. ``theta`` is used up.

    ``state`` is what the rule carries where it is taken up again; without one, it begins.
    """
    fp32 = problem.dtype == torch.float32
    if isinstance(rule, Simultaneous):
        outputs, batch = problem.model.outputs, problem.batch_size
        if problem.model.is_linear and problem.device.type == "cpu":
            if problem.compute == problem.dtype and compiled.available():
                return Compiled(stack, problem, theta)
        elif problem.model.is_linear and linear.available(problem.device, problem.dtype, outputs, batch):
            return Fused(stack, problem, theta)
        elif not problem.model.is_linear and fp32 and mixing.available(problem.device, problem.dtype):
            return Networks(stack, problem, theta)
    return Stepwise(stack, problem, rule, theta, state)


class Stepwise:
    """One iteration at a time, as the rule says it."""

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
            new, self.state = self._rule.step(self.theta, mix, gradient, self._v[t], self._lr[t], self.state)
            self.theta = new if self._alive is None else torch.where(self._alive[:, None], new, self.theta)

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

    state = None

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


class _OnGpu:
    """What ways on a GPU share: two buffers of models, events in fixed places, and iterations that become graphs.

    ``at`` is the number of the iteration in the block, on the device: an iteration reads it, and adds one.
    """

    state = None

    def __init__(self, stack: Stack, problem: Problem, theta: Tensor) -> None:
        self.stack, self.problem = stack, problem
        self._models = [theta.contiguous(), torch.empty_like(theta)]
        self._turn = 0
        self._at = torch.zeros(1, dtype=torch.int64, device=theta.device)
        self._frozen: list[int] = []
        self._places: dict[str, Tensor] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._pool: Any = None
        self._graphed = GRAPHS and theta.nbytes <= _GRAPHED_BYTES
        self._first = torch.cuda.Stream(theta.device, priority=-2)  # what runs beside it takes the room it leaves

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        return self._models[self._turn]

    def _put(self, name: str, values: Tensor) -> None:
        """Keep what a block brings where graphs look for it; blocks never get longer."""
        if name not in self._places:
            self._places[name] = values.contiguous().clone()
        else:
            self._places[name][: len(values)].copy_(values)

    def _load(self, block: Block) -> None:
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
        self._places["step"][:, self.stack.rows[run]] = 0
        self._places["active"][:, self.stack.links[run]] = 0

    def _iterate(self, key: Hashable, work: Callable[[Tensor, Tensor], None]) -> None:
        """One iteration: as it is the first time (kernels are compiled then), captured the second, replayed after."""
        key = (key, self._turn)
        here, there = self._models[self._turn], self._models[1 - self._turn]
        if not self._graphed or key not in self._graphs:
            work(here, there)
            self._at += 1
            self._graphs[key] = None
        else:
            graph = self._graphs[key]
            if graph is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._first):
                    work(here, there)
                    self._at += 1
                self._graphs[key] = graph
                self._pool = self._pool or graph.pool()
            graph.replay()
        self._turn = 1 - self._turn


class _Mixed(_OnGpu):
    """Where mixing and stepping are one pass: by whole runs where all are small and of one size, else row by row."""

    def __init__(self, stack: Stack, problem: Problem, theta: Tensor) -> None:
        super().__init__(stack, problem, theta)
        sizes = {run.clients for run in stack.runs}
        self._small = max(sizes) if len(sizes) == 1 and max(sizes) <= mixing.SMALL else 0
        self._links = mixing.Links.of(stack.neighbours, theta.device)
        self._matrices = Matrices(stack, theta.device)

    def _load(self, block: Block) -> None:
        super()._load(block)
        if self._small:
            self._put("p", self._matrices(block.active))

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        super().freeze(run)
        self._small = 0  # products of whole matrices would multiply what is not finite by 0
        self._graphs.clear()
        self._pool = None  # it goes with the graphs

    def _mix(self, here: Tensor, there: Tensor, step: Tensor | None = None) -> None:
        """PΘ, added to the steps that are there already, if there are any."""
        if self._small:
            mixing.mix_runs(here, there, self._places["p"], self._at, step)
        else:
            mixing.mix_rows(here, there, self._links, self._places["active"], self._at, step)


class Fused(_Mixed):
    """Linear models on a GPU: steps, then mixing, in two kernels."""

    def __init__(self, stack: Stack, problem: Problem, theta: Tensor) -> None:
        super().__init__(stack, problem, theta)
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
        for _ in range(first, last):
            self._iterate(None, self._work)

    def _work(self, here: Tensor, there: Tensor) -> None:
        self._steps.move(here, there, self._places["rows"], self._places["step"], self._at)
        self._mix(here, there, self._places["step"])


class Networks(_Mixed):
    """Any model on a GPU: gradients of the clients that take a step alone; beside them mixing and each layer's step.

    Three streams: what the next layer waits for comes first, then slopes by parameters, and in the room that they leave
    what waits for memory.
    """

    def __init__(self, stack: Stack, problem: Problem, theta: Tensor) -> None:
        super().__init__(stack, problem, theta)
        self._gradient = torch.empty_like(theta)
        self._grain = max(1, stack.clients // _BUCKETS)
        self._slopes = torch.cuda.Stream(theta.device, priority=-1)
        self._beside = torch.cuda.Stream(theta.device)

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._load(block)
        order = torch.argsort(block.v, dim=1, descending=True, stable=True)  # who takes a step, then the others
        self._put("order", order)
        self._counts = block.v.sum(dim=1).tolist()

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        self._at.fill_(first)
        for t in range(first, last):
            active = -(-self._counts[t] // self._grain) * self._grain
            active = min(active, self.stack.clients)
            self._iterate(active, partial(self._work, active))

    def _work(self, active: int, here: Tensor, there: Tensor) -> None:
        events, problem = self._places, self.problem
        if not active:
            self._mix(here, there)
            return
        main = torch.cuda.current_stream(here.device)
        self._beside.wait_stream(main)
        with torch.cuda.stream(self._beside):
            self._mix(here, there)
        who, x, y = problem.minibatch(events["order"], events["rows"], self._at, active)
        gradient = self._gradient[:active]

        def step(first: int, last: int) -> None:
            self._beside.wait_stream(torch.cuda.current_stream(here.device))
            with torch.cuda.stream(self._beside):
                mixing.less(there, gradient, who, events["step"], self._at, first, last)

        problem.gradients(here, who, x, y, gradient, step, self._slopes)
        main.wait_stream(self._beside)
