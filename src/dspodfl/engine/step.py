"""One iteration of a stack as a rule sees it: `dspodfl.algorithms.Step` over the clients that a process holds.

The ends of link e are numbered 2e (at its first client) and 2e + 1 (at its second). Ends that fire are gathered, their
messages made, swapped between the two ends of a link (over the transport where another process holds the other end),
and what they add is summed up client by client in the order of the links.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dspodfl import rng
from dspodfl.algorithms import Arc, PerLink, Receive, Rule, Send, Step, UnderAttack, needs_probability
from dspodfl.engine import compiled_linear
from dspodfl.engine.compiled_linear import LinearOperations
from dspodfl.engine.ends import Ends, Fired, crossing, cut, like, summed, swapped, tensors, tree, x_device
from dspodfl.engine.events import Block
from dspodfl.engine.exchange import Split
from dspodfl.engine.mixer import HaloMixer, Mixer
from dspodfl.errors import InputError
from dspodfl.problem import Problem
from dspodfl.rng import Stream

_MAX_ELEMENTS_PER_CHUNK = 2**24
"""Elements of an array that are gathered for the ends of links in one batch."""


class Stage:
    """Makes the `Step` of each iteration of a block.

    Args:
        split: The clients held here, and the transport to the others.
        problem: Data and model of these clients.
        rule: The rule that is called.
        mixer: Multiplies by P(k).
    """

    def __init__(self, split: Split, problem: Problem, rule: Rule, mixer: Mixer | HaloMixer) -> None:
        self.split, self.problem, self.mixer = split, problem, mixer
        self.ends = Ends(split, problem.device)
        self.layout = _Layout(problem)
        fast = compiled_linear.available(problem) and problem.full is None
        self.compiled = LinearOperations(split, problem) if fast else None
        self._needs_probability = needs_probability(rule)
        self._fired: Fired | None = None
        self.gates: Any = None  # `dspodfl.engine.gate.Gates`, where the rule decides which links fire
        self._attack = split.shard.stack.attack
        if self._attack is not None:
            attacker = torch.from_numpy(split.shard.stack.attackers(split.shard.own))
            self._attacker = attacker.to(problem.device, problem.dtype)[:, None]

    def load(self, block: Block) -> None:
        """Take the events of the next block, of the clients and links held here."""
        self.block = block
        self.v = block.v.to(self.problem.dtype)[:, :, None].unbind()
        self.lr = block.lr[:, :, None].unbind()
        if self.compiled is not None:
            self.compiled.load(block.k, block.active)
        self.batches = self.problem.batches(block.k) if self.problem.full is None and self.compiled is None else None
        self.probability = self._probabilities(block) if self._needs_probability else None
        self._step_probability: Tensor | None = None
        self._link_rate: Tensor | None = None
        self._fired = None
        if self.gates is not None:
            self.gates.load(block)

    @cached_property
    def n(self) -> Tensor:
        """The number of clients of the run of each client held here, (clients, 1)."""
        shard = self.split.shard
        count = np.repeat([run.clients for run in shard.stack.runs], [rows.stop - rows.start for rows in shard.rows])
        return torch.from_numpy(count).to(self.problem.device, self.problem.dtype)[:, None]

    @property
    def fired(self) -> Fired:
        """The ends that fire; found out when a rule first exchanges."""
        if self._fired is None:
            self._fired = Fired.of(self.block.active, self.ends.client)
        return self._fired

    def at(self, t: int, theta: Tensor) -> Step:
        """Return the t-th iteration of the block; ``theta`` are the models before it."""
        mix: Callable[..., Tensor]
        if self.gates is not None:
            self.mixer.begin(t, theta)  # it counts how often a rule mixes in an iteration
            return self._attacked(self.gates.at(t))
        if self.block.into is not None:
            mix = _never_mixes
        elif self.compiled is not None and self.compiled.mixes:
            mix = partial(self._mixed, self.compiled, t)
        else:
            mix = self.mixer.begin(t, theta)
        return self._attacked(StackStep(self, t, mix))

    def _attacked(self, found: StackStep) -> Step:
        """The iteration as attackers leave it."""
        return found if self._attack is None else cast(Step, UnderAttack(found, self._attack.kind, self._attacker))

    def _mixed(self, compiled: LinearOperations, t: int, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """P(k)x − minus by compiled code, where rows are as wide as models."""
        if x.shape[1:] == (self.problem.width,) and x.dtype == self.problem.dtype:
            return compiled.mix(t, x, minus)
        return self.mixer.apply(t, x, minus)

    @property
    def step_probability(self) -> Tensor:
        """With which probability each client steps; found out when a rule first asks. Shape: (iterations or 1, …)."""
        if self._step_probability is None:
            found = self.split.shard.stack.step_probabilities(self.block.k)[:, self.split.shard.own]
            self._step_probability = torch.from_numpy(found).to(self.problem.device, self.problem.dtype)
        return self._step_probability

    @property
    def link_rate(self) -> Tensor:
        """The mean rate of each client's links; found out when a rule first asks. Shape: (iterations or 1, …)."""
        if self._link_rate is None:
            found = self.split.shard.stack.link_rates(self.block.k)[:, self.split.shard.own]
            self._link_rate = torch.from_numpy(found).to(self.problem.device, self.problem.dtype)
        return self._link_rate

    def _probabilities(self, block: Block) -> Tensor:
        """With which probability each link fires, or comes in at each end. Shape: (iterations or 1, links or ends)."""
        stack, shard = self.split.shard.stack, self.split.shard
        found = stack.probabilities(block.k)
        at = shard.link if block.into is None else (2 * shard.link[:, None] + np.arange(2)).reshape(-1)
        return torch.from_numpy(found[:, at]).to(self.problem.device, self.problem.dtype)


