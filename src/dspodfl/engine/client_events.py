"""The events of one client: when it steps, and over which of its links it exchanges, a block of iterations at a time.

Draws are addressed, so a client draws its own and no others, where its schedule knows the probabilities; other
schedules are called for the whole run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspodfl import rng
from dspodfl.algorithms import Rule, by_direction, draw, draws_independently, needs_probability
from dspodfl.engine.run import Run
from dspodfl.network import Events, Part
from dspodfl.rng import Stream

_LONGEST = 256
"""Iterations of a block, at most."""
_BLOCKS = 4
"""Blocks that are kept: a node asks for later firings while it computes."""
_MAX_WORDS = 4095
"""Random words drawn in one batch, so far as possible: for more, compiled code would be loaded, which takes memory."""


@dataclass(frozen=True, eq=False)
class Link:
    """A link of the client."""

    number: int
    """In the run's graph."""
    peer: int
    """The client at the other end."""
    side: int
    """0: the client is the first of the two, 1: the second."""


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of one link that fires, at the end of the client (`dspodfl.algorithms.Arc`)."""

    into: float
    back: float
    row: float
    probability: float | None


@dataclass(frozen=True, eq=False)
class Block:
    """Iterations first, first + 1, … of a client."""

    first: int
    v: list[bool]
    lr: list[float]
    fired: list[tuple[int, ...]]
    """Which of the client's links fire at each iteration, by their places among its links."""
    ends: tuple[list[list[float]], ...]
    """Weights by iteration (or one for all) and link: into, back and row of `Weights`, and the probability, if it is
    needed."""
    rows: Tensor | None  # (iterations, batch) places in the client's shard; None: full batches

    def into(self, t: int, link: int) -> float:
        """Return the weight of what comes in over one of the client's links at the t-th iteration."""
        return _at(self.ends[0], t)[link]

    def weights(self, t: int, link: int) -> Weights:
        """Return all weights of one of the client's links at the t-th iteration, if it fires there."""
        into, back, row, *chance = (_at(a, t)[link] for a in self.ends)
        return Weights(into, back, row, chance[0] if chance else None)


def _at(rows: list[list[float]], t: int) -> list[float]:
    return rows[t] if len(rows) > 1 else rows[0]


