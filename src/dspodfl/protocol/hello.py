"""The check of a HELLO: the other end must run the same thing as this one."""

from __future__ import annotations

from itertools import zip_longest

from dspodfl.protocol.messages import VERSION, Hello
from dspodfl.protocol.plan import Plan

LOST = "it has lost its checkpoints"
"""How the text of a BYE ends that refuses a node for good: what it needs is no longer kept."""
_NOTHING = ("", b"")


def refusal(plan: Plan, peer: int, hello: Hello, durable: int) -> str | None:
    """Say why a HELLO is refused.

    Args:
        plan: The run as this node sees it.
        peer: The neighbour at the other end of the connection, by its certificate.
        hello: Its HELLO.
        durable: The iteration that the neighbour confirmed before.

    Returns:
        The reason, or None if there is none.
    """
    if hello.version != VERSION:
        return f"the protocol's version is {hello.version} there and {VERSION} here"
    if hello.id != peer:
        return f"it says that it is node {hello.id}, but it is node {peer}"
    if hello.id not in plan.neighbours:
        return f"node {hello.id} is not a neighbour of node {plan.id}"
    if hello.run_id != plan.run_id:
        return f"the run is {hello.run_id!r:.80} there and {plan.run_id!r:.80} here"
    if hello.config != plan.config:
        return f"the configuration differs: {first_difference(plan.config, hello.config)}"
    if hello.schema != plan.schema:
        return "what is exchanged differs in names, shapes or types of the parameters"
    if hello.durable > plan.iterations or (hello.need is not None and not plan.exists(peer, *hello.need)):
        return "it is at an iteration that this run does not have"
    if hello.durable < durable:
        return f"it confirmed iteration {durable} before and is back at {hello.durable}: {LOST}"
    return None


def first_difference(here: tuple[tuple[str, bytes], ...], there: tuple[tuple[str, bytes], ...]) -> str:
    """Name the first key in which two configurations differ.

    Args:
        here: Key and fingerprint of this node's values, ordered by key.
        there: Those of the other node.

    Returns:
        The key, and whether it is missing at an end.

    >>> first_difference((("a", b"1"), ("c", b"1")), (("a", b"1"), ("b", b"2"), ("c", b"1")))
    'b is set there alone'
    >>> first_difference((("a", b"1"),), (("a", b"2"),))
    'a'
    """
    for (key, value), (other, given) in zip_longest(here, there, fillvalue=_NOTHING):
        if key == other and value == given:
            continue
        if key == other:
            return key
        if other and (not key or other < key):
            return f"{other:.200} is set there alone"
        return f"{key:.200} is set here alone"
    return "nothing"