class StackStep:
    """One iteration of a stack: a `dspodfl.algorithms.Step`."""

    def __init__(self, stage: Stage, t: int, mix: Callable[..., Tensor]) -> None:
        self._stage, self._t, self.mix = stage, t, mix
        self.k, self.layout = int(stage.block.k[t]), stage.layout
        self.v, self.lr = stage.v[t], stage.lr[t]

    @cached_property
    def linked(self) -> Tensor:
        """Which clients have a link that fires. Shape: (clients, 1), bool."""
        fires = (self._stage.block.active[self._t] != 0).to(torch.float32)
        ends = self._stage.ends
        count = fires.new_zeros(ends.rows).index_add_(0, ends.client, fires.repeat_interleave(2))
        return (count[: len(self.v)] > 0)[:, None]

    @property
    def n(self) -> Tensor:
        """The number of clients of each client's run. Shape: (clients, 1)."""
        return self._stage.n

    @property
    def client(self) -> Tensor:
        """The number of each client in its run. Shape: (clients, 1), int64."""
        return self._stage.split.shard.addresses(self._stage.problem.device)[1][:, None]

    @property
    def probability(self) -> Tensor:
        """With which probability each client steps, by the schedule. Shape: (clients, 1)."""
        found = self._stage.step_probability
        return found[min(self._t, len(found) - 1)][:, None]

    @property
    def link_rate(self) -> Tensor:
        """The mean of the rates of each client's links, 1 where it has none. Shape: (clients, 1)."""
        found = self._stage.link_rate
        return found[min(self._t, len(found) - 1)][:, None]

    def gate(self, who: Tensor) -> StackStep:
        """Return the iteration with fewer links; see `dspodfl.algorithms.Step.gate`."""
        if self._stage.gates is None:
            raise InputError("the rule", "gate", "one that declares gates = True: what passes is then counted")
        found: StackStep = self._stage.gates.through(self, self._t, who)
        return found

    def gradient(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Compute diag(scale) G(x). Shapes: x (clients, width), scale (clients, 1) -> (clients, width)."""
        problem, batches, compiled = self._stage.problem, self._stage.batches, self._stage.compiled
        factor = None if scale is None else scale[:, 0]
        if compiled is not None:
            return compiled.gradient(self._t, x, factor)
        if batches is None:
            assert problem.full is not None
            return problem.full.gradient(x, factor)
        return problem.gradient(x, *batches[self._t], factor)

    def words(self, stream: Stream, slots: int) -> Tensor:
        """Draw words at the address of each client and this iteration. Shape: (clients, slots), int64."""
        seed, client = self._stage.split.shard.addresses(self._stage.problem.device)
        at = torch.full_like(seed, self.k)
        return rng.words(seed, stream, client, k=at, slots=slots)

    def total(self, memory: PerLink) -> tuple[Tensor, ...]:
        """Add up memory over all links of each client. Shapes: (2 · links, …) -> (clients, …) of each tensor."""
        ends, clients = self._stage.ends, len(self.v)
        totals = tuple(a.new_zeros((ends.rows, *a.shape[1:])) for a in memory.rows)
        for out, a in zip(totals, memory.rows, strict=True):
            if a.device.type == "cpu":
                out.index_add_(0, ends.client, a)
            else:
                for rows, some in ends.by_position:
                    out.index_add_(0, rows, a.index_select(0, some))
        return tuple(out[:clients] for out in totals)

    def around(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the neighbours whose links fire, (clients, most, width), and which there are."""
        shard = self._stage.split.shard
        if self._stage.block.into is not None:
            _never_mixes()
        neighbour, _, _ = shard.padded(x.device)
        rows = self._stage.mixer.with_halo(self._t, x)
        fires = self.weights_around() != 0
        return torch.where(fires[:, :, None], rows[neighbour], 0.0), fires

    def weights_around(self) -> Tensor:
        """Return the weights of these neighbours, 0 where a link does not fire. Shape: (clients, most)."""
        active = self._stage.block.active[self._t]
        _, link, there = self._stage.split.shard.padded(active.device)
        return torch.where(there, active[link], 0.0) if len(active) else active.new_zeros(there.shape)

    def exchange(
        self, x: Any, send: Send, receive: Receive, memory: PerLink | None = None
    ) -> tuple[Any, PerLink | None]:
        """Exchange messages over the links that fire; see `dspodfl.algorithms.Step.exchange`."""
        if not self._stage.split.shard.is_whole:
            return self._across(x, send, receive, memory)
        clients = self._stage.split.shard.clients
        widest = max(leaf.numel() for leaf in tensors(x)) // clients
        some = max(2, 2 * (_MAX_ELEMENTS_PER_CHUNK // (2 * max(1, widest))))
        if x_device(x).type == "cpu":
            ends, rows = self._stage.fired.at(self._t), self._stage.fired.clients_at(self._t)
            count = ends.shape[0]
            if count <= some:
                added = self._received(x, ends, rows, send, receive, memory)
                return summed(None, clients, rows, added), memory
            total: Any = None
            for first in range(0, count, some):
                here = slice(first, first + some)
                added = self._received(x, ends[here], rows[here], send, receive, memory)
                total = summed(total, clients, rows[here], added)
            return total, memory
        return self._masked(x, send, receive, memory, some)

    def _received(
        self, x: Any, ends: Tensor, rows: Tensor, send: Send, receive: Receive, memory: PerLink | None
    ) -> Any:
        """Send and receive at some ends, which come in pairs; the memory is changed in place."""
        own = tree(lambda a: a.index_select(0, rows), x)
        mine = tuple(a.index_select(0, ends) for a in memory.rows) if memory is not None else None
        message = send(own, mine)
        added, new = receive(own, message, swapped(message), mine, self._arc(ends))
        if memory is not None:
            for a, values in zip(memory.rows, new, strict=True):
                a.index_copy_(0, ends, values)
        return added

    def _arc(self, ends: Tensor) -> Arc:
        block, found = self._stage.block, self._stage.probability
        link = ends >> 1 if block.into is None else ends
        chance = None if found is None else found[min(self._t, len(found) - 1)].index_select(0, link)[:, None]
        if block.into is not None and block.row is not None:
            into, back = (block.into[self._t].index_select(0, at)[:, None] for at in (ends, ends ^ 1))
            return Arc(into, back, block.row[self._t].index_select(0, ends)[:, None], chance)
        weight = block.active[self._t].index_select(0, link)[:, None]
        return Arc(weight, weight, weight, chance)

    def _masked(self, x: Any, send: Send, receive: Receive, memory: PerLink | None, some: int) -> tuple[Any, Any]:
        """All ends in one batch after the other, of which those that do not fire change nothing: for a GPU.

        Which ends fire is known there alone, and need not be known here.
        """
        stage = self._stage
        ends = stage.ends.everything
        parts = []
        for first in range(0, len(ends), some):
            here = ends[first : first + some]
            fires = (stage.block.active[self._t] != 0).index_select(0, here >> 1)
            rows = stage.ends.client[here]
            own = tree(lambda a, rows=rows: a.index_select(0, rows), x)
            mine = tuple(a[first : first + some] for a in memory.rows) if memory is not None else None
            message = send(own, mine)
            added, new = receive(own, message, swapped(message), mine, self._arc(here))
            if memory is not None and mine is not None:
                for a, values in zip(mine, new, strict=True):
                    a.copy_(torch.where(like(fires, a), values, a))
            parts.append(tree(lambda a, fires=fires: torch.where(like(fires, a), a, 0), added))
        if not parts:
            return self._nothing(x, send, receive, memory), memory
        whole = tree(lambda *some: torch.cat(some), *parts)
        total = tree(lambda a: a.new_zeros((stage.split.shard.clients, *a.shape[1:])), whole)
        for rows, ends in stage.ends.by_position:
            tree(lambda out, a, rows=rows, ends=ends: out.index_add_(0, rows, a.index_select(0, ends)), total, whole)
        return total, memory

    def _nothing(self, x: Any, send: Send, receive: Receive, memory: PerLink | None) -> Any:
        """What is added where there is no link: zeros of the form that ``receive`` gives."""
        none = self._stage.ends.client[:0]
        added = self._received(x, none, none, send, receive, memory)
        return tree(lambda a: a.new_zeros((len(next(tensors(x))), *a.shape[1:])), added)

    def _across(self, x: Any, send: Send, receive: Receive, memory: PerLink | None) -> tuple[Any, PerLink | None]:
        """As `exchange`, where some of the other ends are held by other processes."""
        stage, t = self._stage, self._t
        ends, device = stage.ends, x_device(x)
        fired = stage.fired.at(t).cpu()
        fired = fired[torch.from_numpy(ends.owned)[fired]]
        here = fired.to(device)
        rows = ends.client[here]
        own = tree(lambda a: a.index_select(0, rows), x)
        mine = tuple(a.index_select(0, here) for a in memory.rows) if memory is not None else None
        message = send(own, mine)
        theirs = tree(lambda part: self._swapped_across(part, here), message)
        added, new = receive(own, message, theirs, mine, self._arc(here))
        if memory is not None:
            for a, values in zip(memory.rows, new, strict=True):
                a.index_copy_(0, here, values)
        return summed(None, stage.split.shard.clients, rows, added), memory

    def _swapped_across(self, message: Tensor, own: Tensor) -> Tensor:
        """The messages of the other ends of some owned ends. Shapes: (ends, …), (ends,) -> (ends, …)."""
        stage, t = self._stage, self._t
        ends = stage.ends
        place = message.new_empty((len(ends.client), *message.shape[1:]))
        place.index_copy_(0, own, message)
        active = (stage.block.active[t] != 0).cpu().numpy()[None]
        leaving, coming = crossing(ends.leave, active), crossing(ends.come, active)
        out = place[torch.from_numpy(leaving[0]).to(place.device)].contiguous()
        into = place.new_empty((len(coming[0]), *place.shape[1:]))
        wait = ends.transport.start(cut(out, leaving[1]), cut(into, coming[1]))
        wait()
        place.index_copy_(0, torch.from_numpy(coming[0]).to(place.device), into)
        return place.index_select(0, own ^ 1)


def _never_mixes(*_: Tensor, **__: Tensor) -> Tensor:
    """Refuse P(k)x where it is no matrix: a direction of a link may fire alone."""
    raise InputError("the rule", "mix or around", "exchange on a directed graph: weights there are those of each arc")


class _Layout:
    """Where parameters are in the rows of a problem's packed models: a `dspodfl.algorithms.Layout`."""

    def __init__(self, problem: Problem) -> None:
        self.parameters = problem.model.parameters
        self.shapes = tuple(tuple(shape) for shape in problem.model.shapes.values())
        self._problem = problem

    def flat(self, x: Tensor) -> Tensor:
        """Return rows in the order of ``named_parameters``. Shapes: (rows, width) -> (rows, p)."""
        return self._problem.unpack(x)

    def packed(self, x: Tensor) -> Tensor:
        """Return rows in the order of the stacked models. Shapes: (rows, p) -> (rows, width)."""
        return self._problem.pack(x)


def check_probabilities(rule: Rule, label: str, knows: bool) -> None:
    """Refuse a rule that needs the probabilities of links under a schedule that does not know them.

    Args:
        rule: The rule.
        label: Of the algorithm.
        knows: Whether the schedule knows them.

    Raises:
        InputError: It needs them, and the schedule does not know them.
    """
    if needs_probability(rule) and not knows:
        allowed = "one that knows with which probability links fire (independent = True), which its rule needs"
        raise InputError("algorithms.schedule", label, allowed)
