"""One iteration as a rule sees it: gradients, mixing, and exchanges over links with memory at their ends.

``send`` and ``receive`` of `Step.exchange` are pure functions of one end of a link: what the simulator calls with all
ends that fire, a networked node calls with one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.base import Rule
    from dspodfl.rng import Stream


class Arc(NamedTuple):
    """One end of each link that fires, at client i, with neighbour j at the other end. Shapes: (ends, 1) each."""

    into: Tensor
    """The weight of what j sends to i; 0 where this direction does not fire."""
    back: Tensor
    """The weight of what i sends to j; 0 where that direction does not fire."""
    row: Tensor
    """The weight of what j sends to i in a row-stochastic matrix; ``into``, unless links are directed."""
    probability: Tensor | None
    """Probability q_ij(k) of the link by the schedule; None unless the rule declares ``needs_probability``."""


class PerLink(NamedTuple):
    """Memory at the ends of links: tensors of shape (2 · links, …).

    Rows 2e and 2e + 1 belong to link e = (i, j): the first to client i, the second to client j.
    """

    rows: tuple[Tensor, ...]


class Sender(Protocol):
    """What a receiver knows about the client that sent a message to it, besides the message."""

    @property
    def parameters(self) -> int:
        """The number of parameters, p."""
        ...

    def words(self, stream: Stream, slots: int) -> Tensor:
        """Draw words at the sender's address and this iteration. Shape: (1, slots), int64."""
        ...


Send = Callable[[Any, Any], Any]
"""``send(x, memory) -> message``: the own rows of the array, the own memory; a tensor or a tuple of tensors.

Between processes that hold one client each, a ``send`` may have ``encode(message, x, memory) -> tensors`` and
``decode(tensors, sender) -> message`` (`Sender`), of one row: tensors in fewer bytes, of the same shapes in every
iteration, from which the receiver makes the same message again."""
Receive = Callable[..., tuple[Any, Any]]
"""``receive(x, mine, theirs, memory, arc) -> (added, memory)``: the own rows, both messages, the own memory, and the
weights; what is added up for the client (a tensor or a tuple of tensors), and the new memory."""


class Layout(Protocol):
    """Where the parameters of a model are in a row of the stacked models, which may be in another order and padded."""

    @property
    def parameters(self) -> int:
        """The number of parameters, p."""
        ...

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the parameter tensors, in the order of ``named_parameters``."""
        ...

    def flat(self, x: Tensor) -> Tensor:
        """Return rows in the order of ``named_parameters``. Shapes: (rows, width) -> (rows, p)."""
        ...

    def packed(self, x: Tensor) -> Tensor:
        """Return rows in the order of the stacked models. Shapes: (rows, p) -> (rows, width)."""
        ...


class Step(Protocol):
    """Iteration k as a rule sees it."""

    @property
    def k(self) -> int:
        """The number of the iteration."""
        ...

    @property
    def v(self) -> Tensor:
        """Which clients take a gradient step, as 0 and 1, (clients, 1)."""
        ...

    @property
    def lr(self) -> Tensor:
        """The step sizes α, (clients, 1)."""
        ...

    @property
    def linked(self) -> Tensor:
        """Which clients have a link that fires, (clients, 1), bool."""
        ...

    @property
    def n(self) -> Tensor:
        """The number of clients of each client's run, (clients, 1)."""
        ...

    @property
    def client(self) -> Tensor:
        """The number of each client in its run, (clients, 1), int64."""
        ...

    @property
    def probability(self) -> Tensor:
        """The probability p_i(k) with which each client steps, by a schedule that knows it, (clients, 1)."""
        ...

    @property
    def link_rate(self) -> Tensor:
        """The mean of the rates b_ij(k) of each client's links, 1 where it has none, (clients, 1)."""
        ...

    @property
    def layout(self) -> Layout:
        """Where the parameters are in the rows of the models."""
        ...

    def gradient(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Compute diag(scale) G(x): gradients on the minibatches of this iteration, at any points.

        Args:
            x: The points, (clients, p).
            scale: Multiplies the gradient of each client, (clients, 1).

        Returns:
            The gradients, (clients, p).
        """
        ...

    def mix(self, x: Tensor, minus: Tensor | None = None) -> Tensor:
        """Compute P(k)x − minus. The memory of ``minus`` is used up. Shapes: (clients, p) each."""
        ...

    def exchange(
        self, x: Any, send: Send, receive: Receive, memory: PerLink | None = None
    ) -> tuple[Any, PerLink | None]:
        """Exchange messages over the links that fire.

        Args:
            x: What ``send`` and ``receive`` see of the own client: a tensor, or a tuple of tensors, (clients, …).
            send: Makes the message of an end.
            receive: Gives what an end adds to its client, and its new memory.
            memory: The memory at the ends of links.

        Returns:
            What is added to each client, summed over its links in their order, (clients, …); and the memory, changed
            where links fire.
        """
        ...

    def total(self, memory: PerLink) -> tuple[Tensor, ...]:
        """Add up memory over all links of each client, whether they fire or not.

        Args:
            memory: The memory at the ends of links, (2 · links, …).

        Returns:
            Of each tensor, the sum over the client's ends in the order of the links, (clients, …).
        """
        ...

    def around(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the neighbours whose links fire.

        Args:
            x: An array, (clients, p).

        Returns:
            The rows, (clients, most neighbours, p), and which of them there are, (clients, most neighbours), bool.
        """
        ...

    def weights_around(self) -> Tensor:
        """Return the weights of what the neighbours of `around` send, 0 where a link does not fire.

        Returns:
            The weights, (clients, most neighbours).
        """
        ...

    def gate(self, who: Tensor) -> Step:
        """Return this iteration with fewer links: of those that fire, those with an end in ``who``.

        Links that the graph did not have in the iteration before fire too. Rules that declare ``gates = True`` exchange
        over such iterations alone: what passes is what is counted.

        Args:
            who: Clients of which one is enough at a link, (clients, 1), bool.

        Returns:
            The same iteration, in which other links do not fire.
        """
        ...

    def words(self, stream: Stream, slots: int) -> Tensor:
        """Draw random words at the address of each client and this iteration. Shape: (clients, slots), int64."""
        ...


def gates_links(rule: Rule) -> bool:
    """Return whether a rule declares that models decide which of the links of the schedule fire.

    It exchanges over `dspodfl.algorithms.Step.gate` alone, and what its runs spend is not known ahead of the models.

    Args:
        rule: The rule.

    Returns:
        True where it has ``gates = True``.

    >>> from dspodfl.algorithms import Simultaneous
    >>> gates_links(Simultaneous())
    False
    """
    return bool(getattr(rule, "gates", False))
