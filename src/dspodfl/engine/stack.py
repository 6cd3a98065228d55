"""Runs stacked into one run on the disjoint union of their graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import coo_array

from dspodfl.algorithms import Attack, by_direction, draws_independently
from dspodfl.engine.counters import Ledger, Totals
from dspodfl.engine.events import Block, EventSampler, joined
from dspodfl.engine.run import Run
from dspodfl.errors import InputError


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The neighbours of each row: client n has ``col[ptr[n]:ptr[n+1]]``, ascending, over the links in ``link``."""

    ptr: np.ndarray  # (clients + 1,)
    col: np.ndarray  # (2 · links,)
    link: np.ndarray  # (2 · links,)


class Stack:
    """The disjoint union of runs: clients of run r are rows ``rows[r]`` of every stacked array, its links ``links[r]``.

    Both are counted through all runs.

    Args:
        runs: At least one.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self.rows = slices([run.clients for run in runs])
        self.links = slices([run.rates.graph.links for run in runs])
        self.clients, self.all_links = self.rows[-1].stop, self.links[-1].stop
        self.directed = any(run.directed for run in self.runs)
        self.uses = slices([run.counted_links for run in self.runs])
        """What is counted of the links of each run: of a directed one, i → j of all links, then j → i of all."""

    @cached_property
    def edges(self) -> np.ndarray:
        """Both ends of every link, as rows of the stack. Shape: (links, 2)."""
        return np.concatenate(
            [run.rates.graph.edges + rows.start for run, rows in zip(self.runs, self.rows, strict=True)]
        )

    @cached_property
    def counted(self) -> np.ndarray:
        """Where what is counted is in [i → j of all links, j → i of all links], (uses,)."""
        parts = []
        for run, links in zip(self.runs, self.links, strict=True):
            there = np.arange(links.start, links.stop)
            parts += [there, there + self.all_links] if run.directed else [there]
        return np.concatenate(parts)

    @cached_property
    def neighbours(self) -> Neighbours:
        """The links seen from each client."""
        i, j = self.edges.T
        number = np.arange(self.all_links, dtype=np.int32)
        ends = np.concatenate([i, j]), np.concatenate([j, i])
        table = coo_array((np.tile(number, 2), ends), shape=(self.clients, self.clients)).tocsr()
        table.sort_indices()
        return Neighbours(table.indptr, table.indices, table.data)

    @cached_property
    def attack(self) -> Attack | None:
        """The attack on messages that all runs are under; None: there is none.

        Raises:
            InputError: Runs are under different ones.
        """
        first, *others = (run.attack if run.attack and run.attack.alters_messages else None for run in self.runs)
        if any(other != first for other in others):
            raise InputError("attack", "of several kinds", "the same for all runs that advance together")
        return first

    def attackers(self, rows: np.ndarray) -> np.ndarray:
        """Return which of some rows belong to attackers. Shapes: (rows,) -> (rows,), bool."""
        found = np.zeros(self.clients, dtype=bool)
        for run, place in zip(self.runs, self.rows, strict=True):
            if run.attack is not None:
                found[place.start + np.array(run.attack.clients)] = True
        return np.asarray(found[rows])

    def probabilities(self, k: np.ndarray) -> np.ndarray:
        """Return with which probability each link fires at some iterations, by the schedules of the runs.

        Args:
            k: The iterations.

        Returns:
            Probabilities, (iterations or 1, links); where a run is directed those of what comes in at each end of a
            link, (iterations or 1, 2 · links).

        Raises:
            InputError: A schedule does not know them.
        """
        found = []
        for run, (_, q) in zip(self.runs, self._known(k), strict=True):
            if self.directed:
                arcs, there = run.rates.graph.both_ways().arcs, by_direction(q, run.rates.graph.links)
                assert arcs is not None
                q = np.stack([there[1] * arcs[:, 1], there[0] * arcs[:, 0]], axis=2).reshape(len(q), -1)
            found.append(q)
        return joined(found)

    def step_probabilities(self, k: np.ndarray) -> np.ndarray:
        """Return with which probability each client steps at some iterations, by the schedules of the runs.

        Args:
            k: The iterations.

        Returns:
            Probabilities, (iterations or 1, clients).

        Raises:
            InputError: A schedule does not know them.
        """
        return joined([p for p, _ in self._known(k)])

    def link_rates(self, k: np.ndarray) -> np.ndarray:
        """Return the mean of the rates b_ij of each client's links at some iterations, 1 where it has none.

        Args:
            k: The iterations.

        Returns:
            Rates, (iterations or 1, clients).
        """
        found = []
        for run in self.runs:
            rate, ends = run.rates.link(k), run.rates.graph.edges.reshape(-1)
            total = np.zeros((run.clients, len(rate)))
            np.add.at(total, ends, np.repeat(rate, 2, axis=1).T)
            degree = np.bincount(ends, minlength=run.clients)
            found.append(np.where(degree > 0, total.T / np.maximum(degree, 1), 1.0))
        return joined(found)

    def new_links(self, k: np.ndarray) -> np.ndarray:
        """Return which links the graphs have and did not have in the iteration before; those of the first are old.

        Args:
            k: Consecutive iterations.

        Returns:
            Bool, (iterations, links).
        """
        new = np.zeros((len(k), self.all_links), dtype=bool)
        for run, links in zip(self.runs, self.links, strict=True):
            before, now = (run.topology.at(at)[0] for at in (np.maximum(k - 1, 0), k))
            if before is not None and now is not None:
                new[:, links] = now & ~before
        return new

    def _known(self, k: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the probabilities of the clients and links of each run."""
        for run in self.runs:
            if not draws_independently(run.schedule):
                allowed = "one that knows with which probability links fire (independent = True), which its rule needs"
                raise InputError("algorithms.schedule", run.algorithm, allowed)
            p, q = run.schedule.probabilities(k, run.rates)
            yield run.rates.marginal(p, 1.0 - (1.0 - q) ** 2 if run.rates.two_sided else q)

    def over(self, totals: Totals, iterations: int, device: torch.device) -> set[int]:
        """Return the runs that are over.

        Args:
            totals: What was counted so far.
            iterations: The number of iterations of the loop.
            device: Where to count.

        Returns:
            The numbers of the runs that have spent their budget or reached their cap.
        """
        counts = (self.clients, self.uses[-1].stop)
        v, v_hat = (torch.zeros((1, n), dtype=torch.bool, device=device) for n in counts)
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
        """Draw consecutive blocks of events, from the one that holds the iteration to start at.

        Blocks begin at multiples of the length wherever a loop is resumed: they are those of an uninterrupted one.

        Args:
            iterations: The number of iterations of the loop.
            length: Iterations of a block, at most.
            device: Where events are drawn.
            dtype: Of the mixing weights and the learning rates.
            start: What was counted before; None: the loop starts at 0.

        Returns:
            The blocks, in order.
        """
        return EventSampler(self, torch.device(device), dtype, start, iterations).blocks(length)


def slices(sizes: Sequence[int]) -> list[slice]:
    """Return consecutive slices of these sizes.

    >>> slices([2, 3])
    [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
