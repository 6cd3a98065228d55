"""Steps of α/d_i: they take away the pull of sporadic SGD towards the clients that step often.

A method that steps along VG moves, on average, along Σ d_i ∇F_i: its models end near the minimizer of Σ d_i F_i,
however small α is. With α/d_i the average is Σ ∇F_i. The variance of a step grows by 1/d_i, so that 1/d_i is capped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dspodfl.algorithms.entry import Setting

INVERSE_RATES, CAP = "inverse_rates", "cap"
DEFAULT_CAP = 100.0
"""1/d_i is at most this, where nothing else is said."""


def _is_cap(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 1


SETTINGS = {
    INVERSE_RATES: Setting(
        line="whether the steps of client i are α/d_i instead of α, where d_i is the probability that it steps: models "
        "then go to the minimizer of the mean loss, and not of the mean weighted by d_i",
        allowed="true or false",
        check=lambda value: isinstance(value, bool),
        default=False,
    ),
    CAP: Setting(
        line="with inverse_rates: 1/d_i is at most this",
        allowed="a finite number of at least 1",
        check=_is_cap,
        default=DEFAULT_CAP,
    ),
}
"""The settings of every method that steps along the gradients of its clients (`Entry.takes_local`)."""

REFUSED = "left out: it is a setting of methods that step along the gradients of their clients, and {} does not"
"""What a message says after "must be" where a method corrects its gradients."""


def inverse_cap(settings: Mapping[str, Any]) -> float | None:
    """Return what 1/d_i is capped at by the settings of an algorithm; None where its steps are α.

    Args:
        settings: By names, valid.

    Returns:
        The cap, or None.

    >>> inverse_cap({"inverse_rates": True}), inverse_cap({"inverse_rates": True, "cap": 5}), inverse_cap({})
    (100.0, 5.0, None)
    """
    return float(settings.get(CAP, DEFAULT_CAP)) if settings.get(INVERSE_RATES) is True else None


def without_inverse_rates(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that schedule and rule are made with: those of inverse rates are not among them.

    Args:
        settings: By names.

    Returns:
        The others. ``cap`` stays where there is no ``inverse_rates``: it is then a setting of the method's own.
    """
    taken = SETTINGS if INVERSE_RATES in settings else ()
    return {key: value for key, value in settings.items() if key not in taken}
