"""Schedules: which clients take a step and which links exchange, at every iteration.

    Schedule: (k, part, rates) -> Events(v, v̂)

The five algorithms of the paper are schedules. They fire independently with probabilities that they choose from the
capability rates d_i(k), b_ij(k):

    dspodfl        (d, b)
    dgd            (1, 1)
    rg             (1, b)
    sporadic_sgd   (d, 1)
    dfedavg        D iterations of (1, 0), then one of (0, 1);  D = ⌈mean_i 1/d_i⌉ or a given integer
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np

from dspodfl import rng
from dspodfl.algorithms.base import Probabilities, by_direction
from dspodfl.errors import InputError
from dspodfl.network import Events, Part, Rates
from dspodfl.rng import Stream


def draw(
    k: np.ndarray,
    part: Part,
    p: np.ndarray,
    q: np.ndarray,
    *,
    two_sided: bool = False,
    back: np.ndarray | None = None,
) -> Events:
    """Draw independent events: v_i fires with probability p_i, v̂_ij with q_ij, or 1 − (1 − q_ij)² if both ends draw.

    Args:
        k: The iterations, (iterations,).
        part: The clients and links, and the seed of the run.
        p: Probabilities of the clients, (iterations or 1, clients of the part).
        q: Probabilities of the links, (iterations or 1, links of the part).
        two_sided: Whether both ends of a link draw, and one that fires is enough.
        back: Probabilities of j → i of the links (i, j) of a directed graph, of which q are those of i → j; None: the
            graph is undirected.

    Returns:
        v (iterations, clients of the part) and v̂ (iterations, links of the part).

    >>> from dspodfl.network import generate
    >>> part = Part.whole(generate("ring", 5, 0), seed=7)
    >>> events = draw(np.arange(3), part, np.ones((1, 5)), np.zeros((1, 5)))
    >>> int(events.v.sum()), int(events.v_hat.sum())
    (15, 0)
    """
    at = np.asarray(k)[:, None]
    v = rng.bernoulli(rng.words(part.seed, Stream.SGD, part.client, k=at)[..., 0], p)
    word = rng.words(part.seed, Stream.LINK, part.ends[:, 0], part.ends[:, 1], at, slots=2)
    v_hat = rng.bernoulli(word[..., 0], q)
    if back is not None:
        word = rng.words(part.seed, Stream.LINK, part.ends[:, 1], part.ends[:, 0], at)
        return Events(v, v_hat, rng.bernoulli(word[..., 0], back))
    return Events(v, v_hat | rng.bernoulli(word[..., 1], q) if two_sided else v_hat)


@dataclass(frozen=True, eq=False)
class Sporadic:
    """Independent firing with probabilities chosen from the rates: the form of DSpodFL and of its special cases."""

    independent: ClassVar[bool] = True

    probabilities: Callable[[np.ndarray, Rates], Probabilities]

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the events of a part at iterations k."""
        p, q = self.probabilities(k, rates)
        graph = rates.graph
        if graph.arcs is not None:
            there, back = by_direction(q, graph.links)
            arcs = graph.arcs[part.link]
            there, back = there[:, part.link] * arcs[:, 0], back[:, part.link] * arcs[:, 1]
            return draw(k, part, p[:, part.client], there, back=back)
        return draw(k, part, p[:, part.client], q[:, part.link], two_sided=rates.two_sided)

    def constant(self, rates: Rates) -> bool:
        """Return whether the probabilities are the same at every iteration."""
        return rates.fixed and all(len(rows) == 1 for rows in self.probabilities(np.arange(2), rates))


def sporadic(sgd: float | None = None, link: float | None = None) -> Sporadic:
    """Return the schedule of DSpodFL, or of a special case: a number replaces the rates as the probability.

    Args:
        sgd: The probability that a client steps; None: its rate d_i.
        link: The probability that a link exchanges; None: its rate b_ij.
    """

    def probabilities(k: np.ndarray, rates: Rates) -> Probabilities:
        p = rates.sgd(k) if sgd is None else np.full((1, rates.graph.n), float(sgd))
        q = _link_rates(k, rates) if link is None else np.full((1, rates.graph.links), float(link))
        return p, q

    return Sporadic(probabilities)


