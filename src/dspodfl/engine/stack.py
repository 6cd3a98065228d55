"""Runs stacked into one: what fires, what it costs, and who mixes with whom, for a block of iterations.

Events are drawn for all runs and many iterations at once, on the device that uses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor

from dspodfl import rng
from dspodfl.data.dataset import Federation
from dspodfl.engine.ledger import Ledger, Tally, Totals
from dspodfl.graph import Part
from dspodfl.learning_rate import LearningRate
from dspodfl.rates import Rates
from dspodfl.rng import Stream
from dspodfl.schedule import Events, Schedule, Sporadic
from dspodfl.topology import Wiring


@dataclass(frozen=True, eq=False)
class Run:
    """One algorithm on one seed: everything that decides its events, and the data its clients hold."""

    algorithm: str
    seed: int
    wiring: Wiring
    rates: Rates
    schedule: Schedule
    data: Federation
    learning_rate: LearningRate
    until: float = math.inf
    """The raw total delay from which on nothing fires any more."""

    @property
    def clients(self) -> int:
        """The number of clients, m."""
        return self.rates.graph.n


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Who is linked with whom, row by row: client n with ``col[ptr[n]:ptr[n+1]]``, ascending, by these links."""

    ptr: np.ndarray  # (clients + 1,)
    col: np.ndarray  # (2 · links,)
    link: np.ndarray  # (2 · links,)


@dataclass(frozen=True, eq=False)
class Block:
    """Iterations first … first + length − 1 of all runs: events, active mixing weights r_ij v̂_ij, and tallies."""

    k: np.ndarray  # (iterations,)
    v: Tensor  # (iterations, clients) bool
    v_hat: Tensor  # (iterations, links) bool
    active: Tensor  # (iterations, links), in the precision of the models
    lr: Tensor  # (iterations, clients), likewise
    tally: Tally
    stack: Stack

    @cached_property
    def step(self) -> Tensor:
        """α·v: how far along its gradient each client goes. Shape: (iterations, clients)."""
        return self.lr * self.v

    def events(self, r: int) -> Events:
        """The events of one run."""
        v, v_hat = self.v[:, self.stack.rows[r]], self.v_hat[:, self.stack.links[r]]
        return Events(v.cpu().numpy(), v_hat.cpu().numpy())


