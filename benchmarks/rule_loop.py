"""A careful plain PyTorch loop of any method: modules and autograd, one matrix product to mix, gathers to exchange.

Its events are drawn before it is measured, and everything that follows from them alone (matrices, which ends fire) is
made then, too: the loop is given for nothing what the engine computes block by block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.method_loops import Rows
from dspodfl.algorithms import Arc, PerLink, Receive, Rule, Send, fitted
from dspodfl.engine import Run, Stack, tree
from dspodfl.problem.models import Model
from dspodfl.rng import Stream

LENGTH = 250
"""Iterations whose events are drawn; they are then repeated."""


@dataclass(frozen=True, eq=False)
class Flat:
    """Rows of models in the order of ``named_parameters``: a `dspodfl.algorithms.Layout`."""

    parameters: int
    shapes: tuple[tuple[int, ...], ...]

    def flat(self, x: Tensor) -> Tensor:
        """The same rows."""
        return x

    def packed(self, x: Tensor) -> Tensor:
        """The same rows."""
        return x


@dataclass(frozen=True, eq=False)
class Iteration:
    """What happens at an iteration, and a `dspodfl.algorithms.Step` with PyTorch's operations."""

    loop: RuleLoop
    k: int
    v: Tensor
    lr: Tensor
    active: Tensor
    p: Tensor
    """P, (clients, clients)."""
    q: Tensor | None
    """−L with the weights q_ij r_ij, (clients, clients)."""
    chance: Tensor | None

    @cached_property
    def ends(self) -> Tensor:
        """The ends that fire, two for each link."""
        link = self.active.nonzero().flatten()
        return torch.stack([2 * link, 2 * link + 1], dim=1).flatten()

    @cached_property
    def at(self) -> Tensor:
        """The client of each of these ends."""
        return self.loop.ends[self.ends]

    @cached_property
    def arc(self) -> Arc:
        """The weights of these ends."""
        weight = self.active[self.ends >> 1][:, None]
        return Arc(weight, weight, weight, None if self.chance is None else self.chance[self.ends >> 1][:, None])

    @cached_property
    def linked(self) -> Tensor:
        """Which clients have a link that fires."""
        out = torch.zeros_like(self.v, dtype=torch.bool)
        out[self.at] = True
        return out

    @property
    def n(self) -> Tensor:
        """The number of clients."""
        return self.loop.n

    @property
    def client(self) -> Tensor:
        """The number of each client."""
        return self.loop.number

    @property
    def layout(self) -> Flat:
        """Where parameters are."""
        return self.loop.layout

    @property
    def probability(self) -> Tensor:
        """With which probability clients step."""
        return self.loop.steps

    @property
    def link_rate(self) -> Tensor:
        """The mean rate of each client's links."""
        return self.loop.link_rate

    def gate(self, who: Tensor) -> Iteration:
        """The links of which an end is in ``who``."""
        active = self.active * who[self.loop.ends, 0].view(-1, 2).any(dim=1)
        p = torch.eye(len(self.v)) + _pull(active, self.loop.ends, len(self.v))
        return replace(self, active=active, p=p)

    def gradient(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """diag(scale) G(x); who has no scale costs nothing."""
        self.loop.theta.copy_(x)  # the modules' parameters are views of it
        some = range(len(x)) if scale is None else scale[:, 0].nonzero().flatten().tolist()
        self.loop.compute(list(some))
        return self.loop.gradient.clone() if scale is None else self.loop.gradient * scale

    def mix(self, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """Px − minus."""
        return self.p @ x if minus is None else torch.addmm(minus, self.p, x, beta=-1)

    def exchange(
        self, x: Any, send: Send, receive: Receive, memory: PerLink | None = None
    ) -> tuple[Any, PerLink | None]:
        """Messages over the links that fire."""
        own = tree(lambda a: a[self.at], x)
        mine = None if memory is None else tuple(a[self.ends] for a in memory.rows)
        message = send(own, mine)
        theirs = tree(lambda a: a.unflatten(0, (-1, 2)).flip(1).flatten(0, 1), message)
        added, new = receive(own, message, theirs, mine, self.arc)
        if memory is not None:
            for a, values in zip(memory.rows, new, strict=True):
                a[self.ends] = values
        return tree(lambda a: a.new_zeros((len(self.v), *a.shape[1:])).index_add_(0, self.at, a), added), memory

    def total(self, memory: PerLink) -> tuple[Tensor, ...]:
        """Memory summed over the links of each client."""
        return tuple(a.new_zeros((len(self.v), *a.shape[1:])).index_add_(0, self.loop.ends, a) for a in memory.rows)

    def around(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The neighbours whose links fire."""
        there = self.weights_around() != 0
        return torch.where(there[:, :, None], x[self.loop.near[0]], 0.0), there

    def weights_around(self) -> Tensor:
        """Their weights."""
        _, link, there = self.loop.near
        return torch.where(there, self.active[link], 0.0)

    def words(self, stream: Stream, slots: int) -> Tensor:
        """Random words."""
        return torch.randint(2**32, (len(self.v), slots))


class RuleLoop(Rows):
    """The update of a rule, with modules and autograd for gradients and one run alone."""

    def __init__(
        self, model: Model, run: Run, rule: Rule, batch_size: int = 16, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(model, run, batch_size, device)
        graph, stack = run.rates.graph, Stack([run])
        self.rule = fitted(rule, tuple(tuple(shape) for shape in model.shapes.values()))
        self.layout = Flat(model.parameters, tuple(tuple(shape) for shape in model.shapes.values()))
        self.ends = torch.from_numpy(graph.edges).reshape(-1)
        self.n, self.number = torch.full((graph.n, 1), float(graph.n)), torch.arange(graph.n)[:, None]
        self.near = _around(graph.edges, graph.n)
        rate, degree = torch.zeros(graph.n), torch.zeros(graph.n)
        b = torch.from_numpy(run.rates.link(np.zeros(1, dtype=np.int64))[0]).float().repeat_interleave(2)
        rate.index_add_(0, self.ends, b), degree.index_add_(0, self.ends, torch.ones_like(b))
        self.link_rate = torch.where(degree > 0, rate / degree.clamp(min=1), 1.0)[:, None]
        (block,) = stack.blocks(LENGTH, LENGTH, dtype=torch.float32)
        chance, self.steps = _known(stack, block.k)
        self.events = [
            Iteration(
                self, t, block.v[t].float()[:, None], block.lr[t][:, None], active := block.active[t],
                torch.eye(graph.n) + _pull(active, self.ends, graph.n),
                None if chance is None else _pull(active * chance, self.ends, graph.n), chance,
            )
            for t in range(LENGTH)
        ]  # fmt: skip
        for e in self.events:
            _ = e.arc, e.linked
        self.now = self.theta.clone()
        self.state = self.rule.init(self.now, graph.links)
        self.k = 0

    def iterate(self) -> None:
        """One iteration of the rule."""
        self.now, self.state = self.update(self.events[self.k % LENGTH])
        self.k += 1

    def vectors(self) -> Tensor:
        """All models, one row a client."""
        return self.now

    def update(self, e: Iteration) -> tuple[Tensor, Any]:
        """The new models and the new state."""
        return self.rule.step(self.now, self.state, e)


class ExtraLoop(RuleLoop):
    """EXTRA: two matrix products."""

    def update(self, e: Iteration) -> tuple[Tensor, Any]:
        """Θ ← PΘ − αV(G − h),  h ← h − (1/2α) L_q Θ."""
        assert e.q is not None
        flow = e.q @ self.now
        move = (e.gradient(self.now, e.v) - self.state).mul_(e.lr * e.v)
        return torch.addmm(move, e.p, self.now, beta=-1), torch.addcdiv(self.state, flow, e.lr, value=0.5)


class ProxSkipLoop(RuleLoop):
    """Sporadic Scaffnew: two matrix products."""

    def update(self, e: Iteration) -> tuple[Tensor, Any]:
        """Θ̂ = Θ − αV(G − h),  Θ ← Θ̂ − s L Θ̂,  h ← h − (s/α) L_q Θ̂."""
        assert e.q is not None
        rule: Any = self.rule
        half = self.now - (e.gradient(self.now, e.v) - self.state).mul_(e.lr * e.v)
        state = torch.addcdiv(self.state, e.q @ half, e.lr, value=rule.s)
        return torch.lerp(half, e.p @ half, rule.s), state


class PushPullLoop(RuleLoop):
    """Push–Pull, and sporadic tracking, on an undirected graph: both matrices are P."""

    def update(self, e: Iteration) -> tuple[Tensor, Any]:
        """Θ ← P(Θ − αVY),  Y ← PY + H⁺ − H."""
        before, held = self.state
        new = torch.where(e.v > 0, e.gradient(self.now, e.v), held)
        y = before + new - held
        return e.p @ (self.now - e.lr * e.v * y), (e.p @ y, new)


class PushSumLoop(RuleLoop):
    """Push-sum on an undirected graph."""

    def update(self, e: Iteration) -> tuple[Tensor, Any]:
        """Θ ← P(Θ − αVG(Θ/w)),  w ← Pw."""
        u, w = self.now, self.state
        return e.p @ (u - e.gradient(u / w, e.lr * e.v)), e.p @ w


class PushDigingLoop(RuleLoop):
    """Push-DIGing on an undirected graph."""

    def update(self, e: Iteration) -> tuple[Tensor, Any]:
        """Θ ← P(Θ − αVY),  w ← Pw,  Y ← PY + H⁺ − H at Θ/w."""
        w, before, held = self.state
        new = torch.where(e.v > 0, e.gradient(self.now / w, e.v), held)
        y = before + new - held
        return e.p @ (self.now - e.lr * e.v * y), (e.p @ w, e.p @ y, new)


class SwiftLoop(RuleLoop):
    """SWIFT: who fires pulls."""

    def update(self, e: Iteration) -> tuple[Tensor, Any]:
        """Θ ← Θ + V(PΘ − Θ) − αVG."""
        return self.now + e.v * (e.p @ self.now - self.now) - e.gradient(self.now, e.lr * e.v), None


MATRIX_LOOPS: dict[str, type[RuleLoop]] = {
    "extra": ExtraLoop,
    "sporadic_scaffnew": ProxSkipLoop,
    "push_pull": PushPullLoop,
    "sporadic_tracking": PushPullLoop,
    "push_sum": PushSumLoop,
    "push_diging": PushDigingLoop,
    "swift": SwiftLoop,
}
"""Methods whose rules exchange messages, and that a careful person writes with matrices."""


def _pull(weight: Tensor, ends: Tensor, n: int) -> Tensor:
    """−L of links with some weights: rows sum to 0."""
    out = torch.zeros(n, n)
    i, j = ends.view(-1, 2).T
    out[i, j] = out[j, i] = weight
    return out - torch.diag(out.sum(1))


def _around(edges: np.ndarray, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The neighbours of each client, the links to them, and which there are, (clients, most) each."""
    near: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for e, (i, j) in enumerate(edges.tolist()):
        near[i].append((j, e))
        near[j].append((i, e))
    most = max(1, *map(len, near))
    table = torch.tensor([[*some, *[(0, -1)] * (most - len(some))] for some in near])
    return table[:, :, 0], table[:, :, 1].clamp(min=0), table[:, :, 1] >= 0


def _known(stack: Stack, k: np.ndarray) -> tuple[Tensor | None, Tensor]:
    """The probabilities of links and clients, where the schedule knows them."""
    try:
        q, d = stack.probabilities(k)[0], stack.step_probabilities(k)[0]
    except Exception:  # schedules that are called for their events refuse in ways of their own: none are known then
        return None, torch.ones(stack.clients, 1)
    return torch.from_numpy(q).float(), torch.from_numpy(d).float()[:, None]