class ClientEvents:
    """Draws the events of one client, in blocks.

    Args:
        run: The run.
        rule: The rule of the run; it may need the probabilities of links.
        i: The number of the client.
        samples: The number of samples of its shard.
        batch_size: Samples of a minibatch; 0: no minibatch is drawn.
    """

    def __init__(self, run: Run, rule: Rule, i: int, samples: int, batch_size: int) -> None:
        self._run, self._i, self._samples, self._batch_size = run, i, samples, batch_size
        graph = run.rates.graph
        self._own, self._whole = Part.of(graph, run.seed, [i]), Part.whole(graph, run.seed)
        at = self._own.link
        self.links = tuple(
            Link(int(e), int(b if a == i else a), int(a != i)) for e, (a, b) in zip(at, self._own.ends, strict=True)
        )
        self._side = np.array([link.side for link in self.links], dtype=np.int64)
        self._alone = draws_independently(run.schedule)
        self.needs_probability = needs_probability(rule)
        known = (run.cap, getattr(run.schedule, "recorded", None))
        self._last = min((count for count in known if count is not None), default=None)
        self._length = self._block_length()
        self._blocks: dict[int, Block] = {}

    def _block_length(self) -> int:
        run = self._run
        most = max(self._batch_size, 2 * len(self.links), 1)
        if not self._alone or run.rates.activation is not None or not run.topology.constant:
            most = max(most, 2 * run.rates.graph.links, run.clients)
        return max(1, min(_LONGEST, _MAX_WORDS // most))

    def at(self, k: int) -> tuple[Block, int]:
        """Return the block that has iteration k, and the place of k in it."""
        first = k - k % self._length
        block = self._blocks.get(first)
        if block is None or k - first >= len(block.v):
            last = first + self._length if self._last is None else max(k + 1, min(first + self._length, self._last))
            block = self._drawn(np.arange(first, last))
            known = [(at, other) for at, other in self._blocks.items() if at != first][1 - _BLOCKS :]
            self._blocks = {**dict(known), first: block}  # in one assignment: other threads read it
        return block, k - block.first

    def _drawn(self, k: np.ndarray) -> Block:
        run, own = self._run, self._own
        events = run.rates.masked(self._events(k), k, own)
        there, back = events.v_hat, events.v_hat if events.back is None else events.back
        present = run.topology.present(k)
        if present is not None:
            there, back = there & present[:, own.link], back & present[:, own.link]
        if run.directed:
            arcs = run.rates.graph.both_ways().arcs
            assert arcs is not None
            there, back = there & arcs[own.link, 0], back & arcs[own.link, 1]
        counts = run.topology.at(k)[1][:, own.link] != 0  # a link without weight carries nothing
        alpha = np.broadcast_to(run.step_sizes(k), (len(k), run.clients))[:, self._i]
        return Block(
            int(k[0]),
            events.v[:, 0].tolist(),
            alpha.tolist(),
            [tuple(np.flatnonzero(row).tolist()) for row in (there | back) & counts],
            tuple(a.tolist() for a in self._weights(k, there, back)),
            self._minibatches(k),
        )

    def _events(self, k: np.ndarray) -> Events:
        """Return what the schedule fires: v (iterations, 1), v̂ and the other direction (iterations, own links)."""
        run, own = self._run, self._own
        if not self._alone:
            every = run.schedule(k, self._whole, run.rates)
            back = None if every.back is None else every.back[:, own.link]
            return Events(every.v[:, [self._i]], every.v_hat[:, own.link], back)
        p, q = run.schedule.probabilities(k, run.rates)  # type: ignore[attr-defined]
        there, back = by_direction(q, run.rates.graph.links)
        there, back = there[:, own.link], back[:, own.link]
        if run.directed:
            return draw(k, own, p[:, [self._i]], there, back=back)
        return draw(k, own, p[:, [self._i]], there, two_sided=run.rates.two_sided)

    def _weights(self, k: np.ndarray, there: np.ndarray, back: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return what `Block.ends` has of the own links, (iterations or 1, links) each."""
        own = self._own.link
        chance = (self._link_probabilities(k),) if self.needs_probability else ()
        if not self._run.directed:
            weight = self._run.topology.at(k)[1][:, own]
            return weight, weight, weight, *chance
        found = self._run.topology.arcs_at(k)
        fires = np.stack([there, back], axis=2)  # i → j, j → i
        column, row = fires * found.column[:, own], fires * found.row[:, own]
        links = np.arange(len(own))
        into = 1 - self._side
        return column[:, links, into], column[:, links, self._side], row[:, links, into], *chance

    def _link_probabilities(self, k: np.ndarray) -> np.ndarray:
        from dspodfl.engine.stack import Stack

        found = Stack([self._run]).probabilities(k)
        at = self._own.link
        return found[:, 2 * at + self._side] if self._run.directed else found[:, at]

    def probability(self, k: int) -> float:
        """Return with which probability the client steps, by the schedule."""
        from dspodfl.engine.stack import Stack

        return float(Stack([self._run]).step_probabilities(np.array([k]))[0, self._i])

    def link_rate(self, k: int) -> float:
        """Return the mean of the rates of the client's links, 1 where it has none."""
        rates = self._run.rates.link(np.array([k]))[0, self._own.link].tolist()
        return sum(rates, 0.0) / len(rates) if rates else 1.0

    def _minibatches(self, k: np.ndarray) -> Tensor | None:
        if not self._batch_size:
            return None
        words = rng.words(self._run.seed, Stream.BATCH, self._i, k=k, slots=self._batch_size)
        return torch.from_numpy(rng.index_below(words, self._samples))
