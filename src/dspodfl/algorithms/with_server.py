"""What rules of methods with a server share: who the server is, and messages from and to it.

The server is the last node of each run. It sends down and clients send up: ``receive`` of an end takes what the other
end sends if that is of the other kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspodfl.algorithms.checks import is_count, is_share
from dspodfl.algorithms.entry import Setting
from dspodfl.algorithms.star import RATES

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Step

EVALUATED = "The model of the server is evaluated. It runs on a star of clients and a server, not on [graph]."
"""What docs say of all methods with a server."""

ROUND_SETTINGS = {
    "steps": Setting(line="E, the steps of a client in a round", allowed="an integer of at least 1", check=is_count(1)),
    "share": Setting(
        line='the share of the clients that take part in a round; "rates": each with the rate b_i of its link',
        allowed=f'in (0, 1], or "{RATES}"',
        check=lambda value: value == RATES or is_share(value),
    ),
    "server_rate": Setting(
        line="η, by which the server multiplies the mean change of the clients",
        allowed="a number above 0",
        check=lambda value: is_positive(value),
    ),
}
"""The settings of methods that proceed in rounds."""


def is_positive(value: Any) -> bool:
    """Return whether a value is a finite number above 0.

    Args:
        value: Any value.

    >>> is_positive(0.5), is_positive(0), is_positive(True)
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def is_server(at: Step) -> Tensor:
    """Return which rows are those of servers.

    Args:
        at: The iteration.

    Returns:
        Shape (clients, 1), bool.
    """
    return at.client == at.n - 1


def told(at: Step, who: Tensor, *values: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Send the values of some rows over the links that fire, and add them up at the other ends.

    Args:
        at: The iteration.
        who: Which rows send: the server's, or those of clients, (clients, 1), bool.
        *values: What they send, (clients, p) each.

    Returns:
        From how many each row has received, (clients, 1), and the sums of what was sent to it, (clients, p) each.
    """
    sent = who.to(values[0].dtype)

    def send(x: Any, _: Any) -> Any:
        return x

    def receive(x: Any, mine: Any, theirs: Any, memory: Any, arc: Any) -> Any:
        flag, *rest = theirs
        return (flag, *(flag * value for value in rest)), memory

    (count, *sums), _ = at.exchange((sent, *values), send, receive)
    return count, tuple(sums)
