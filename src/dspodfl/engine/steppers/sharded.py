"""Ways to advance the models that one of several processes holds; the others send the rows that its links need.

    Θ ← PΘ − αVG,   P = P_here + P_cut

Rows start on their way, then come gradients and mixing among the clients here, then the rows that have come: nothing
waits that does not have to. `Stepwise` works for every model, rule and device; `Compiled` for linear models on the CPU;
`dspodfl.engine.steppers.cuda` has those for GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.cpu import linear as compiled
from dspodfl._kernels.cuda import mixing
from dspodfl.algorithms import SIMULTANEOUS, Rule, declared_mixes, fused_kernel
from dspodfl.engine.exchange import Exchange
from dspodfl.engine.mixer import sparse
from dspodfl.engine.shard import Shard
from dspodfl.engine.stack import Block, Neighbours
from dspodfl.engine.state import unfrozen
from dspodfl.engine.steppers import cuda as gpu
from dspodfl.engine.steppers.local import ALONE, BUSY, Advance, in_huge_pages, on_cpu
from dspodfl.engine.transport.base import Team, Wait
from dspodfl.errors import InputError
from dspodfl.problem import Problem
from dspodfl.problem.models import has_bias


@dataclass(frozen=True, eq=False)
class Split:
    """The part of a stack that is held here, and those who hold the rest."""

    shard: Shard
    team: Team

    def exchange(self, like: Tensor, *, once: bool = True) -> Exchange:
        """What brings the others' rows, to where some models are; ``once`` where that is once in every iteration."""
        buffers = like.new_empty((2, len(self.shard.halo), like.shape[1])).unbind()
        return Exchange(self.shard, self.team, buffers, once=once)

    def assembled(self, values: Tensor, run: int) -> Tensor:
        """What each process holds of the clients of a run, in their order; all processes ask together.

        Shapes: (clients of the run owned here, ...) -> (clients of the run, ...).
        """
        owned = [self.shard.owned(rank, run) for rank in range(self.team.ranks)]
        parts = self.team.collect(values, [len(numbers) for numbers in owned])
        out = values.new_empty((self.shard.stack.runs[run].clients, *values.shape[1:]))
        for numbers, part in zip(owned, parts, strict=True):
            out[torch.from_numpy(numbers).to(out.device)] = part
        return out


def choose(split: Split, problem: Problem, rule: Rule, theta: Tensor, state: Any = None) -> Advance:
    """The fastest way that there is for a rule, a model and a device. ``theta`` is used up.

    ``state`` is what the rule carries where it is taken up again; without one, it begins.
    """
    if on_cpu(problem, rule):
        return Compiled(split, problem, theta)
    found = gpu.choose(split.shard, problem, rule, theta, split.exchange)
    return found or Stepwise(split, problem, rule, theta, state)


