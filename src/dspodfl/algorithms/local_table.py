"""Transformations of gradients as tables, as files have them: ``local = { clip = 1.0, momentum = 0.9 }``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dspodfl.algorithms.local import (
    FIELD,
    Adam,
    Chain,
    Clip,
    Decay,
    Local,
    Momentum,
    Proximal,
    clip,
    decay,
    momentum,
    nesterov,
    proximal,
)
from dspodfl.errors import InputError, nearest


def _adam(given: Any) -> Adam:
    if given is True:
        return Adam()
    if not isinstance(given, Mapping):
        raise InputError(f"{FIELD}.adam", given, "true, or a table with beta1, beta2 or epsilon")
    _check_keys(f"{FIELD}.adam", given, ("beta1", "beta2", "epsilon"))
    return Adam(**given)


KEYS: Mapping[str, Callable[[Any], Local]] = MappingProxyType(
    {
        "clip": clip,
        "proximal": proximal,
        "momentum": momentum,
        "nesterov": nesterov,
        "adam": _adam,
        "decay": decay,
    }
)
"""The keys of a table ``local``, in the order in which they apply: key -> what makes a transformation of its value."""

ACCELERATED = ("momentum", "nesterov", "adam")
"""Keys of which a table has one at most."""


def from_table(table: Mapping[str, Any]) -> Chain | None:
    """Make the transformation that a table ``local`` describes.

    Args:
        table: Values by `KEYS`, in any order.

    Returns:
        The transformations in the order of `KEYS`; None where there are none.

    Raises:
        InputError: A key is not known, a value is not allowed, or two keys exclude each other.

    >>> from dspodfl.algorithms.local import chain
    >>> from_table({"momentum": 0.9, "clip": 1.0}) == chain(clip(1.0), momentum(0.9))
    True
    """
    _check_keys(FIELD, table, tuple(KEYS))
    given = {key: value for key in KEYS if (value := table.get(key)) is not None}
    both = [key for key in ACCELERATED if key in given]
    if len(both) > 1:
        raise InputError(f"{FIELD}.{both[1]}", given[both[1]], f"left out: there is {both[0]}")
    parts = tuple(KEYS[key](value) for key, value in given.items())
    return Chain(parts) if parts else None


def as_table(local: Local) -> dict[str, Any] | None:
    """Return the table that a transformation can be written as in a file.

    Args:
        local: The transformation.

    Returns:
        A table that `from_table` makes it from; None where there is none.

    >>> from dspodfl.algorithms.local import adam, chain
    >>> as_table(chain(clip(1.0), adam())), as_table(chain(decay(0.1), clip(1.0)))
    ({'clip': 1.0, 'adam': {'beta1': 0.9, 'beta2': 0.999, 'epsilon': 1e-08}}, None)
    """
    whole = local if isinstance(local, Chain) else Chain((local,))
    pairs = [_pair(part) for part in whole.parts]
    table = {pair[0]: pair[1] for pair in pairs if pair is not None}
    if len(table) < len(pairs) or not table:
        return None
    try:
        return table if from_table(table) == whole else None
    except InputError:
        return None


def _pair(part: Local) -> tuple[str, Any] | None:
    """Return the key and the value of a transformation."""
    match part:
        case Clip(value):
            return "clip", value
        case Proximal(value):
            return "proximal", value
        case Momentum(value, nesterov=True):
            return "nesterov", value
        case Momentum(value):
            return "momentum", value
        case Adam(beta1, beta2, epsilon):
            return "adam", {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        case Decay(value):
            return "decay", value
    return None


def _check_keys(field: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{field}.{key}", value, f"left out: allowed are {', '.join(known)}{nearest(key, known)}")