class Stack:
    """The disjoint union of runs: clients of run r are rows ``rows[r]`` of every stacked array, its links ``links[r]``.

    Both are counted through all runs.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self.rows = slices([run.clients for run in runs])
        self.links = slices([run.rates.graph.links for run in runs])
        self.clients, self.all_links = self.rows[-1].stop, self.links[-1].stop

    @cached_property
    def edges(self) -> np.ndarray:
        """Both ends of every link, as rows of the stack. Shape: (links, 2)."""
        return np.concatenate(
            [run.rates.graph.edges + rows.start for run, rows in zip(self.runs, self.rows, strict=True)]
        )

    @cached_property
    def neighbours(self) -> Neighbours:
        """The links seen from each client."""
        i, j = self.edges.T
        number = np.arange(self.all_links, dtype=np.int32)
        ends = np.concatenate([i, j]), np.concatenate([j, i])
        table = coo_array((np.tile(number, 2), ends), shape=(self.clients, self.clients)).tocsr()
        table.sort_indices()
        return Neighbours(table.indptr, table.indices, table.data)

    def blocks(
        self,
        iterations: int,
        length: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        start: Totals | None = None,
    ) -> Iterator[Block]:
        """Consecutive blocks of at most ``length`` iterations, from the one that holds the iteration to start at.

        Blocks begin at multiples of the length wherever a run is taken up again: they are those of a run in one go.
        """
        draw = _Draw(self, torch.device(device), dtype, start)
        begun = start.iteration if start else 0
        for first in range(begun - begun % length, iterations, length):
            yield draw.block(np.arange(first, min(first + length, iterations)))


class _Draw:
    """Draws the blocks of a stack one after the other.

    Most runs fire with the same chances at every iteration, and their coins are kept; the others bring theirs anew
    with each block.
    """

    def __init__(self, stack: Stack, device: torch.device, dtype: torch.dtype, start: Totals | None) -> None:
        self.stack, self.device, self.dtype = stack, device, dtype
        self.ledger = Ledger(stack.runs, device, start)
        runs = list(enumerate(stack.runs))
        steady = [r for r, run in runs if isinstance(run.schedule, Sporadic) and run.schedule.steady(run.rates)]
        self.moving = [r for r, run in runs if isinstance(run.schedule, Sporadic) and r not in set(steady)]
        self.own = [r for r, run in runs if not isinstance(run.schedule, Sporadic)]
        self.wired = [r for r, run in runs if not run.wiring.steady]
        self.coins = self._coins(steady, np.zeros(1, dtype=np.int64))
        weight = joined([run.wiring.at(np.zeros(1, dtype=np.int64))[1] for run in stack.runs])
        self.weight = torch.from_numpy(weight).to(device, dtype)
        count = torch.tensor([run.clients for run in stack.runs], device=device)
        self._run_of = torch.repeat_interleave(torch.arange(len(runs), device=device), count)
        count = torch.tensor([run.rates.graph.links for run in stack.runs], device=device)
        self._run_of_link = torch.repeat_interleave(torch.arange(len(runs), device=device), count)
        until = torch.tensor([run.until for run in stack.runs], dtype=torch.float64, device=device)
        self._until = until if bool(torch.isfinite(until).any()) else None

    def block(self, k: np.ndarray) -> Block:
        """The events of some iterations, and what follows from them."""
        stack, device = self.stack, self.device
        at = torch.from_numpy(k).to(device)[:, None]
        v = torch.zeros((len(k), stack.clients), dtype=torch.bool, device=device)
        v_hat = torch.zeros((len(k), stack.all_links), dtype=torch.bool, device=device)
        for clients, links in filter(None, (self.coins, self._coins(self.moving, k))):
            clients.draw(at, Stream.SGD, v)
            links.draw(at, Stream.LINK, v_hat)
        for r in self.own:
            run = stack.runs[r]
            events = run.schedule(k, Part.whole(run.rates.graph, run.seed), run.rates)
            v[:, stack.rows[r]] = torch.from_numpy(np.ascontiguousarray(events.v)).to(device)
            v_hat[:, stack.links[r]] = torch.from_numpy(np.ascontiguousarray(events.v_hat)).to(device)
        weight = self.weight.expand(len(k), -1).clone() if self.wired else self.weight
        for r in self.wired:
            present, ratio, _ = stack.runs[r].wiring.at(k)
            weight[:, stack.links[r]] = torch.from_numpy(ratio).to(device, self.dtype)
            if present is not None:
                v_hat[:, stack.links[r]] &= torch.from_numpy(present).to(device)
        if self._until is not None:
            over = self.ledger.before(k, v, v_hat) >= self._until
            v &= ~over[:, self._run_of]
            v_hat &= ~over[:, self._run_of_link]
        known = {id(run.learning_rate): run.learning_rate(k) for run in stack.runs}
        rates = np.stack([known[id(run.learning_rate)] for run in stack.runs], axis=1)
        lr = torch.from_numpy(rates).to(device, self.dtype)[:, self._run_of]
        return Block(k, v, v_hat, v_hat * weight, lr, self.ledger.add(k, v, v_hat), stack)

    def _coins(self, runs: list[int], k: np.ndarray) -> tuple[_Coins, _Coins] | None:
        """The coins of some runs, of clients and of links."""
        if not runs:
            return None
        p, q, client, ends, clients, links, both = [], [], [], [], [], [], []
        for r in runs:
            run, graph = self.stack.runs[r], self.stack.runs[r].rates.graph
            assert isinstance(run.schedule, Sporadic)
            chance, exchange = run.schedule.probabilities(k, run.rates)
            p.append(chance)
            q.append(exchange)
            client.append(np.arange(graph.n))
            ends.append(graph.edges)
            clients.append(np.arange(self.stack.rows[r].start, self.stack.rows[r].stop))
            links.append(np.arange(self.stack.links[r].start, self.stack.links[r].stop))
            both.append(np.full(graph.links, run.rates.two_sided))
        seeds = [self.stack.runs[r].seed for r in runs]
        i, number = np.concatenate(client), np.concatenate(clients)
        mine = _Coins.of(
            joined(p), number, np.repeat(seeds, [len(n) for n in client]), i, np.zeros_like(i), self.device
        )
        i, j = np.concatenate(ends).T
        number, seed = np.concatenate(links), np.repeat(seeds, [len(n) for n in links])
        return mine, _Coins.of(joined(q), number, seed, i, j, self.device, np.concatenate(both))


@dataclass(frozen=True, eq=False)
class _Coins:
    """Entities that fire by chance: those in doubt, with addresses and thresholds, and those that always do."""

    number: Tensor  # (entities,) their columns in the stack
    always: Tensor  # (iterations or 1, entities)
    doubt: Tensor  # (in doubt,) columns of the stack, as what follows
    threshold: Tensor  # (iterations or 1, in doubt)
    seed: Tensor
    i: Tensor
    j: Tensor
    both: Tensor | None  # which of them draw at both ends; None: none

    @staticmethod
    def of(
        p: np.ndarray,
        number: np.ndarray,
        seed: np.ndarray,
        i: np.ndarray,
        j: np.ndarray,
        device: torch.device,
        both: np.ndarray | None = None,
    ) -> _Coins:
        always = p >= 1
        doubt = np.flatnonzero(((p > 0) & ~always).any(axis=0))

        def there(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return _Coins(
            there(number),
            there(always),
            there(number[doubt]),
            there(rng.threshold(p[:, doubt])),
            there(seed[doubt]),
            there(i[doubt]),
            there(j[doubt]),
            None if both is None or not both[doubt].any() else there(both[doubt]),
        )

    def draw(self, at: Tensor, stream: Stream, out: Tensor) -> None:
        """Write which entities fire. Shapes: at (iterations, 1), out (iterations, all entities of the stack), bool."""
        out[:, self.number] = self.always.expand(len(at), -1)
        if not len(self.doubt):
            return
        word = rng.words(self.seed, stream, self.i, self.j, at, slots=1 if self.both is None else 2)
        fires = word[..., 0] < self.threshold
        if self.both is not None:
            fires |= self.both & (word[..., 1] < self.threshold)
        out[:, self.doubt] = fires


def joined(runs: Sequence[np.ndarray]) -> np.ndarray:
    """Runs side by side; where any changes with the iteration, all get a row each.

    Shapes: a run each (iterations or 1, own) -> (iterations or 1, all).
    """
    length = max(len(array) for array in runs)
    return np.concatenate([np.broadcast_to(array, (length, array.shape[1])) for array in runs], axis=1)


def slices(sizes: Sequence[int]) -> list[slice]:
    """Consecutive slices of these sizes."""
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
