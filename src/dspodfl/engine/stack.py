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
from dspodfl.algorithms import LearningRate, Schedule, draws_independently
from dspodfl.engine.counters import Ledger, Tally, Totals
from dspodfl.errors import InputError
from dspodfl.network import Budget, Events, Part, Rates, Wiring
from dspodfl.problem.data import Federation
from dspodfl.rng import Stream


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
    budget: Budget | None = None
    """What the run may spend: nothing fires any more once it has. None: no limit but iterations."""
    cap: int | None = None
    """The most iterations of the run; None: as many as the loop makes."""
    link_bytes: int = 0
    """Bytes that one use of a link carries, both ways together."""
    need: int | None = None
    """Iterations that the run is expected to take; None: its cap."""

    @property
    def clients(self) -> int:
        """The number of clients, m."""
        return self.rates.graph.n

    @property
    def limit(self) -> float:
        """The cost at which the run ends, in the unit of its budget."""
        return math.inf if self.budget is None else self.budget.value

    def last(self, iterations: int) -> int:
        """Return the most iterations that the run takes in a loop of ``iterations``."""
        counted = self.budget is not None and self.budget.kind == "iterations"
        return min(iterations, self.cap or iterations, math.ceil(self.limit) if counted else iterations)

    @property
    def spends(self) -> bool:
        """Whether its events, and not its iterations alone, decide where the run ends."""
        return self.budget is not None and self.budget.kind != "iterations"


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
    ends: dict[int, int]
    """Run -> the number of iterations after which it is over, of those that end in this block."""
    over: frozenset[int]
    """Runs that were over before it."""

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

    def probabilities(self, k: np.ndarray) -> np.ndarray:
        """Return with which probability each link fires at some iterations, by the schedules of the runs.

        Args:
            k: The iterations.

        Returns:
            Probabilities, (iterations or 1, links).

        Raises:
            InputError: A schedule does not know them.
        """
        found = []
        for run in self.runs:
            if not draws_independently(run.schedule):
                allowed = "one that knows with which probability links fire (independent = True), which its rule needs"
                raise InputError("algorithms.schedule", run.algorithm, allowed)
            q = run.schedule.probabilities(k, run.rates)[1]
            found.append(1.0 - (1.0 - q) ** 2 if run.rates.two_sided else q)
        return joined(found)

    def over(self, totals: Totals, iterations: int, device: torch.device) -> set[int]:
        """Return the runs that are over, of a loop of ``iterations``, once ``totals`` was counted."""
        v, v_hat = (torch.zeros((1, n), dtype=torch.bool, device=device) for n in (self.clients, self.all_links))
        spent = (
            Ledger(self.runs, device, totals).trial(np.array([totals.iteration]), v, v_hat).tally.cost_before.tolist()
        )
        ended = [run.last(iterations) <= totals.iteration for run in self.runs]
        return {r for r, run in enumerate(self.runs) if ended[r] or spent[r] >= run.limit}

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
        draw = _Draw(self, torch.device(device), dtype, start, iterations)
        begun = start.iteration if start else 0
        for first in range(begun - begun % length, iterations, length):
            yield draw.block(np.arange(first, min(first + length, iterations)))


