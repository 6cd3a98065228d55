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
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspodfl._version import __version__
from dspodfl.config import FREE, Config
from dspodfl.errors import ConfigError

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
    def of(name: str, values: Sequence[Value], keys: Sequence[str] | None = None) -> Axis:
        """Every key gets the value; without keys, the name is the key.

        >>> Axis.of("train.learning_rate.value", [0.1, 0.2]).points[1].changes
        {'train.learning_rate.value': 0.2}
        """
        return Axis(name, tuple(Point(value, dict.fromkeys(keys or [name], value)) for value in values))

    @staticmethod
    def parse(text: str) -> Axis:
        """From ``table.key=value,value``, TOML values or bare words.

        >>> [point.value for point in Axis.parse("graph.kind=ring,complete").points]
        ['ring', 'complete']
        """
        key, equals, values = text.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ConfigError([f"--over {text!r}: must be table.key=value,value,…"])
        found = [_value(part.strip(), text) for part in _split(values)]
        names = [str(value) for value in found]
        if len(set(names)) < len(names):
            raise ConfigError([f"--over {text!r}: must name every value once"])
        return Axis.of(key.strip(), found)


@dataclass(frozen=True)
class Cell:
    """One configuration of a grid."""

    point: Mapping[str, Value]
    config: Config

    @property
    def digest(self) -> str:
        """A name for what the cell computes: equal for equal configurations of one version."""
        content = self.config.model_dump(exclude=set(FREE))
        if content["train"]["until_delay"] is None:  # newer than cells that are finished
            del content["train"]["until_delay"]
        for key in ("samples", "clients"):
            if not content["eval"][key]:
                del content["eval"][key]
        text = json.dumps([__version__, content], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """The point in words."""
        return ", ".join(f"{name} = {value}" for name, value in self.point.items()) or "the only cell"


def cells(base: Mapping[str, Any], axes: Sequence[Axis]) -> list[Cell]:
    """All combinations of the points of the axes, the last axis fastest."""
    names = [axis.name for axis in axes]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError([f"--over {twice[0]}: must be varied once"])
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


def assign(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set ``table.key`` in nested tables, which are made where there are none."""
    *tables, last = key.split(".")
    table = raw
    for part in tables:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError([f"{key}: {part} is a value, not a table"])
    table[last] = value


def _split(text: str) -> list[str]:
    """At the commas that stand outside brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
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
        found = tomllib.loads(f"value = {text}")
    except ValueError:
        found = {"value": text} if text and not set(text) & set(" \t\n\"'[]{}=#") else {}
    if list(found) != ["value"]:
        raise ConfigError([f"--over {where!r}: {text!r} must be a TOML value or a bare word"])
    value = found["value"]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError([f"--over {where!r}: {text!r} must be finite"])
    return value
