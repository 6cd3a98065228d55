"""The events of a stack of runs: what fires in a block of iterations, which links mix, and what it costs.

Events are drawn for all runs and many iterations in one batch, on the device that uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dspodfl import rng
from dspodfl.algorithms import by_direction, draws_independently
from dspodfl.engine.counters import Ledger, Tally, Totals
from dspodfl.engine.directions import Directions
from dspodfl.network import Events, Part
from dspodfl.rng import Stream

if TYPE_CHECKING:
    from dspodfl.engine.stack import Stack


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
    back: Tensor | None = None
    """Which directions j → i of links (i, j) fire, where one of the runs is directed; v_hat are i → j there, active
    is not 0 where one of the two fires. Shape: (iterations, links), bool."""
    into: Tensor | None = None
    """The weight of what comes in at each end of a link, where columns sum to 1. Shape: (iterations, 2 · links)."""
    row: Tensor | None = None
    """The same where rows sum to 1."""
    new: Tensor | None = None
    """Which links the graph has and did not have in the iteration before, where that is asked for and graphs change;
    all links of the first graph are old. Shape: (iterations, links), bool."""

    @cached_property
    def step(self) -> Tensor:
        """α·v: how far along its gradient each client goes. Shape: (iterations, clients)."""
        return self.lr * self.v

    def events(self, r: int) -> Events:
        """Return the events of one run.

        Args:
            r: The number of the run in the stack.

        Returns:
            v (iterations, clients of the run), v̂ and, of a directed run, the other direction (iterations, links of the
            run), on the CPU.
        """
        v, v_hat = self.v[:, self.stack.rows[r]], self.v_hat[:, self.stack.links[r]]
        back = None
        if self.back is not None and self.stack.runs[r].directed:
            back = self.back[:, self.stack.links[r]].cpu().numpy()
        return Events(v.cpu().numpy(), v_hat.cpu().numpy(), back)


class EventSampler:
    """Draws the blocks of a stack, one after the other.

    Most runs fire with the same probabilities at every iteration, whose thresholds are computed once; the others
    compute theirs with each block. Nothing is drawn for runs that are over.

    Args:
        stack: The runs.
        device: Where events are drawn.
        dtype: Of the mixing weights and the learning rates.
        start: What was counted before the first block; None: nothing.
        iterations: The number of iterations of the loop.
        gated: Whether models decide which of the links fire that are drawn: what happens is then booked by whoever
            knows it, and runs end where `end` says. Tallies of blocks are those of all links that are drawn.
    """

    def __init__(
        self,
        stack: Stack,
        device: torch.device,
        dtype: torch.dtype,
        start: Totals | None,
        iterations: int,
        *,
        gated: bool = False,
    ) -> None:
        self.stack, self.device, self.dtype = stack, device, dtype
        self._iterations, self._begun, self._gated = iterations, start.iteration if start else 0, gated
        self.ledger = Ledger(stack.runs, device, start)
        self.caps = [run.last(iterations) for run in stack.runs]
        self.wired = [r for r, run in enumerate(stack.runs) if not run.topology.constant]
        weight = joined([run.topology.at(np.zeros(1, dtype=np.int64))[1] for run in stack.runs])
        self.weight = torch.from_numpy(weight).to(device, dtype)
        self._run_of = self._repeated([run.clients for run in stack.runs])
        self._run_of_link = self._repeated([run.rates.graph.links for run in stack.runs])
        self._limit = torch.tensor([run.limit for run in stack.runs], dtype=torch.float64, device=device)
        self.masked = [r for r, run in enumerate(stack.runs) if run.rates.activation is not None]
        self.spending = any(run.spends for run in stack.runs)
        self._live = set(range(len(stack.runs))) - (stack.over(start, iterations, device) if start else set())
        self._directions = Directions(stack, device, dtype) if stack.directed else None
        self._sort_runs()

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.stack.clients, self.stack.all_links

    def _repeated(self, counts: list[int]) -> Tensor:
        """Return the number of each run, as often as it has clients, or links."""
        number = torch.arange(len(counts), device=self.device)
        return torch.repeat_interleave(number, torch.tensor(counts, device=self.device))

    def _sort_runs(self) -> None:
        """Sort the runs that are not over by how their events are drawn."""
        runs = [(r, self.stack.runs[r]) for r in sorted(self._live)]
        constant = [r for r, run in runs if draws_independently(run.schedule) and run.schedule.constant(run.rates)]
        self.time_varying = [r for r, run in runs if draws_independently(run.schedule) and r not in set(constant)]
        self.called = [r for r, run in runs if not draws_independently(run.schedule)]
        self.draws = self._bernoulli(constant, np.zeros(1, dtype=np.int64))

    def blocks(self, length: int) -> Iterator[Block]:
        """Draw consecutive blocks, from the one that holds the iteration to start at.

        Args:
            length: Iterations of a block, at most.

        Yields:
            The blocks, in order; they begin at multiples of the length.
        """
        for first in range(self._begun - self._begun % length, self._iterations, length):
            yield self.block(np.arange(first, min(first + length, self._iterations)))

    def block(self, k: np.ndarray) -> Block:
        """Draw the events of some iterations, and compute what follows from them.

        Args:
            k: Consecutive iterations, (iterations,), after those of the block before.

        Returns:
            The block.
        """
        at = torch.from_numpy(k).to(self.device)[:, None]
        v, v_hat = (torch.zeros((len(k), n), dtype=torch.bool, device=self.device) for n in self._sizes)
        back = None if self._directions is None else torch.zeros_like(v_hat)
        for clients, links, arcs in filter(None, (self.draws, self._bernoulli(self.time_varying, k))):
            clients.draw(at, Stream.SGD, v)
            links.draw(at, Stream.LINK, v_hat)
            if arcs is not None and back is not None:
                arcs.draw(at, Stream.LINK, back)
        self._call_schedules(k, v, v_hat, back)
        self._mask(k, v, v_hat, back)
        weight = self._weights(k, v_hat, back)
        if self._directions is not None and back is not None:
            self._directions.limit(v_hat, back)
        over = frozenset(range(len(self.stack.runs))) - self._live
        tally, ends = self._tallied(k, at, v, v_hat, back)
        lr = self._learning_rates(k)
        if self._directions is None or back is None:
            new = torch.from_numpy(self.stack.new_links(k)).to(self.device) if self._gated and self.wired else None
            return Block(k, v, v_hat, v_hat * weight, lr, tally, self.stack, ends, over, new=new)
        of_ends = self._directions.weights(k, v_hat, back)
        return Block(k, v, v_hat, (v_hat | back) * weight, lr, tally, self.stack, ends, over, back, *of_ends)

    def _call_schedules(self, k: np.ndarray, v: Tensor, v_hat: Tensor, back: Tensor | None) -> None:
        """Write the events of the runs whose schedules are called for them."""
        stack, device = self.stack, self.device
        for r in self.called:
            run = stack.runs[r]
            some = k[k < self.caps[r]]  # what was recorded may end there
            if len(some):
                events = run.schedule(some, Part.whole(run.rates.graph, run.seed), run.rates)
                v[: len(some), stack.rows[r]] = torch.from_numpy(np.ascontiguousarray(events.v)).to(device)
                v_hat[: len(some), stack.links[r]] = torch.from_numpy(np.ascontiguousarray(events.v_hat)).to(device)
                if back is not None:
                    given = events.v_hat if events.back is None else events.back
                    back[: len(some), stack.links[r]] = torch.from_numpy(np.ascontiguousarray(given)).to(device)

    def _mask(self, k: np.ndarray, v: Tensor, v_hat: Tensor, back: Tensor | None) -> None:
        """Remove the events of clients and links that are off, in the runs that have such."""
        for r in self.masked:
            activation = self.stack.runs[r].rates.activation
            if activation is not None and r in self._live:
                clients, links = (torch.from_numpy(on).to(self.device) for on in activation.on(k))
                v[:, self.stack.rows[r]] &= clients
                v_hat[:, self.stack.links[r]] &= links
                if back is not None:
                    back[:, self.stack.links[r]] &= links

    def _weights(self, k: np.ndarray, v_hat: Tensor, back: Tensor | None) -> Tensor:
        """Return the mixing weights, (iterations or 1, links); links that are not there do not fire."""
        weight = self.weight.expand(len(k), -1).clone() if self.wired else self.weight
        for r in self.wired:
            present, ratio, _ = self.stack.runs[r].topology.at(k)
            weight[:, self.stack.links[r]] = torch.from_numpy(ratio).to(self.device, self.dtype)
            if present is not None:
                here = torch.from_numpy(present).to(self.device)
                v_hat[:, self.stack.links[r]] &= here
                if back is not None:
                    back[:, self.stack.links[r]] &= here
        return weight

    def _learning_rates(self, k: np.ndarray) -> Tensor:
        """Return the learning rate of every client, (iterations, clients)."""
        runs = self.stack.runs
        known = {id(run.learning_rate): run.learning_rate(k) for run in runs}
        rates = np.stack([known[id(run.learning_rate)] for run in runs], axis=1)
        found = torch.from_numpy(rates).to(self.device, self.dtype)[:, self._run_of]
        for run, rows in zip(runs, self.stack.rows, strict=True):
            if run.inverse_cap is not None:
                found[:, rows] = torch.from_numpy(run.step_sizes(k)).to(self.device, self.dtype)
        return found

    def _tallied(
        self, k: np.ndarray, at: Tensor, v: Tensor, v_hat: Tensor, back: Tensor | None
    ) -> tuple[Tally, dict[int, int]]:
        """Remove the events of runs after their end, and count the rest; return the tally, and which runs end where."""
        found, first, last = self.ledger.trial(k, v, self._uses(v_hat, back)), int(k[0]), int(k[-1]) + 1
        ends = self.ends(None if self._gated else found.tally.cost, first, last)
        if any(end < last for end in ends.values()):
            stop = torch.tensor([ends.get(r, last) for r in range(len(self.caps))], device=self.device)
            v &= at < stop[self._run_of]
            v_hat &= at < stop[self._run_of_link]
            if back is not None:
                back &= at < stop[self._run_of_link]
            found = self.ledger.trial(k, v, self._uses(v_hat, back))
        if self._gated:
            return found.tally, ends
        self.end(ends)
        return self.ledger.book(found), ends

    def ends(self, cost: Tensor | None, first: int, last: int) -> dict[int, int]:
        """Return which runs end at iterations first + 1 … last, and where.

        Args:
            cost: The cost of each run after each of the iterations first … last − 1, in the unit of its budget,
                (iterations, runs); None: caps alone are looked at.
            first: The first iteration.
            last: The one after the last.

        Returns:
            Run -> the number of iterations after which it is over.
        """
        ends = {r: self.caps[r] for r in self._live if self.caps[r] <= last}
        if self.spending and cost is not None:
            reached = ((cost < self._limit).sum(dim=0) + first + 1).tolist()  # costs never fall
            ends |= {r: min(reached[r], ends.get(r, last)) for r in self._live if reached[r] <= last}
        return ends

    def end(self, runs: Iterable[int]) -> None:
        """Draw nothing more for runs that are over."""
        if runs:
            self._live -= set(runs)
            self._sort_runs()

    def _uses(self, v_hat: Tensor, back: Tensor | None) -> Tensor:
        """Return what is counted: the uses of links, or of both directions of the links of directed runs."""
        if self._directions is None or back is None:
            return v_hat
        return torch.cat([v_hat, back], dim=1).index_select(1, self._directions.counted)

    def _bernoulli(
        self, runs: list[int], k: np.ndarray
    ) -> tuple[BernoulliDraws, BernoulliDraws, BernoulliDraws | None] | None:
        """Return the draws of the clients, of the links, and of the other direction of links; None without a run."""
        if not runs:
            return None
        p, q, client, ends, clients, links, both = [], [], [], [], [], [], []
        q_back: list[np.ndarray] = []
        for r in runs:
            run, graph = self.stack.runs[r], self.stack.runs[r].rates.graph
            assert draws_independently(run.schedule)
            step, exchange = run.schedule.probabilities(k, run.rates)
            p.append(step)
            there, back = by_direction(exchange, graph.links)
            q.append(there)
            q_back.append(back)
            client.append(np.arange(graph.n))
            ends.append(graph.edges)
            clients.append(np.arange(self.stack.rows[r].start, self.stack.rows[r].stop))
            links.append(np.arange(self.stack.links[r].start, self.stack.links[r].stop))
            both.append(np.full(graph.links, run.rates.two_sided))
        seeds = [self.stack.runs[r].seed for r in runs]
        i, number = np.concatenate(client), np.concatenate(clients)
        seed = np.repeat(seeds, [len(n) for n in client])
        of_clients = BernoulliDraws.of(joined(p), number, seed, i, np.zeros_like(i), self.device)
        i, j = np.concatenate(ends).T
        number, seed = np.concatenate(links), np.repeat(seeds, [len(n) for n in links])
        of_links = BernoulliDraws.of(joined(q), number, seed, i, j, self.device, np.concatenate(both))
        if self._directions is None:
            return of_clients, of_links, None
        return of_clients, of_links, BernoulliDraws.of(joined(q_back), number, seed, j, i, self.device)


@dataclass(frozen=True, eq=False)
class BernoulliDraws:
    """Clients or links that fire independently: those that draw, by address, and those that always fire.

    A link with ``both`` draws at either end, and fires if one of the two draws does.
    """

    number: Tensor  # (entities,) their columns in the stack
    always: Tensor  # (iterations or 1, entities)
    drawn: Tensor  # (that draw,) columns of the stack, as what follows
    threshold: Tensor  # (iterations or 1, that draw)
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
    ) -> BernoulliDraws:
        """Make the draws of entities from their probabilities.

        Args:
            p: Probabilities, (iterations or 1, entities).
            number: The columns of the entities in the stack, (entities,).
            seed: Of the run of each, (entities,).
            i: The client, or the smaller end of the link, (entities,).
            j: 0, or the larger end, (entities,).
            device: Where words are drawn.
            both: Which of them draw at both ends, (entities,); None: none.

        Returns:
            The draws, on the device.
        """
        always = p >= 1
        drawn = np.flatnonzero(((p > 0) & ~always).any(axis=0))

        def there(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return BernoulliDraws(
            there(number),
            there(always),
            there(number[drawn]),
            there(rng.threshold(p[:, drawn])),
            there(seed[drawn]),
            there(i[drawn]),
            there(j[drawn]),
            None if both is None or not both[drawn].any() else there(both[drawn]),
        )

    def draw(self, at: Tensor, stream: Stream, out: Tensor) -> None:
        """Write which entities fire.

        Args:
            at: The iterations, (iterations, 1).
            stream: SGD or LINK.
            out: Where to write, (iterations, all entities of the stack), bool.
        """
        out[:, self.number] = self.always.expand(len(at), -1)
        if not len(self.drawn):
            return
        word = rng.words(self.seed, stream, self.i, self.j, at, slots=1 if self.both is None else 2)
        fires = word[..., 0] < self.threshold
        if self.both is not None:
            fires |= self.both & (word[..., 1] < self.threshold)
        out[:, self.drawn] = fires


def joined(runs: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays of runs; where one of them changes with the iteration, all get a row for each iteration.

    Args:
        runs: An array for each run, (iterations or 1, entities of the run).

    Returns:
        (iterations or 1, entities of all runs).
    """
    length = max(len(array) for array in runs)
    return np.concatenate([np.broadcast_to(array, (length, array.shape[1])) for array in runs], axis=1)