def _link_rates(k: np.ndarray, rates: Rates) -> np.ndarray:
    """The rates of the links, or of both directions of all links: i → j, then j → i."""
    return np.concatenate([rates.link(k), rates.back(k)], axis=1) if rates.graph.directed else rates.link(k)


dspodfl = sporadic()
"""The schedule of DSpodFL: clients step with probability d_i, links exchange with probability b_ij."""
dgd = sporadic(sgd=1, link=1)
rg = sporadic(sgd=1)
sporadic_sgd = sporadic(link=1)


_LONGEST_CYCLE = 2.0**40
"""Longer than any run: iterations are 32-bit words of an address."""


@dataclass(eq=False)
class Cycles:
    """Where DFedAvg exchanges: D iterations of SGD, then one exchange, D computed again at the start of each cycle."""

    period: int | None = None
    _exchanges: WeakKeyDictionary[Rates, list[int]] = field(default_factory=WeakKeyDictionary, repr=False)

    def length(self, k: int, rates: Rates) -> int:
        """Return D in a cycle that starts at k."""
        if self.period is not None:
            return self.period
        return int(np.ceil(min(np.mean(1.0 / rates.sgd(np.array([k]))[0]), _LONGEST_CYCLE)))

    def exchange(self, k: np.ndarray, rates: Rates) -> np.ndarray:
        """Return whether each k is an exchange iteration: k mod (D + 1) = D where D does not change."""
        k = np.asarray(k)
        if self.period is not None or not rates.changing:
            cycle = self.length(0, rates) + 1
            return np.asarray(k % cycle == cycle - 1)
        known = self._exchanges.setdefault(rates, [])
        while not known or known[-1] < int(k.max()):
            start = known[-1] + 1 if known else 0
            known.append(start + self.length(start, rates))
        return np.isin(k, known)

    def __call__(self, k: np.ndarray, rates: Rates) -> Probabilities:
        """Return probabilities, 0 or 1, of every client and link at each k."""
        exchange = self.exchange(k, rates)[:, None].astype(np.float64)
        return np.repeat(1.0 - exchange, rates.graph.n, 1), np.repeat(exchange, rates.graph.links, 1)


def dfedavg(period: int | Literal["auto"] | None = None) -> Sporadic:
    """Return the schedule of DFedAvg: D iterations of SGD without exchange, then one exchange without SGD.

    Args:
        period: D; None or "auto": ⌈mean_i 1/d_i⌉.

    Raises:
        InputError: D is below 1.
    """
    if period == "auto":
        period = None
    if period is not None and period < 1:
        raise InputError("train.dfedavg_period", period, "an integer of at least 1, or 'auto'")
    return Sporadic(Cycles(period))


@dataclass(frozen=True, eq=False)
class Replay:
    """Recorded events, played back: v (iterations, clients), v̂ (iterations, links) of the graph with these edges."""

    events: Events
    edges: np.ndarray

    @property
    def recorded(self) -> int:
        """The number of iterations that were recorded."""
        return len(self.events.v)

    def __call__(self, k: np.ndarray, part: Part, rates: Rates) -> Events:
        """Return the recorded events of a part at iterations k.

        Raises:
            InputError: The record is too short, or of another graph.
        """
        recorded = self.recorded
        if rates.graph.n != self.events.v.shape[1] or not np.array_equal(rates.graph.edges, self.edges):
            raise InputError(
                "replay",
                f"{self.events.v.shape[1]} clients, {len(self.edges)} links",
                "recorded on the same graph",
            )
        if (self.events.back is not None) != rates.graph.directed:
            kind = "undirected" if rates.graph.directed else "directed"
            raise InputError("replay", f"{kind} links", "recorded on the same graph")
        if int(np.max(k)) >= recorded:
            raise InputError("train.iterations", int(np.max(k)) + 1, f"at most the {recorded} recorded iterations")
        back = None if self.events.back is None else self.events.back[k][:, part.link]
        return Events(self.events.v[k][:, part.client], self.events.v_hat[k][:, part.link], back)
