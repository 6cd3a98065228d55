"""How the processes of one study exchange tensors and objects, as the engine sees it.

`LocalTransport` is one process. `dspodfl.engine.transport.torch_distributed.Group` is several, on torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

Wait = Callable[[], None]
"""Returns when what was started is done: received tensors are there, sent ones may be written again."""


def nothing() -> None:
    """Return immediately: the `Wait` of an exchange in which nothing is sent or received."""


class Bell(Protocol):
    """A flag that any rank can set and every rank can read at any time, without waiting for the others."""

    def ring(self) -> None:
        """Set the flag on all ranks."""
        ...

    def rung(self) -> bool:
        """Return whether some rank has set it."""
        ...


class Transport(Protocol):
    """One of ``ranks`` processes. All but `start` are collective: every rank calls them, in the same order.

    What a `bell` does is not collective.
    """

    rank: int
    ranks: int
    local_ranks: int
    """How many of the ranks are on this machine, and share its memory."""
    prepost_receives: bool
    """Whether receives of the next iteration may be posted before the sends of this one are done."""
    sent: int
    """Bytes of models sent so far."""

    def start(self, send: Sequence[Tensor | None], receive: Sequence[Tensor | None]) -> Wait:
        """Start to send a tensor to each rank and to receive one from each; does not wait.

        Args:
            send: A contiguous tensor for each rank; None: nothing.
            receive: Where to put what comes from each rank; None: nothing comes.

        Returns:
            A function that waits until everything has been sent and received.
        """
        ...

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over ranks, the same bits on all of them.

        Args:
            values: What this rank adds; the same shape on all ranks.
        """
        ...

    def all_gather(self, values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Return what each rank holds, on all of them.

        Args:
            values: What this rank holds, (sizes[rank], ...).
            sizes: How many rows each rank holds.

        Returns:
            A tensor for each rank, (sizes[rank], ...).
        """
        ...

    def gather(self, item: Any) -> list[Any] | None:
        """Return the objects of all ranks on rank 0, and None on the others; they must be picklable."""
        ...

    def broadcast(self, item: Any) -> Any:
        """Return rank 0's object on all ranks; it must be picklable."""
        ...

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on some rank."""
        ...

    def bell(self) -> Bell:
        """Return a new bell that is not rung; every rank makes the same number of them."""
        ...

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        ...

    def set_timeout(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the other ranks from now on, before they count as lost."""
        ...

    def leave(self) -> None:
        """Close the connections, once all ranks are done."""
        ...


class LocalBell:
    """The bell of a single process."""

    def __init__(self) -> None:
        self._rung = False

    def ring(self) -> None:
        """Set the flag."""
        self._rung = True

    def rung(self) -> bool:
        """Return whether it is set."""
        return self._rung


class LocalTransport:
    """A single process: nothing is sent, nothing is waited for.

    >>> LocalTransport().broadcast("hello")
    'hello'
    """

    rank, ranks, local_ranks, sent, prepost_receives = 0, 1, 1, 0, False

    def start(self, send: Sequence[Tensor | None], receive: Sequence[Tensor | None]) -> Wait:
        """Send nothing: there is no other rank."""
        return nothing

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the values themselves."""
        return values

    def all_gather(self, values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Return the values themselves."""
        return [values]

    def gather(self, item: Any) -> list[Any] | None:
        """Return the object itself."""
        return [item]

    def broadcast(self, item: Any) -> Any:
        """Return the object itself."""
        return item

    def any(self, flag: bool) -> bool:
        """Return the flag itself."""
        return flag

    def bell(self) -> Bell:
        """Return a bell of this process."""
        return LocalBell()

    def barrier(self) -> None:
        """Return immediately."""

    def set_timeout(self, timeout: float) -> None:
        """Do nothing: no other rank is waited for."""

    def leave(self) -> None:
        """Do nothing: there is no connection."""
