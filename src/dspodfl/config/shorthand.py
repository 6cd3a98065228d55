"""Short ways to write a configuration: a learning rate as a number, algorithms by any spelling of their names."""

from __future__ import annotations

import re
from typing import Any

from dspodfl.algorithms import SCHEDULES

_ALIASES = {"sporadicsgds": "sporadic_sgd", "randomizedgossip": "rg", "decentralizedgradientdescent": "dgd"}
"""Names in use that differ from the registered ones by more than case, spaces and hyphens."""


def expand(raw: dict[str, Any]) -> dict[str, Any]:
    """Write the short forms of a configuration out in full.

    ``train.learning_rate = 0.01`` is a constant rate, ``algorithms = "dgd"`` a list of one, and names of algorithms
    become the registered ones. What is not a short form is left as it is, to be validated.

    >>> expand({"algorithms": "DGD", "train": {"learning_rate": 0.1}})
    {'algorithms': ['dgd'], 'train': {'learning_rate': {'kind': 'constant', 'value': 0.1}}}
    """
    out = dict(raw)
    names = out.get("algorithms")
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    if isinstance(names, list | tuple):
        out["algorithms"] = [algorithm(name) if isinstance(name, str) else name for name in names]
    train = out.get("train")
    if isinstance(train, dict) and _is_number(train.get("learning_rate")):
        out["train"] = train | {"learning_rate": {"kind": "constant", "value": train["learning_rate"]}}
    return out


def algorithm(name: str) -> str:
    """Give the registered name of an algorithm: case, spaces, hyphens and underscores do not count.

    >>> algorithm("Sporadic SGDs"), algorithm("DSpodFL"), algorithm("package.module:schedule")
    ('sporadic_sgd', 'dspodfl', 'package.module:schedule')
    """
    known = {_bare(registered): registered for registered in SCHEDULES} | _ALIASES
    return known.get(_bare(name), name)


def _bare(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
