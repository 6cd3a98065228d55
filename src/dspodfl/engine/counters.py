"""Counts and delays of all runs of a stack, computed together on the device where the events are.

The numbers are those of `dspodfl.network.delay.DelayMeter`, to the last bit: the same additions in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dspodfl._kernels.cuda import ordered_sum as sums
from dspodfl.network import CHUNK, COSTS, Spent, arc_costs, costs

if TYPE_CHECKING:
    from dspodfl.engine.run import Run
    from dspodfl.engine.stack import Stack


@dataclass(frozen=True, eq=False)
class Totals:
    """What was counted before an iteration: all that is needed to continue counting from there.

    Clients' numbers first, links' second, where there is one of each for every run.
    """

    iteration: int
    client: Tensor  # (clients,) raw delay of each client, float64
    link: Tensor  # (links,) raw delay of each link, float64; of directed runs i → j of all links, then j → i of all
    normalized: Tensor  # (runs, 2) normalized delays, float64
    fired: Tensor  # (runs, 2) steps and link uses, int64

    @staticmethod
    def zero(stack: Stack) -> Totals:
        """Return what is counted before the first iteration: nothing."""
        client, link = (torch.zeros(count, dtype=torch.float64) for count in (stack.clients, stack.uses[-1].stop))
        runs = (len(stack.runs), 2)
        return Totals(0, client, link, torch.zeros(runs, dtype=torch.float64), torch.zeros(runs, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class Tally:
    """Cumulative counts and delays after each iteration of a block, shape (iterations, runs) each, on the device."""

    processing: Tensor
    transmission: Tensor
    processing_normalized: Tensor
    transmission_normalized: Tensor
    sgd_steps: Tensor
    link_uses: Tensor
    before: Tensor  # (runs,) cumulative raw total delay before the block
    spent: Callable[[int], tuple[Tensor, Tensor]]  # raw delays of each client and link after a number of iterations
    cost: Tensor  # the cumulative cost of each run in the unit of its budget; raw total delay where it has none
    cost_before: Tensor  # (runs,) the same before the block

    @property
    def total(self) -> Tensor:
        """Raw processing plus transmission."""
        return self.processing + self.transmission

    def totals(self, iteration: int, t: int) -> Totals:
        """What was counted before an iteration, the t-th after the block's first; t ≥ 1."""
        normalized = torch.stack([self.processing_normalized[t - 1], self.transmission_normalized[t - 1]], dim=1)
        fired = torch.stack([self.sgd_steps[t - 1], self.link_uses[t - 1]], dim=1)
        return Totals(iteration, *self.spent(t), normalized, fired)