class Stepwise:
    """One iteration at a time, as the rule says it. Of the paper's own update, rows travel beside the gradients."""

    rests, idles = False, True

    def __init__(self, split: Split, problem: Problem, rule: Rule, theta: Tensor, state: Any = None) -> None:
        self.theta, self._rule, self._problem, self._shard = theta, rule, problem, split.shard
        self.state: Any = rule.init(theta) if state is None else state
        self._declared, self._mixed = declared_mixes(rule), 0
        self._exchange = split.exchange(theta, once=self._declared == 1)
        self._both = theta.new_zeros((len(theta) + len(split.shard.halo), theta.shape[1]))
        self._others: dict[int, Exchange] = {}
        fast = mixing.available(theta.device, theta.dtype)
        links = _with_halo(split.shard)
        self._links = mixing.Links.of(links, theta.device) if fast else None
        self._alive: Tensor | None = None

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._v, self._lr = block.v.to(self._problem.dtype).unbind(), block.lr.unbind()
        self._active = block.active
        self._exchange.load(block.active.cpu().numpy())
        self._others = {}
        self._batches = self._problem.batches(block.k)

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        for t in range(first, last):
            x, y = self._batches[t]
            early = self._exchange.start(t, self.theta) if fused_kernel(self._rule) == SIMULTANEOUS else None
            gradient: Any = partial(_gradient, self._problem, x, y)
            mix: Any = partial(self._mix, t, early)
            self._mixed = 0
            new, state = self._rule.step(self.theta, mix, gradient, self._v[t], self._lr[t], self.state)
            self._check_count(self._mixed)
            self.theta, self.state = unfrozen(self._alive, (new, state), (self.theta, self.state))

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        if self._alive is None:
            self._alive = torch.ones(len(self.theta), dtype=torch.bool, device=self.theta.device)
        self._alive[self._shard.rows[run]] = False

    def _check_count(self, mixed: int) -> None:
        """Refuse a rule that does not keep what it declares: all ranks would wait for each other."""
        if self._declared is not None and mixed != self._declared:
            allowed = f"{mixed}, as often as the rule mixes (or leave it out)"
            raise InputError(f"{type(self._rule).__name__}.mixes", self._declared, allowed)

    def _mix(self, t: int, early: Wait | None, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """P(k)x less ``minus``; what crosses is on its way already if it was started early."""
        if self._mixed == self._declared:
            self._check_count(self._mixed + 1)
        self._mixed += 1
        exchange = self._exchange_of(x)
        wait = early or exchange.start(t, x)
        own, same = len(x), x.shape[1] == self._both.shape[1]
        both = self._both if same else x.new_zeros((len(self._both), x.shape[1]))
        both[:own] = x
        wait()
        rows, came = exchange.arrived(t)
        both.index_copy_(0, own + rows, came)
        if self._links is not None:
            mixed = mixing.mixed(both, self._links, self._active[t])[:own]
        else:
            mixed = sparse(self._shard.ends, self._active[t], both)[:own]
        return mixed if minus is None else torch.sub(mixed, minus, out=minus)

    def _exchange_of(self, x: Tensor) -> Exchange:
        """What brings rows of the width of x: rules may mix other things than models."""
        width = x.shape[1]
        if width == self.theta.shape[1]:
            return self._exchange
        if width not in self._others:
            self._others[width] = self._exchange.of_width(width)
        return self._others[width]


def _with_halo(shard: Shard) -> Neighbours:
    """The links seen from each row, of which the halo's have none."""
    links = shard.neighbours
    return Neighbours(np.pad(links.ptr, (0, len(shard.halo)), "edge"), links.col, links.link)


def _gradient(problem: Problem, x: Tensor, y: Tensor, theta: Tensor, scale: Tensor | None = None) -> Tensor:
    return problem.gradient(theta, x, y, scale)


class Compiled:
    """Linear models on the CPU, in machine code.

    While rows travel, the clients that need none of them are advanced, and then the others: each client's numbers are
    those of one process, to the bit. Where most clients need rows, all are advanced without them first, and what has
    come is added.
    """

    state, rests, idles = None, False, False

    def __init__(self, split: Split, problem: Problem, theta: Tensor) -> None:
        self._problem, self._shard = problem, split.shard
        own, halo = len(split.shard.own), len(split.shard.halo)
        # One piece of memory: a neighbour's row is then so many rows away, wherever it lies.
        memory = in_huge_pages((2 * (own + halo), theta.shape[1]), theta.dtype)
        self._models, self._turn = [memory[:own], memory[own : 2 * own]], 0
        self._models[0].copy_(theta)
        buffers = memory[2 * own :].split(halo) if halo else [memory[2 * own :]] * 2
        self._exchange = Exchange(split.shard, split.team, buffers)
        self._first = np.array([0, *(rows.stop for rows in split.shard.rows)])
        self._alive = np.ones(len(split.shard.rows), dtype=bool)
        inner, self._links = split.shard.inner, split.shard.neighbours
        self._order = compiled.order_for(theta.numpy(), inner.ptr, inner.col, torch.get_num_threads())
        self._alone = 0
        self._far = np.flatnonzero(self._links.col >= own)
        self._col = self._links.col.copy()
        outer = split.shard.outer
        self._needing = np.repeat(np.arange(own), np.diff(outer.ptr))  # who has each link that leads elsewhere
        self._active = np.zeros((0, 0), dtype=self._models[0].numpy().dtype)

    @property
    def theta(self) -> Tensor:
        """The models, packed. Shape: (clients, width)."""
        return self._models[self._turn]

    def load(self, block: Block) -> None:
        """Take the events of the next block."""
        self._rows = self._problem.draws(block.k).numpy()
        self._step, self._active = block.step.contiguous().numpy(), block.active.contiguous().numpy().copy()
        self._exchange.load(self._active)
        self._still()

    def go(self, first: int, last: int) -> None:
        """Iterations first … last − 1 of the block."""
        own = len(self._order)
        for t in range(first, last):
            wait = self._exchange.start(t, self.theta)
            waiting = self._waiting(t)
            if 2 * np.count_nonzero(waiting) <= own:
                self._advance(t, self._links, self._order[~waiting[self._order]])
                wait()
                place = self._exchange.come.place[t]
                first = (2 - self._turn) * own + (t % 2) * len(self._shard.halo)
                self._col[self._far] = first + place[self._links.col[self._far] - own]
                late = Neighbours(self._links.ptr, self._col, self._links.link)
                self._advance(t, late, self._order[waiting[self._order]])
            else:
                self._advance(t, self._shard.inner, self._order)
                wait()
                self._join(t)
            self._turn = 1 - self._turn

    def _waiting(self, t: int) -> np.ndarray:
        """Which clients need a row that travels at the t-th iteration. Shape: (owned,), bool."""
        waiting = np.zeros(len(self._order), dtype=bool)
        waiting[self._needing[self._active[t, self._shard.outer.link] != 0]] = True
        return waiting

    def _advance(self, t: int, links: Neighbours, clients: np.ndarray) -> None:
        """Steps and mixing of some clients, from one buffer to the other."""
        problem = self._problem
        yields = compiled.advance(
            theta=self._models[self._turn].numpy(),
            other=self._models[1 - self._turn].numpy(),
            x=problem.x.numpy(),
            scale=problem.scale,
            shift=problem.shift,
            y=problem.y.numpy(),
            rows=self._rows[t : t + 1],
            batch_of=problem.batch_of.numpy(),
            step=self._step[t : t + 1],
            ptr=links.ptr,
            col=links.col,
            link=links.link,
            active=self._active[t : t + 1],
            first=self._first,
            alive=self._alive,
            loss=problem.model.loss,
            bias=has_bias(problem.model),
            l2=problem.model.l2,
            threads=1 if self._alone else torch.get_num_threads(),
            home=False,
            order=clients,
        )
        self._alone = max(0, self._alone - 1) if self._alone else ALONE * (yields > BUSY)

    def _join(self, t: int) -> None:
        """Add what has come from elsewhere."""
        here, there = (self._models[n].numpy() for n in (self._turn, 1 - self._turn))
        links, come = self._shard.outer, self._exchange.come
        came = self._exchange.came(t).numpy()
        compiled.join(here, there, came, links.ptr, links.col, links.link, self._active[t], come.place[t])

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        self._alive[run] = False
        rows = self._shard.rows[run]
        self._models[1 - self._turn][rows] = self._models[self._turn][rows]
        self._still()

    def _still(self) -> None:
        """Rows of frozen runs still travel, since who sends them was settled before; nothing is made of them."""
        for run in np.flatnonzero(~self._alive) if len(self._active) else ():  # a run may be frozen before any block
            self._active[:, self._shard.links[run]] = 0
