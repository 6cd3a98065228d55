"""The ends of the links of a shard: which clients they belong to, which of them fire, and what crosses between them.

The ends of link e are numbered 2e (at its first client) and 2e + 1 (at its second).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl.algorithms import PerLink
from dspodfl.engine.exchange import Split
from dspodfl.engine.shard import Crossings, crossings


def tree(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to tensors, or to tuples of them, part by part.

    Args:
        function: What is applied to one tensor of each.
        *trees: Tensors, or tuples of tensors of the same form.

    Returns:
        The results, in the same form.
    """
    if isinstance(trees[0], tuple):
        return tuple(tree(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree, in order."""
    if isinstance(value, tuple):
        for part in value:
            yield from tensors(part)
    else:
        yield value


class Ends:
    """The ends of the links of a shard.

    Args:
        split: The clients held here, and the transport to the others.
        device: Where models are.
    """

    def __init__(self, split: Split, device: torch.device) -> None:
        self.shard, self.transport, self.device = split.shard, split.transport, device
        client = split.shard.ends.reshape(-1)
        self.client = torch.from_numpy(client).to(device)
        """The row here of the client at each end, (2 · links,); rows of the halo come after the owned ones."""
        self.owned = client < split.shard.clients
        self.rows = split.shard.clients + len(split.shard.halo)

    @cached_property
    def everything(self) -> Tensor:
        """All ends, (2 · links,)."""
        return torch.arange(len(self.client), device=self.device)

    @cached_property
    def by_position(self) -> list[tuple[Tensor, Tensor]]:
        """The ends of each client in the order of the links, one of each client at a time: clients, ends.

        No client is twice in one of them, so that adding does not depend on an order.
        """
        client = self.shard.ends.reshape(-1)
        order = np.argsort(client, kind="stable")
        first = np.searchsorted(client[order], client[order])
        position = np.arange(len(order)) - first
        return [
            (self.client[ends], ends)
            for ends in (
                torch.from_numpy(order[position == n]).to(self.device)
                for n in range(int(position.max()) + 1 if len(position) else 0)
            )
        ]

    @cached_property
    def leave(self) -> Crossings:
        """Owned ends whose message crosses to another process."""
        return self._crossings(mine=True)

    @cached_property
    def come(self) -> Crossings:
        """Ends of other processes whose message is needed here."""
        return self._crossings(mine=False)

    def _crossings(self, *, mine: bool) -> Crossings:
        shard = self.shard
        cut = np.flatnonzero((~self.owned).reshape(-1, 2).any(axis=1))
        theirs = 2 * cut + (~self.owned).reshape(-1, 2)[cut, 1]
        halo = shard.ends.reshape(-1)[theirs] - shard.clients
        return crossings(theirs ^ 1 if mine else theirs, shard.owner[shard.halo[halo]], cut, shard.ranks)


@dataclass(frozen=True, eq=False)
class Fired:
    """The ends that fire in each iteration of a block, where they are gathered one by one (on a CPU)."""

    ends: Tensor  # (all that fire in the block,)
    clients: Tensor  # (all that fire in the block,), their rows
    start: list[int]  # (iterations + 1,)

    @staticmethod
    def of(active: Tensor, client: Tensor) -> Fired:
        """Of the active weights of a block, (iterations, links), and the row of the client at each end."""
        at, link = (active != 0).nonzero(as_tuple=True)
        start = 2 * torch.searchsorted(at.contiguous(), torch.arange(len(active) + 1))
        ends = torch.stack([2 * link, 2 * link + 1], dim=1).reshape(-1)
        return Fired(ends, client[ends], start.tolist())

    def at(self, t: int) -> Tensor:
        """The ends that fire at the t-th iteration, link by link."""
        return self.ends[self.start[t] : self.start[t + 1]]

    def clients_at(self, t: int) -> Tensor:
        """The rows of their clients."""
        return self.clients[self.start[t] : self.start[t + 1]]


def crossing(crossings: Crossings, active: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The ends that cross where these links fire, and where those of each process begin and end."""
    needed = crossings.needed(active)[0]
    count = np.concatenate([[0], np.cumsum(needed)])
    return crossings.row[needed], count[crossings.bounds].tolist()


def cut(rows: Tensor, bounds: list[int]) -> list[Tensor | None]:
    """The rows of each process, where there are some."""
    return [rows[a:b] if b > a else None for a, b in pairwise(bounds)]


def swapped(message: Any) -> Any:
    """The messages of the other ends, where both ends of a link come one after the other."""
    return tree(lambda a: a.view(len(a) // 2, 2, *a.shape[1:]).flip(1).view(a.shape), message)


def summed(total: Any, clients: int, rows: Tensor, added: Any) -> Any:
    """Sum what the ends add, client by client, in the order of the ends."""
    if total is None:
        total = tree(lambda a: a.new_zeros((clients, *a.shape[1:])), added)
    return tree(lambda out, a: out.index_add_(0, rows, a), total, added)


def like(mask: Tensor, a: Tensor) -> Tensor:
    """A mask of rows, with as many axes as a tensor."""
    return mask.view(-1, *[1] * (a.ndim - 1))


def x_device(x: Any) -> torch.device:
    """The device of a tensor, or of the first of a tuple of tensors."""
    return next(tensors(x)).device


def unaliased(state: Any) -> Any:
    """Give link memory tensors of its own: they are changed in place.

    Args:
        state: The state of a rule.

    Returns:
        The same state, with copies where it has `PerLink`.
    """
    if isinstance(state, PerLink):
        return PerLink(tuple(a.clone() for a in state.rows))
    if isinstance(state, dict):
        return {key: unaliased(part) for key, part in state.items()}
    if isinstance(state, tuple | list):
        parts = [unaliased(part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    return state
