"""Processes that run one study together, as the engine sees them; how they talk is an argument.

`Alone` is one process. `dspodfl.engine.transport.torch_distributed.Group` is several, on torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

Wait = Callable[[], None]
"""Returns when what was started is done: received tensors are there, sent ones may be written again."""


class Bell(Protocol):
    """Something that any rank can ring and every rank can hear, wherever it is: nobody waits for anybody."""

    def ring(self) -> None:
        """Let all ranks know."""
        ...

    def rung(self) -> bool:
        """Whether some rank has rung it."""
        ...


class Team(Protocol):
    """One of ``ranks`` processes. All but `start` are collective: every rank calls them, in the same order.

    What a `bell` does is not collective.
    """

    rank: int
    ranks: int
    near: int
    """How many of the ranks are on this machine, and share its memory."""
    ahead: bool
    """Whether tensors may be expected before those that are sent meanwhile."""
    sent: int
    """Bytes of models handed to the transport so far."""

    def start(self, send: Sequence[Tensor | None], receive: Sequence[Tensor | None]) -> Wait:
        """Send a contiguous tensor to each rank and receive one from each, None being nothing; does not wait."""
        ...

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks, the same bits on all of them."""
        ...

    def collect(self, values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """What each rank holds, on all of them. Shapes: (sizes[rank], ...) -> ranks × (sizes[rank], ...)."""
        ...

    def gather(self, item: Any) -> list[Any] | None:
        """Any picklable thing of each rank, on rank 0; None on the others."""
        ...

    def share(self, item: Any) -> Any:
        """Rank 0's thing, on all of them."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on some rank."""
        ...

    def bell(self) -> Bell:
        """A new bell that nobody has rung; every rank makes as many."""
        ...

    def barrier(self) -> None:
        """Until all ranks are here."""
        ...

    def patience(self, timeout: float) -> None:
        """Wait so many seconds for the others from now on, before they count as gone."""
        ...

    def leave(self) -> None:
        """Part, once all ranks are done."""
        ...


class OwnBell:
    """The bell of a team of one."""

    def __init__(self) -> None:
        self._rung = False

    def ring(self) -> None:
        """Remember it."""
        self._rung = True

    def rung(self) -> bool:
        """Whether it was rung."""
        return self._rung


class Alone:
    """A team of one."""

    rank, ranks, near, sent, ahead = 0, 1, 1, 0, False

    def start(self, send: Sequence[Tensor | None], receive: Sequence[Tensor | None]) -> Wait:
        """There is nobody to send to."""
        return lambda: None

    def total(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def collect(self, values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """The values themselves."""
        return [values]

    def gather(self, item: Any) -> list[Any] | None:
        """The thing itself."""
        return [item]

    def share(self, item: Any) -> Any:
        """The thing itself."""
        return item

    def any(self, flag: bool) -> bool:
        """The flag itself."""
        return flag

    def bell(self) -> Bell:
        """One that is heard here."""
        return OwnBell()

    def barrier(self) -> None:
        """Everybody is here."""

    def patience(self, timeout: float) -> None:
        """There is nobody to wait for."""

    def leave(self) -> None:
        """There is nobody to part from."""
