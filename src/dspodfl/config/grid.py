"""Grids of configurations: a base, and what is varied over it.

    --over train.learning_rate.value=0.001,0.01     two points
    --over rates.refresh=0,1000                      two more: four cells in all

A cell is one configuration of the grid. Its runs draw the same numbers whatever else is in the grid, so that points are
compared on the same graphs, rates, minibatches and events wherever these are not what is varied.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dspodfl.config import FREE, Config
from dspodfl.config.keys import assign, parse_value, split_key
from dspodfl.errors import ConfigError

NUMBERS = 1
"""The version of what is computed. It moves whenever the same configuration gives other numbers, or a default changes:
cells that are finished are then run again. A test pins the numbers of a small study to it."""
_FORMER_TRAIN = ("iterations", "batch_size", "learning_rate", "order", "dfedavg_period", "precision")
_FORMER_EVAL = ("every", "at_delay", "targets")
_LATER = {"graph": ("directed",), "rates": ("diurnal", "availability", "channel", "churn")}
"""Keys that came after 0.1, by table; without them, or with nothing in them, a study is what it was."""
"""The keys of version 0.1."""

Value = float | int | str | bool
"""What a point of an axis is called: a column of the tables has these."""


@dataclass(frozen=True)
class Point:
    """One value of an axis, and the keys that it sets."""

    value: Value
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """What is varied: the name is that of a column and of the axis of a figure."""

    name: str
    points: tuple[Point, ...]

    @staticmethod
    def of(name: str, values: Sequence[Any], keys: Sequence[str] | None = None) -> Axis:
        """Every key gets the value; without keys, the name is the key.

        Args:
            name: of the axis.
            values: numbers, strings, tables or lists; a point is named by its value where all are numbers, all strings
                or all booleans, and else by a text of it.
            keys: what gets the values.

        >>> Axis.of("train.learning_rate.value", [0.1, 0.2]).points[1].changes
        {'train.learning_rate.value': 0.2}
        >>> [point.value for point in Axis.of("graph", [{"kind": "ring"}, {"kind": "grid", "rows": 2}]).points]
        ['ring', 'grid, rows = 2']
        """
        points = zip(_labels(values), values, strict=True)
        return Axis(name, tuple(Point(label, dict.fromkeys(keys or [name], value)) for label, value in points))

    @staticmethod
    def parse(text: str) -> Axis:
        """From ``table.key=value,value``, TOML values or bare words.

        >>> [point.value for point in Axis.parse("graph.kind=ring,complete").points]
        ['ring', 'complete']
        """
        key, equals, values = text.partition("=")
        if not equals or split_key(key) is None or not values.strip():
            raise ConfigError([f"--over {text!r}: must be table.key=value,value,…"])
        axis = Axis.of(key.strip(), [_value(part.strip(), text) for part in _at_commas(values)])
        names = [str(point.value) for point in axis.points]
        if len(set(names)) < len(names):
            raise ConfigError([f"--over {text!r}: must name every value once"])
        return axis


@dataclass(frozen=True)
class Cell:
    """One configuration of a grid."""

    point: Mapping[str, Value]
    config: Config

    @cached_property
    def digest(self) -> str:
        """A name for what the cell computes: equal for equal configurations of one version of the numbers."""
        content = self.config.model_dump(mode="json", exclude=set(FREE), exclude_defaults=True)
        return _named([NUMBERS, content])

    @cached_property
    def former_digest(self) -> str | None:
        """The name that version 0.1 gave the same cell; None where it computes what 0.1 could not.

        Cells of 0.1 are good for as long as the numbers are those of `NUMBERS` = 1.
        """
        config, until = self.config, self.config.train.until
        if NUMBERS != 1 or config.train.iterations is None or (until is not None and until.delay is None):
            return None
        if (until is not None and config.eval.every is None) or config.eval.points is not None:
            return None
        if config.attack is not None:
            return None
        content = config.model_dump(exclude={*FREE, "attack"})
        later = [content[table].pop(key) for table, keys in _LATER.items() for key in keys]
        if any(later):
            return None
        content["train"] = {key: content["train"][key] for key in _FORMER_TRAIN}
        content["train"] |= {} if until is None else {"until_delay": until.delay}
        new = {key: value for key, value in content["eval"].items() if key not in _FORMER_EVAL and value is not None}
        content["eval"] = {key: content["eval"][key] for key in _FORMER_EVAL} | new
        content["eval"]["every"] = config.eval.every or 100
        return _named(["0.1.0", content])

    @property
    def label(self) -> str:
        """The point as text."""
        return ", ".join(f"{name} = {value}" for name, value in self.point.items()) or "the only cell"


def _named(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cells(base: Mapping[str, Any], axes: Sequence[Axis], reserved: Collection[str] = ()) -> list[Cell]:
    """Return all combinations of the points of the axes, the last axis fastest.

    Args:
        base: The configuration that is varied, as nested tables.
        axes: What is varied.
        reserved: Names that no axis may have: the columns of the tables that the cells' names are added to.

    Returns:
        The cells of the grid.

    Raises:
        ConfigError: An axis is given twice, has a reserved name, or one of the configurations is not valid.

    >>> [cell.point for cell in cells({}, [Axis.of("seeds", [1, 2])])]
    [{'seeds': 1}, {'seeds': 2}]
    """
    names = [axis.name for axis in axes]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError([f"--over {twice[0]}: must be varied once"])
    taken = [name for name in names if name in reserved]
    if taken:
        advice = "; seeds = N gives N of them" if taken[0] == "seed" else ""
        raise ConfigError([f"--over {taken[0]}: must be another key: the tables have a column of that name{advice}"])
    out = []
    for points in itertools.product(*(axis.points for axis in axes)):
        raw = copy.deepcopy(dict(base))
        for point in points:
            for key, value in point.changes.items():
                assign(raw, key, value)
        chosen = {axis.name: point.value for axis, point in zip(axes, points, strict=True)}
        try:
            out.append(Cell(chosen, Config(**raw)))
        except ConfigError as error:
            here = ", ".join(f"{name} = {value}" for name, value in chosen.items())
            raise ConfigError([f"at {here}: {line}" if here else line for line in error.problems]) from None
    return out


_TAGS = ("kind", "law", "name", "factory")


def _labels(values: Sequence[Any]) -> list[Value]:
    """Return the names of the points of an axis: a column of one type, whatever the values are."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if numbers or any(all(isinstance(value, kind) for value in values) for kind in (str, bool)):
        return list(values)
    return [_label(value) for value in values]


def _label(value: Any, *, inside: bool = False) -> str:
    """A value as text: a table by its kind and its other keys, a list by its items."""
    if isinstance(value, dict):
        tag = next((key for key in _TAGS if isinstance(value.get(key), str)), None)
        rest = [f"{key} = {_label(item, inside=True)}" for key, item in value.items() if key != tag]
        text = ", ".join([value[tag], *rest] if tag else rest)
        return f"{{ {text} }}" if inside or not text else text
    if isinstance(value, list):
        return f"[{', '.join(_label(item, inside=True) for item in value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at_commas(text: str) -> list[str]:
    """Split a text at the commas outside brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            escaped = quote == '"' and (at - len(text[:at].rstrip("\\"))) % 2 == 1
            quote = "" if sign == quote and not escaped else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _value(text: str, where: str) -> Any:
    try:
        value = parse_value(text)
    except ValueError:
        raise ConfigError([f"--over {where!r}: {text!r} must be a TOML value or a bare word"]) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError([f"--over {where!r}: {text!r} must be finite"])
    return value
