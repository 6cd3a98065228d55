"""What the steppers on a GPU share: whole iterations in Triton kernels, captured and replayed as CUDA graphs.

Where clients are split over processes, rows are exchanged in between, and nothing is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from dspodfl._kernels.cuda import mixing
from dspodfl.engine.events import Block
from dspodfl.engine.exchange import Split
from dspodfl.engine.mixer import Matrices
from dspodfl.engine.transport.base import Wait, nothing
from dspodfl.problem import Problem

GRAPHS = True
"""Whether iterations are captured and replayed as CUDA graphs."""


class CudaStepper:
    """What steppers on a GPU share: events in fixed places, rows of other processes, and iterations that become graphs.

    ``at`` is the number of the iteration in the block, on the device, in one of two buffers that alternate: an
    iteration reads one and writes the next number into the other.
    """

    state, rests, idles = None, True, False

    def __init__(self, split: Split, problem: Problem, theta: Tensor) -> None:
        shard = split.shard
        self.shard, self.problem = shard, problem
        self._exchange = split.exchange(theta)
        self._halo = self._exchange.halo
        self._came: Wait = nothing
        self._buffer = 0
        self._ats = torch.zeros(2, 1, dtype=torch.int64, device=theta.device)
        self._frozen: list[int] = []
        self._places: dict[str, Tensor] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._pool: Any = None
        self._graphed = GRAPHS and split.transport.ranks == 1
        self._first = torch.cuda.Stream(theta.device, priority=-2)  # other streams use what it leaves free
        # Runs mix by one product each where all are small and of one size, else row by row.
        sizes = {rows.stop - rows.start for rows in shard.rows}
        self._small = shard.is_whole and len(sizes) == 1 and max(sizes) <= mixing.SMALL
        self._links = mixing.Links.of(shard.neighbours, theta.device)
        self._matrices = Matrices(shard.stack, theta.device) if self._small else None

    @property
    def _at(self) -> Tensor:
        return self._ats[self._buffer]

    def _count(self) -> None:
        """Write the next iteration's number where it will be read."""
        torch.add(self._at, 1, out=self._ats[1 - self._buffer])

    def _put(self, name: str, values: Tensor) -> None:
        """Copy values of a block to where graphs read them; blocks never get longer."""
        if name not in self._places:
            self._places[name] = values.contiguous().clone()
        else:
            self._places[name][: len(values)].copy_(values)

    def _load(self, block: Block) -> None:
        self._exchange.load(block.active)
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
        self._places["step"][:, self.shard.rows[run]] = 0
        self._places["active"][:, self.shard.links[run]] = 0

    def _receive(self, t: int, halo: Tensor) -> None:
        """Wait for rows of other processes, and copy them to the halo."""
        self._exchange.receive(t, self._came, halo)

    def _iterate(self, key: Hashable, work: Callable[[], None]) -> None:
        """Make an iteration: directly at first (kernels are compiled then), captured the second time, then replayed."""
        key = (key, self._buffer)
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
        self._buffer = 1 - self._buffer
