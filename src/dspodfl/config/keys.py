"""Dotted keys and their values: the one parser of ``table.key=value``, as the command line and grids use it."""

from __future__ import annotations

import re
from typing import Any

from dspodfl.errors import ConfigError, parse_toml

_BARE_WORD = re.compile(r"[^\s\"'\[\]{}=,#]+")


def split_key(name: str) -> list[str] | None:
    """Return the parts of a dotted key; None where one of them is empty.

    >>> split_key("train.learning_rate.value")
    ['train', 'learning_rate', 'value']
    >>> split_key("train..value") is None
    True
    """
    parts = [part.strip() for part in name.split(".")]
    return parts if all(parts) else None


def assign(raw: dict[str, Any], key: str, value: Any, where: str | None = None) -> None:
    """Set ``table.key`` in nested tables, which are made where there are none.

    Args:
        raw: the tables, changed in place.
        key: the dotted key.
        value: its value.
        where: how messages name the change; by default the key.

    Raises:
        ConfigError: A part of the key is a value, not a table.

    >>> tables = {"train": {"batch_size": 8}}
    >>> assign(tables, "train.learning_rate.value", 0.1)
    >>> tables
    {'train': {'batch_size': 8, 'learning_rate': {'value': 0.1}}}
    """
    *tables, last = (part.strip() for part in key.split("."))
    table = raw
    for depth, part in enumerate(tables, 1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError([f"{where or key}: {'.'.join(tables[:depth])} is a value, not a table"])
    table[last] = value


def parse_value(text: str) -> Any:
    """Return a TOML value, or the text itself where it is one bare word.

    Raises:
        ValueError: It is neither.

    >>> parse_value("0.1"), parse_value("ring"), parse_value("[1, 2]")
    (0.1, 'ring', [1, 2])
    """
    try:
        found = parse_toml(f"value = {text}")
    except ValueError:
        found = {"value": text} if _BARE_WORD.fullmatch(text) else {}
    if list(found) != ["value"]:  # a line break in the text would begin another key
        raise ValueError(f"{text!r} is no TOML value and no bare word")
    return found["value"]