class _Draw:
    """Draws the blocks of a stack one after the other.

    Most runs fire with the same probabilities at every iteration, whose thresholds are kept; the others compute theirs
    with each block. Nothing is drawn for runs that are over.
    """

    def __init__(
        self, stack: Stack, device: torch.device, dtype: torch.dtype, start: Totals | None, iterations: int
    ) -> None:
        self.stack, self.device, self.dtype = stack, device, dtype
        self.ledger = Ledger(stack.runs, device, start)
        self.caps = [run.last(iterations) for run in stack.runs]
        self.wired = [r for r, run in enumerate(stack.runs) if not run.wiring.steady]
        weight = joined([run.wiring.at(np.zeros(1, dtype=np.int64))[1] for run in stack.runs])
        self.weight = torch.from_numpy(weight).to(device, dtype)
        self._run_of = self._repeated([run.clients for run in stack.runs])
        self._run_of_link = self._repeated([run.rates.graph.links for run in stack.runs])
        self._limit = torch.tensor([run.limit for run in stack.runs], dtype=torch.float64, device=device)
        self._spending = any(run.spends for run in stack.runs)
        self._live = set(range(len(stack.runs))) - (stack.over(start, iterations, device) if start else set())
        self._arrange()

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.stack.clients, self.stack.all_links

    def _repeated(self, counts: list[int]) -> Tensor:
        """Return the number of each run, as often as it has clients, or links."""
        number = torch.arange(len(counts), device=self.device)
        return torch.repeat_interleave(number, torch.tensor(counts, device=self.device))

    def _arrange(self) -> None:
        """Sort the runs that are not over by how their events are drawn."""
        runs = [(r, self.stack.runs[r]) for r in sorted(self._live)]
        steady = [r for r, run in runs if draws_independently(run.schedule) and run.schedule.steady(run.rates)]
        self.moving = [r for r, run in runs if draws_independently(run.schedule) and r not in set(steady)]
        self.own = [r for r, run in runs if not draws_independently(run.schedule)]
        self.coins = self._coins(steady, np.zeros(1, dtype=np.int64))

    def block(self, k: np.ndarray) -> Block:
        """The events of some iterations, and what follows from them."""
        stack, device = self.stack, self.device
        at = torch.from_numpy(k).to(device)[:, None]
        v, v_hat = (torch.zeros((len(k), n), dtype=torch.bool, device=device) for n in self._sizes)
        for clients, links in filter(None, (self.coins, self._coins(self.moving, k))):
            clients.draw(at, Stream.SGD, v)
            links.draw(at, Stream.LINK, v_hat)
        for r in self.own:
            run = stack.runs[r]
            some = k[k < self.caps[r]]  # what was recorded may end there
            if len(some):
                events = run.schedule(some, Part.whole(run.rates.graph, run.seed), run.rates)
                v[: len(some), stack.rows[r]] = torch.from_numpy(np.ascontiguousarray(events.v)).to(device)
                v_hat[: len(some), stack.links[r]] = torch.from_numpy(np.ascontiguousarray(events.v_hat)).to(device)
        weight = self.weight.expand(len(k), -1).clone() if self.wired else self.weight
        for r in self.wired:
            present, ratio, _ = stack.runs[r].wiring.at(k)
            weight[:, stack.links[r]] = torch.from_numpy(ratio).to(device, self.dtype)
            if present is not None:
                v_hat[:, stack.links[r]] &= torch.from_numpy(present).to(device)
        over = frozenset(range(len(stack.runs))) - self._live
        tally, ends = self._tallied(k, at, v, v_hat)
        known = {id(run.learning_rate): run.learning_rate(k) for run in stack.runs}
        rates = np.stack([known[id(run.learning_rate)] for run in stack.runs], axis=1)
        lr = torch.from_numpy(rates).to(device, self.dtype)[:, self._run_of]
        return Block(k, v, v_hat, v_hat * weight, lr, tally, stack, ends, over)

    def _tallied(self, k: np.ndarray, at: Tensor, v: Tensor, v_hat: Tensor) -> tuple[Tally, dict[int, int]]:
        """Take back what would fire in runs that are over, and count the rest; gives who ends where."""
        found, first, last = self.ledger.trial(k, v, v_hat), int(k[0]), int(k[-1]) + 1
        ends = {r: self.caps[r] for r in self._live if self.caps[r] <= last}
        if self._spending:
            reached = ((found.tally.cost < self._limit).sum(dim=0) + first + 1).tolist()  # costs never fall
            ends |= {r: min(reached[r], ends.get(r, last)) for r in self._live if reached[r] <= last}
        if any(end < last for end in ends.values()):
            stop = torch.tensor([ends.get(r, last) for r in range(len(self.caps))], device=self.device)
            v &= at < stop[self._run_of]
            v_hat &= at < stop[self._run_of_link]
            found = self.ledger.trial(k, v, v_hat)
        if ends:
            self._live -= ends.keys()
            self._arrange()
        return self.ledger.book(found), ends

    def _coins(self, runs: list[int], k: np.ndarray) -> tuple[_Coins, _Coins] | None:
        """The coins of some runs, of clients and of links."""
        if not runs:
            return None
        p, q, client, ends, clients, links, both = [], [], [], [], [], [], []
        for r in runs:
            run, graph = self.stack.runs[r], self.stack.runs[r].rates.graph
            assert draws_independently(run.schedule)
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
