"""Checks of settings that several methods have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

LARGEST = 2**32
"""Iterations are 32-bit words of an address."""


def is_count(least: int) -> Callable[[Any], bool]:
    """Return a check of integers from a least one on.

    Args:
        least: The least integer that is allowed.

    >>> is_count(1)(0), is_count(1)(3), is_count(1)(True)
    (False, True, False)
    """
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value < LARGEST


def is_one_of(words: Iterable[str]) -> Callable[[Any], bool]:
    """Return a check of words.

    Args:
        words: Those that are allowed.

    >>> is_one_of(("all", "neighbours"))("some")
    False
    """
    allowed = tuple(words)
    return lambda value: value in allowed


def is_share(value: Any) -> bool:
    """Return whether a value is a number in (0, 1].

    Args:
        value: Any value.

    >>> is_share(0.5), is_share(1), is_share(0), is_share(True)
    (True, True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
