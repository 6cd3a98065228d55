"""Exchanges by arcs: multiplying by a column-stochastic A(k), and by a row-stochastic R(k), on the arcs that fire.

Both have what is not sent, or not received, on the diagonal. On undirected graphs both are P(k).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Arc, Step


def pushed(at: Step, *arrays: Tensor) -> tuple[Tensor, ...]:
    """Multiply arrays by A(k): each client sends shares of its rows along the arcs that fire, and keeps the rest.

    Args:
        at: The iteration.
        *arrays: What is multiplied, (clients, …) each; one message carries all of them.

    Returns:
        The products, in the same order. Their sums over clients are those of the arrays.
    """
    change, _ = at.exchange(arrays, _as_they_are, _shares)
    return tuple(array + more for array, more in zip(arrays, change, strict=True))


def pulled_and_pushed(at: Step, pulled: Tensor, pushed: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply one array by R(k), which averages what comes in, and another one by A(k), on the same arcs.

    Args:
        at: The iteration.
        pulled: What is multiplied by R(k), (clients, p).
        pushed: What is multiplied by A(k), (clients, p).

    Returns:
        Both products.
    """
    (change, more), _ = at.exchange((pulled, pushed), _as_they_are, _average_and_share)
    return pulled + change, pushed + more


def _as_they_are(x: Any, memory: None) -> Any:
    return x


def _shares(x: Any, mine: Any, theirs: Any, memory: None, arc: Arc) -> tuple[Any, None]:
    return tuple(arc.into * other - arc.back * own for own, other in zip(mine, theirs, strict=True)), None


def _average_and_share(x: Any, mine: Any, theirs: Any, memory: None, arc: Arc) -> tuple[Any, None]:
    return (arc.row * (theirs[0] - mine[0]), arc.into * theirs[1] - arc.back * mine[1]), None