@dataclass(frozen=True, eq=False)
class Counters:
    """Counts and raw and normalized delays of one run, summed over the events before an iteration."""

    delay_processing: float = 0.0
    delay_transmission: float = 0.0
    delay_processing_normalized: float = 0.0
    delay_transmission_normalized: float = 0.0
    sgd_steps: int = 0
    link_uses: int = 0

    @staticmethod
    def after(tally: Tally, t: int) -> list[Counters]:
        """Return the counters of every run after an iteration of a block.

        Args:
            tally: Of the block.
            t: The number of the iteration in the block.
        """
        delays = (
            tally.processing,
            tally.transmission,
            tally.processing_normalized,
            tally.transmission_normalized,
        )
        found = torch.stack([column[t] for column in delays]).cpu().T.tolist()
        counts = torch.stack([tally.sgd_steps[t], tally.link_uses[t]]).cpu().T.tolist()
        return [Counters(*d, *c) for d, c in zip(found, counts, strict=True)]

    @staticmethod
    def of(totals: Totals, stack: Stack, device: torch.device) -> list[Counters]:
        """Return the counters of every run where it is resumed; the numbers are those of `after`, to the last bit.

        Args:
            totals: What was counted before.
            stack: The runs.
            device: Where to count.
        """
        delays = (*Ledger(stack.runs, device, totals).raw, *totals.normalized.T)
        found = torch.stack([column.cpu() for column in delays]).T.tolist()
        return [Counters(*d, *c) for d, c in zip(found, totals.fired.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the clients, or the links, of every run after each iteration of a block."""

    each: Tensor  # (entities,) raw delay of each entity after the last
    raw: Tensor  # (iterations, runs)
    normalized: Tensor  # (iterations, runs)
    counts: Tensor  # (iterations, runs)


@dataclass(frozen=True, eq=False)
class Trial:
    """What some events would cost; `Ledger.book` makes it so."""

    tally: Tally
    clients: _Sums
    links: _Sums


class Ledger:
    """Adds up what the events of a stack cost, block by block."""

    def __init__(self, runs: Sequence[Run], device: torch.device, start: Totals | None = None) -> None:
        self.runs, self.device = list(runs), device
        self._client = _Account([run.clients for run in runs], device)
        self._link = _Account([run.counted_links for run in runs], device)
        self._fixed = all(run.rates.fixed and not run.topology.time_varying_weights for run in runs)
        self._costs: _Costs | None = None
        self._kinds = [run.budget.kind if run.budget else "delay" for run in runs]
        self._link_bytes = torch.tensor([run.use_bytes for run in runs], dtype=torch.int64, device=device)
        self._begun = start.iteration if start else 0
        if start:
            self._client.begin(start.client, start.normalized[:, 0], start.fired[:, 0])
            self._link.begin(start.link, start.normalized[:, 1], start.fired[:, 1])

    def add(self, k: np.ndarray, v: Tensor, v_hat: Tensor) -> Tally:
        """The cumulative counts and delays after each of the iterations k."""
        return self.book(self.trial(k, v, v_hat))

    def trial(self, k: np.ndarray, v: Tensor, v_hat: Tensor) -> Trial:
        """Add up what events would cost after each of the iterations k, without booking it."""
        v, v_hat = self._new(k, v, v_hat)
        found = self._costs or self._at(k)
        if self._fixed:
            self._costs = found
        before = self._client.total + self._link.total
        client, link = self._client.spent, self._link.spent

        def spent(t: int) -> tuple[Tensor, Tensor]:
            return _later(client, v[:t], found.client[:t]), _later(link, v_hat[:t], found.link[:t])

        clients = self._client.trial(v, found.client, found.client)
        links = self._link.trial(v_hat, found.link, found.everything)
        cost, cost_before = self._cost(k, clients, links, before)
        tally = Tally(
            clients.raw,
            links.raw,
            clients.normalized,
            links.normalized,
            clients.counts,
            links.counts,
            before,
            spent,
            cost,
            cost_before,
        )
        return Trial(tally, clients, links)

    def book(self, found: Trial) -> Tally:
        """Take what was added up for what happened; the next block begins from there."""
        self._client.book(found.clients)
        self._link.book(found.links)
        return found.tally

    def _cost(self, k: np.ndarray, clients: _Sums, links: _Sums, before: Tensor) -> tuple[Tensor, Tensor]:
        """Each run's cost in the unit of its own budget. Shapes: (iterations, runs), (runs,)."""
        if set(self._kinds) <= {"delay"}:  # the usual case, and one without a number more than there are already
            return clients.raw + links.raw, before
        after = torch.from_numpy(k + 1).to(self.device, torch.float64)[:, None].expand(-1, len(self.runs))
        now = (clients.raw, links.raw, clients.normalized, links.normalized, clients.counts, links.counts, after)
        client, link = self._client, self._link
        were = (client.total, link.total, client.normalized, link.normalized, client.fired, link.fired, after[0] - 1)
        used = sorted(set(self._kinds))
        pick = torch.tensor([used.index(kind) for kind in self._kinds], device=self.device)
        cost, first = (
            torch.stack([COSTS[kind].of(Spent(*counted, self._link_bytes)).double() for kind in used])
            for counted in (now, were)
        )
        run = torch.arange(len(self.runs), device=self.device)
        return cost[pick, :, run].T.contiguous(), first[pick, run]

    @property
    def raw(self) -> tuple[Tensor, Tensor]:
        """Raw processing and transmission delay of each run so far. Shapes: (runs,) each."""
        return self._client.total, self._link.total

    def _new(self, k: np.ndarray, v: Tensor, v_hat: Tensor) -> tuple[Tensor, Tensor]:
        """The events that count: what was counted before the ledger began is not counted twice."""
        again = int(self._begun - k[0])
        if again > 0:
            v, v_hat = v.clone(), v_hat.clone()
            v[:again], v_hat[:again] = False, False
        return v, v_hat

    def _at(self, k: np.ndarray) -> _Costs:
        parts = []
        for run in self.runs:
            present, _, degree = run.topology.at(k)
            cost, link_cost = costs_of(run, k, degree)
            current = present if run.topology.time_varying_weights else None
            if run.directed and current is not None:
                current = np.tile(current, 2)
            parts.append((cost, link_cost, link_cost if current is None else np.where(current, link_cost, 0.0)))
        length = max(len(array) for part in parts for array in part)
        joined = (
            np.concatenate([np.broadcast_to(part[n], (length, part[n].shape[1])) for part in parts], axis=1)
            for n in range(3)
        )
        client, link, everything = (torch.from_numpy(array).to(self.device) for array in joined)
        return _Costs(client, link, everything)


def costs_of(run: Run, k: np.ndarray, degree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what a step of each client and a use of each link, or of each of its directions, of a run cost.

    Args:
        run: The run.
        k: The iterations.
        degree: The degrees of the clients, (iterations or 1, clients).

    Returns:
        (iterations or 1, clients) and (iterations or 1, links); of a directed run (iterations or 1, 2 · links), i → j
        of all links, then j → i of all.
    """
    edges, rates = run.rates.graph.edges, run.rates
    if not run.directed:
        step, use = costs(edges, run.clients, rates.sgd(k), rates.link(k), degree, run.link_models)
        return (_without_server(step) if run.server else step), use
    step, _ = costs(edges[:0], run.clients, rates.sgd(k), np.ones((1, 0)), degree)
    into = run.topology.arcs_at(k).in_degree
    return step, arc_costs(edges, run.clients, rates.link(k), rates.back(k), into) * run.link_models


def _without_server(step: np.ndarray) -> np.ndarray:
    """What steps cost where the last node takes none: the mean is over the others. Shape: (iterations or 1, nodes)."""
    nodes = step.shape[1]
    return np.append(step[:, :-1] * (nodes / (nodes - 1)), np.zeros((len(step), 1)), axis=1)


@dataclass(frozen=True, eq=False)
class _Costs:
    """What a step and a link use cost, and a link use where its link exists. Shapes: (iterations or 1, entities)."""

    client: Tensor
    link: Tensor
    everything: Tensor


class _Account:
    """Delays of the clients, or of the links, of every run."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.runs, count, widest = len(sizes), sum(sizes), max(sizes)
        even = len(set(sizes)) == 1
        place = np.full((self.runs, widest), count)
        for r, (size, end) in enumerate(zip(sizes, np.cumsum(sizes).tolist(), strict=True)):
            place[r, :size] = np.arange(end - size, end)
        self._place = None if even else torch.from_numpy(place).to(device)
        self.spent = torch.zeros(count, dtype=torch.float64, device=device)
        self.normalized = torch.zeros(self.runs, dtype=torch.float64, device=device)
        self.fired = torch.zeros(self.runs, dtype=torch.int64, device=device)
        self.total = torch.zeros(self.runs, dtype=torch.float64, device=device)

    def begin(self, spent: Tensor, normalized: Tensor, fired: Tensor) -> None:
        """Continue from what was counted before. Shapes: (entities,), (runs,), (runs,)."""
        device = self.spent.device
        self.spent, self.normalized, self.fired = spent.to(device), normalized.to(device), fired.to(device)
        self.total = self._by_run(self.spent[None])[0]

    def trial(self, fired: Tensor, cost: Tensor, everything: Tensor) -> _Sums:
        """Raw and normalized delays and counts, were these the events. Shapes: (iterations, entities) each."""
        spent = torch.where(fired, cost, 0.0)
        each = running(self.spent, spent)
        raw = self._by_run(each)
        top, bottom = self._by_run(spent), self._by_run(everything)
        ratio = torch.where(bottom > 0, top / torch.where(bottom > 0, bottom, 1.0), 0.0)
        normalized = running(self.normalized, ratio)
        counts = torch.cumsum(self._split(fired).sum(dim=-1), dim=0) + self.fired
        # Copies: a view of one row would keep the whole block.
        return _Sums(each[-1].clone(), raw, normalized, counts)

    def book(self, sums: _Sums) -> None:
        """Begin the next block from there."""
        self.spent, self.normalized = sums.each, sums.normalized[-1].clone()
        self.fired, self.total = sums.counts[-1].clone(), sums.raw[-1].clone()

    def _split(self, values: Tensor) -> Tensor:
        """Shapes: (iterations, entities) -> (iterations, runs, entities of the largest run)."""
        if self._place is None:
            return values.view(len(values), self.runs, -1)
        return torch.nn.functional.pad(values, (0, 1))[:, self._place]

    def _by_run(self, values: Tensor) -> Tensor:
        return in_order(self._split(values))


def _later(spent: Tensor, fired: Tensor, cost: Tensor) -> Tensor:
    """What entities have spent some iterations later. Shapes: (entities,), (T, entities), (T or 1, entities)."""
    return running(spent, torch.where(fired, cost, 0.0))[-1].clone()


def in_order(values: Tensor) -> Tensor:
    """Sums over the last axis with the additions of `network.delay.in_order`. Shapes: (..., entities) -> (...)."""
    while values.shape[-1] > CHUNK:
        short = -values.shape[-1] % CHUNK
        values = _fold(torch.nn.functional.pad(values, (0, short)).unflatten(-1, (-1, CHUNK)))
    return _fold(values)


def _fold(values: Tensor) -> Tensor:
    """One number after the other. A device's own cumulative sums are in no such order."""
    if values.shape[-1] == 0:
        return values.new_zeros(values.shape[:-1])
    if values.device.type == "cpu":
        return torch.cumsum(values, dim=-1)[..., -1]
    if sums.available(values.device):
        return sums.fold(values)
    out = values[..., 0].clone()
    for n in range(1, values.shape[-1]):
        out += values[..., n]
    return out


def running(carry: Tensor, values: Tensor) -> Tensor:
    """Carry + the sum of the first, the first two, … rows, one after the other. Shapes: (n,), (T, n) -> (T, n)."""
    if values.device.type == "cpu":
        return torch.cumsum(torch.cat([carry[None], values]), dim=0)[1:]
    if sums.available(values.device):
        return sums.running(carry, values)
    out = torch.empty_like(values)
    for t in range(len(values)):
        carry = torch.add(carry, values[t], out=out[t])
    return out
