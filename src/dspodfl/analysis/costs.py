"""Costs: the axes that accuracies are read along, and a value on one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspodfl.analysis import formatting
from dspodfl.errors import InputError, nearest
from dspodfl.network import COST_COLUMNS, COSTS, Budget, Kind


@dataclass(frozen=True)
class Cost(Budget):
    """A value of a kind of cost; a run is read at its first row whose cost is at least that.

    >>> Cost("delay", 10000.0).text, Cost("delay", 10000.0).column
    ('delay 10,000', 'delay_total')
    """

    @property
    def name(self) -> str:
        """The kind, as a word before a number."""
        return COSTS[self.kind].word

    @property
    def meaning(self) -> str:
        """The kind, in full."""
        return COSTS[self.kind].meaning

    @property
    def text(self) -> str:
        """The cost as text: ``delay 10,000``, ``2.5 GB sent``, ``iteration 2,000``."""
        return (
            f"{self.number(self.value)} sent"
            if COSTS[self.kind].unit == "bytes"
            else f"{self.name} {self.number(self.value)}"
        )

    def number(self, value: object) -> str:
        """Format a number of this kind."""
        return {"bytes": formatting.size, "count": formatting.count, "number": formatting.delay}[COSTS[self.kind].unit](
            value
        )


def from_record(record: object) -> Cost | None:
    """Return the budget of a study from ``summary.json``, or from any object that has a kind and a value.

    >>> from_record({"kind": "delay", "value": 10000.0})
    Cost(kind='delay', value=10000.0)
    """
    if isinstance(record, Mapping):
        kind, value = record.get("kind"), record.get("value")
    else:
        kind, value = getattr(record, "kind", None), getattr(record, "value", None)
    known: Kind | None = next((name for name in COST_COLUMNS if name == kind), None)
    return Cost(known, float(value)) if known is not None and formatting.is_number(value) else None


def from_config(config: Mapping[str, Any]) -> Cost | None:
    """Return the budget of a configuration.

    Args:
        config: The resolved configuration, as plain tables; also one of version 0.1, which has ``until_delay``.

    Returns:
        The budget; None where runs end after a number of iterations.

    >>> from_config({"train": {"until": {"bytes": 1e9}}})
    Cost(kind='bytes', value=1000000000.0)
    """
    train = config.get("train")
    train = train if isinstance(train, Mapping) else {}
    until = train.get("until")
    if isinstance(until, Mapping):
        for kind in COST_COLUMNS:
            if formatting.is_number(until.get(kind)):
                return Cost(kind, float(until[kind]))
    old = train.get("until_delay")
    return Cost("delay", float(old)) if formatting.is_number(old) else None


def parse(text: str, field: str = "--at") -> Cost:
    """Parse a cost, as in ``delay=5000``.

    Args:
        text: ``KIND=VALUE``.
        field: The option that has the text, for messages.

    Returns:
        The cost.

    Raises:
        InputError: The kind is unknown, or the value is not a finite number above 0.

    >>> parse("iteration=2000")
    Cost(kind='iterations', value=2000.0)
    """
    name, sign, number = (part.strip() for part in text.partition("="))
    kind: Kind | None = next((kind for kind in COST_COLUMNS if name in (kind, kind.removesuffix("s"))), None)
    known = [one.key for one in COSTS.values()]
    if not sign or kind is None:
        hint = nearest(name, known) if name and kind is None else ""
        raise InputError(field, text, f"KIND=VALUE with a kind of {', '.join(known)}, as in delay=5000{hint}")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(field, text, "KIND=VALUE with a finite value above 0, as in delay=5000")
    if COSTS[kind].whole and not value.is_integer():
        raise InputError(field, text, f"KIND=VALUE with a whole number of {kind}, as in {COSTS[kind].written}")
    return Cost(kind, value)
