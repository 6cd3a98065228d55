"""One iteration of one client as a rule sees it: `dspodfl.algorithms.Step` of one row.

Messages go through ``swap``: it is given those of a phase by neighbour, and returns what the neighbours sent. Links are
taken in the order of the graph's edges, and what comes in over them is added one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dspodfl import rng
from dspodfl.algorithms import Arc, PerLink, Receive, Send, Sender
from dspodfl.engine import tree
from dspodfl.engine.client_events import Block, Link
from dspodfl.engine.messages import Message
from dspodfl.engine.state import filled, leaves, link_leaves
from dspodfl.errors import InputError
from dspodfl.rng import Stream

if TYPE_CHECKING:
    from dspodfl.engine.client import Client

Swap = Callable[[int, dict[int, Message]], Mapping[int, Message]]
"""``swap(phase, messages) -> messages``: what is sent to each neighbour, and what each of them sent, by their numbers.

It is called where a link fires, with the neighbours whose links fire."""


class _Neighbour:
    """A client whose message is decoded: a `dspodfl.algorithms.Sender`."""

    def __init__(self, seed: int, client: int, k: int, parameters: int) -> None:
        self._address, self.parameters = (seed, client, k), parameters

    def words(self, stream: Stream, slots: int) -> Tensor:
        """Draw words at the neighbour's address and this iteration."""
        seed, client, k = self._address
        return torch.from_numpy(rng.words(seed, stream, client, k=k, slots=slots))[None]


