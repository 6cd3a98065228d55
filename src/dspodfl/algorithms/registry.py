"""The methods by name, one file each in `dspodfl.algorithms.methods`; their code is imported when it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

from dspodfl.algorithms import methods
from dspodfl.algorithms.entry import Entry, Setting
from dspodfl.algorithms.inverse_rates import INVERSE_RATES, REFUSED, SETTINGS
from dspodfl.errors import nearest

REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""``"package.module:object"``, what code of a user is named by."""


def _entries() -> dict[str, Entry]:
    names = sorted(module.name for module in iter_modules(methods.__path__) if not module.name.startswith("_"))
    found = {name: import_module(f"{methods.__name__}.{name}").ENTRY for name in names}
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


ALGORITHMS: Mapping[str, Entry] = MappingProxyType(_entries())
"""Every registered method: name -> what is known of it."""

PAPER = tuple(name for name, entry in ALGORITHMS.items() if entry.paper)
"""The methods that the paper compares; a study that names none is of these."""

ORDERS: Mapping[str, str] = MappingProxyType(
    {
        "simultaneous": "dspodfl.algorithms.rules:simultaneous",
        "combine_then_adapt": "dspodfl.algorithms.rules:combine_then_adapt",
        "adapt_then_combine": "dspodfl.algorithms.rules:adapt_then_combine",
    }
)
"""The values of ``train.order``, which are rules: name -> ``"module:object"``."""


def known_rules() -> dict[str, str]:
    """Return the registered rules: the orders, and those of methods that have their own, by the method's name.

    Returns:
        Name -> ``"module:object"``.

    >>> known_rules()["simultaneous"]
    'dspodfl.algorithms.rules:simultaneous'
    """
    return {**ORDERS, **{name: entry.rule for name, entry in ALGORITHMS.items() if entry.rule is not None}}


def registered_name(name: str) -> str:
    """Return the registered name of a method: case, spaces, hyphens and underscores do not count.

    Args:
        name: A name, a label or an alias.

    Returns:
        The registered name; ``name`` itself where there is none.

    >>> registered_name("Sporadic SGDs"), registered_name("DSpodFL"), registered_name("package.module:schedule")
    ('sporadic_sgd', 'dspodfl', 'package.module:schedule')
    """
    bare = _bare(name)
    for known, entry in ALGORITHMS.items():
        if bare in map(_bare, (known, entry.label, *entry.aliases)):
            return known
    return name


def _bare(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


def schedule_problem(name: str, what: str = "schedule") -> str | None:
    """Return what the name of a schedule must be, where it is neither registered nor of code; None where it is fine.

    Args:
        name: Of a schedule.
        what: What the message calls the object of ``"package.module:object"``.

    Returns:
        What follows "must be" in a message, or None.

    >>> schedule_problem("dgd") is None, schedule_problem("dgdd").endswith("did you mean 'dgd'?")
    (True, True)
    """
    if name in ALGORITHMS or REFERENCE.fullmatch(name):
        return None
    return f"one of {', '.join(ALGORITHMS)}, or 'package.module:{what}'{nearest(name, ALGORITHMS)}"


def rule_problem(name: str) -> str | None:
    """Return what the name of a rule must be, where it is neither registered nor of code; None where it is fine.

    Args:
        name: Of a rule.

    Returns:
        What follows "must be" in a message, or None.
    """
    known = known_rules()
    if name in known or REFERENCE.fullmatch(name):
        return None
    return f"one of {', '.join(known)}, or 'package.module:Rule'{nearest(name, known)}"


def settings_problem(schedule: str, rule: str | None, settings: Mapping[str, Any]) -> tuple[str, Any, str] | None:
    """Return the first setting that a method does not take: its key, its value, and what it must be.

    Args:
        schedule: the name of its schedule; code of a user takes what it takes, which is found out when it is imported.
        rule: the name of its rule; None: the one that ``train.order`` names.
        settings: by names.

    Returns:
        The key, the value and what it must be; None where all are fine.

    >>> settings_problem("dfedavg", None, {"period": 0})
    ('period', 0, "an integer of at least 1, or 'auto'")
    """
    known: dict[str, Setting] = dict(ALGORITHMS[schedule].settings) if schedule in ALGORITHMS else {}
    if rule is not None and rule in ALGORITHMS:
        known |= ALGORITHMS[rule].settings
    method = ALGORITHMS.get(schedule if rule is None else rule)
    if method is None or method.takes_local:
        known = known | (SETTINGS if INVERSE_RATES in settings else {INVERSE_RATES: SETTINGS[INVERSE_RATES]})
    elif INVERSE_RATES in settings:
        return INVERSE_RATES, settings[INVERSE_RATES], REFUSED.format(method.label)
    closed = schedule in ALGORITHMS and (rule is None or rule in known_rules())
    for key, value in settings.items():
        if key in known and not known[key].check(value):
            return key, value, known[key].allowed
        if key not in known and closed:
            return key, value, not_taken(known)
    return None


def local_problem(schedule: str, rule: str | None) -> str | None:
    """Return why a method takes no ``local``; None where it does, or where that is found out when its rule is tried.

    Args:
        schedule: The name of its schedule.
        rule: The name of its rule; None: its own, else the one that ``train.order`` names.

    Returns:
        What follows "must be" in a message, or None.

    >>> local_problem("dspodfl", None) is None
    True
    >>> local_problem("gradient_tracking", None)
    'left out: gradient_tracking takes plain gradients'
    """
    own = schedule in ALGORITHMS and (rule is None or ALGORITHMS[schedule].rule is None)
    for name in (rule or "", schedule if own else ""):
        if name in ALGORITHMS and not ALGORITHMS[name].takes_local:
            return f"left out: {name} takes plain gradients"
    return None


def not_taken(known: Mapping[str, Any]) -> str:
    """Return what a message says of a setting that is not known."""
    return f"left out: allowed are {', '.join(known)}" if known else "left out: this algorithm has no settings"
