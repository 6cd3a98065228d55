"""Numbers a person gave, checked: each comes back as a plain int or float, or is refused by the field's name."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real

from dspodfl.errors import InputError


def whole(field: str, value: object, most: int | None = None, why: str = "") -> int:
    """An integer from 1 to ``most``, which is ``why``.

    >>> whole("data.partition.per_client", 11, 10, "the number of classes")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dspodfl.errors.base.InputError: data.partition.per_client = 11: must be an integer from 1 to 10, the number ...
    """
    allowed = "an integer above 0" if most is None else f"an integer from 1 to {most}, {why}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(field, value, allowed)
    given = int(value)
    if given < 1 or (most is not None and given > most):
        raise InputError(field, given, allowed)
    return given


def number(field: str, value: object, *, zero: bool = False) -> float:
    """A finite number above 0, or from 0 on."""
    allowed = f"a finite number {'from 0 on' if zero else 'above 0'}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(field, value, allowed)
    try:
        given = float(value)
    except OverflowError:
        raise InputError(field, value, allowed) from None
    if not isfinite(given) or given < 0 or (given == 0 and not zero):
        raise InputError(field, given, allowed)
    return given