class ClientStep:
    """Iteration k of one client: a `dspodfl.algorithms.Step`.

    Args:
        client: The client.
        block: Its events.
        t: The place of the iteration in the block.
        swap: Exchanges messages with the neighbours.
        fired: Which of the client's links fire; None: as the block says.
    """

    def __init__(self, client: Client, block: Block, t: int, swap: Swap, fired: tuple[int, ...] | None = None) -> None:
        self._client, self._block, self._t, self._swap = client, block, t, swap
        self._fired = block.fired[t] if fired is None else fired
        self.phase = 0
        """How often messages were exchanged so far."""
        self.gradients = 0
        """How often the gradient was asked for so far."""
        self.k, self.layout, self.n, self.client = block.first + t, client.layout, client.n, client.number
        self.v = client.one if block.v[t] else client.zero
        self.lr = client.step_size(block.lr[t])

    @property
    def linked(self) -> Tensor:
        """Whether the client has a link that fires. Shape: (1, 1), bool."""
        return torch.tensor([[bool(self._fired)]])

    @property
    def probability(self) -> Tensor:
        """With which probability the client steps, by the schedule. Shape: (1, 1)."""
        return self._client.one * self._client.events.probability(self.k)

    @property
    def link_rate(self) -> Tensor:
        """The mean of the rates b_ij(k) of the client's links, 1 where it has none. Shape: (1, 1)."""
        return self._client.one * self._client.events.link_rate(self.k)

    def gradient(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Compute scale · G(x); nothing is computed where the scale is 0. Shapes: x (1, p), scale (1, 1) -> (1, p)."""
        self.gradients += 1
        if scale is not None and not float(scale):
            return torch.zeros_like(x)
        found = self._client.gradient(x, self._block, self._t, self.gradients)
        return found if scale is None else scale * found

    def words(self, stream: Stream, slots: int) -> Tensor:
        """Draw words at the address of the client and this iteration. Shape: (1, slots), int64."""
        return self._sender(self._client.i).words(stream, slots)

    def mix(self, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """Compute P(k)x − minus: x + w(x_j − x), link by link. Shapes: (1, p) each."""
        if self._client.directed:
            raise NotOnNodesError(self._client, "mixes, but a direction of a link of a directed graph may fire alone")
        theirs = self._swapped(dict.fromkeys(self._fired, (x,)))
        if not self._fired:
            return x.clone() if minus is None else x - minus
        return _mixed(x, [(self._block.into(self._t, link), theirs[link][0]) for link in self._fired], minus)

    def exchange(
        self, x: Any, send: Send, receive: Receive, memory: PerLink | None = None
    ) -> tuple[Any, PerLink | None]:
        """Exchange messages over the links that fire; see `dspodfl.algorithms.Step.exchange`.

        What a ``send`` with ``encode`` and ``decode`` encodes is sent (`dspodfl.algorithms.Send`).
        """
        if not self._fired:
            self.phase += 1
            return self._nothing(x, send, receive, memory), memory
        mine: dict[int, Any] = {}
        for link in self._fired:
            same = mine and memory is None  # what an end without memory sends is the same for all
            mine[link] = mine[self._fired[0]] if same else send(x, _row(memory, link))
        encode = getattr(send, "encode", None)
        wires: dict[int, Message] = {}
        for link, message in mine.items():
            first = wires.get(self._fired[0]) if memory is None else None
            wire = flat(message) if encode is None else encode(message, x, _row(memory, link))
            wires[link] = wire if first is None else first
        theirs = self._swapped(wires)
        total: Any = None
        rows = None if memory is None else [a.clone() for a in memory.rows]
        for link in self._fired:
            message = self._decoded(send, mine[link], theirs[link], link)
            added, new = receive(x, mine[link], message, _row(memory, link), self._arc(link))
            total = tree(torch.clone, added) if total is None else tree(torch.add, total, added)
            for a, values in zip(rows or (), new or (), strict=True):
                a[link : link + 1] = values
        return total, None if rows is None else PerLink(tuple(rows))

    def _decoded(self, send: Send, like: Any, wire: Message, link: int) -> Any:
        decode = getattr(send, "decode", None)
        if decode is None:
            return nested(like, iter(wire))
        return decode(wire, self._sender(self._client.links[link].peer))

    def _nothing(self, x: Any, send: Send, receive: Receive, memory: PerLink | None) -> Any:
        """What is added where no link fires: zeros of the form that ``receive`` gives."""
        own = tree(lambda a: a[:0], x)
        rows = None if memory is None else tuple(a[:0] for a in memory.rows)
        message = send(own, rows)
        none = self.v[:0]
        arc = Arc(none, none, none, none if len(self._block.ends) > 3 else None)
        added, _ = receive(own, message, message, rows, arc)
        return tree(lambda a: a.new_zeros((1, *a.shape[1:])), added)

    def _arc(self, link: int) -> Arc:
        found, one = self._block.weights(self._t, link), self._client.one
        chance = None if found.probability is None else one * found.probability
        return Arc(one * found.into, one * found.back, one * found.row, chance)

    def _swapped(self, messages: dict[int, Message]) -> dict[int, Message]:
        """Swap the messages of a phase, by the places of the links."""
        phase, self.phase = self.phase, self.phase + 1
        if not messages:
            return {}
        links = self._client.links
        found = self._swap(phase, {links[link].peer: message for link, message in messages.items()})
        return {link: found[links[link].peer] for link in messages}

    def _sender(self, client: int) -> Sender:
        return _Neighbour(self._client.run.seed, client, self.k, self.layout.parameters)

    def total(self, memory: PerLink) -> tuple[Tensor, ...]:
        """Add up memory over all links of the client, one after the other. Shapes: (links, …) -> (1, …)."""
        totals = []
        for a in memory.rows:
            total = a.new_zeros((1, *a.shape[1:]))
            for link in range(len(a)):
                total = total + a[link : link + 1]
            totals.append(total)
        return tuple(totals)

    def around(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse: see `NotOnNodesError`."""
        raise NotOnNodesError(self._client, "reads the models of all neighbours together (around)")

    def weights_around(self) -> Tensor:
        """Refuse: see `NotOnNodesError`."""
        raise NotOnNodesError(self._client, "reads the weights of all neighbours together (weights_around)")

    def gate(self, *_: Any, **__: Any) -> Any:
        """Refuse: see `NotOnNodesError`."""
        raise NotOnNodesError(
            self._client, "gates: which links fire depends on the models, and is not known in advance"
        )


class NotOnNodesError(InputError):
    """The rule asks for what a client that is alone does not have.

    Attributes:
        reason: What it does.
    """

    def __init__(self, client: Client, reason: str) -> None:
        super().__init__("the rule", f"of client {client.i}", f"one that runs client by client: this one {reason}")
        self.reason = reason


def _mixed(x: Tensor, theirs: Sequence[tuple[float, Tensor]], minus: Tensor | None) -> Tensor:
    """Compute x + w(x_j − x), link by link, − minus: the bits of these operations one by one, without allocations.

    NumPy does for small arrays what PyTorch does in half the time. The result is in PyTorch's memory: products depend
    on where it begins.
    """
    out = torch.empty_like(x)
    own, total = x.numpy(), out.numpy()
    part, sum_ = np.empty_like(own), own
    for weight, other in theirs:
        np.subtract(other.numpy(), own, out=part)
        np.multiply(part, weight, out=part)
        sum_ = np.add(sum_, part, out=total)
    if minus is not None:
        np.subtract(total, minus.numpy(), out=total)
    return out


def client_ends(state: Any, links: Sequence[Link]) -> Any:
    """Keep the memory of one client's ends of links.

    Args:
        state: The state of a rule, made for the links of one client: memory has two rows for each.
        links: These links.

    Returns:
        The same with one row for each link, that of the client's end.
    """
    at = torch.tensor([2 * e + link.side for e, link in enumerate(links)], dtype=torch.int64)
    own = iter([leaf.index_select(0, at) for leaf in link_leaves(state)])
    return filled(state, iter(leaves(state, 1)), own)


def flat(message: Any) -> Message:
    """Return the tensors of a message, which may be a tensor, or tuples of them."""
    if isinstance(message, tuple):
        return tuple(tensor for part in message for tensor in flat(part))
    return (message,)


def nested(like: Any, tensors: Any) -> Any:
    """Return tensors in the form of a message; ``tensors`` is an iterator."""
    if isinstance(like, tuple):
        parts = [nested(part, tensors) for part in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    return next(tensors)


def _row(memory: PerLink | None, link: int) -> Any:
    """The memory of one end, (1, …) each."""
    return None if memory is None else tuple(a[link : link + 1] for a in memory.rows)
