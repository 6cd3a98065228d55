"""The keys of the configuration as data: name, default, alternatives and meaning, read from the schema.

The schema is the one source. The template of ``dspodfl init``, the tables of docs/configuration.md, ``help(Config)``
and the hints in error messages are all made from what this module reads there.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

TAGS = ("kind", "law", "name")
"""The keys that name the alternative of a union."""
GIVEN_IN_PYTHON = "custom"
"""The alternative of graphs and data that cannot be written in a file."""
_KEYS = "\n\nKeys:\n"


@dataclass(frozen=True)
class Key:
    """One key of a table.

    ``default`` is None where there is none, or where the key is left out unless given; ``tables`` are the tables that
    it can hold, empty where its value is plain; ``choices`` are the words that it can be, empty where any will do.
    """

    name: str
    default: Any
    description: str
    example: Any
    tables: tuple[type[BaseModel], ...]
    choices: tuple[str, ...]


def keys(table: type[BaseModel]) -> list[Key]:
    """List the keys of a table in the order of the schema, without the tag that names the alternative."""
    chosen = tag_key(table)
    return [_key(name, field) for name, field in table.model_fields.items() if name != chosen]


def _key(name: str, field: FieldInfo) -> Key:
    default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        default = default.model_dump(exclude_none=True)
    example = field.examples[0] if field.examples and default in (None, {}, []) else default
    held, choices = tuple(tables_of(field.annotation)), _choices(field.annotation)
    if example is None and held:  # a table that is left out unless given
        example = example_of(held[0])
    return Key(name, default, field.description or "", example, held, choices)


def tables_of(annotation: Any) -> list[type[BaseModel]]:
    """List the tables that a key can hold; those inside a list are not among them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) is list:
        return []
    return [table for argument in typing.get_args(annotation) for table in tables_of(argument)]


def _choices(annotation: Any) -> tuple[str, ...]:
    if typing.get_origin(annotation) is Literal:
        return tuple(str(value) for value in typing.get_args(annotation))
    members = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    return _choices(members[0]) if len(members) == 1 and typing.get_origin(annotation) is not list else ()


def tag_key(table: type[BaseModel]) -> str | None:
    """Return the tag of a table, the key that names its alternative: kind, law or name."""
    for key in TAGS:
        field = table.model_fields.get(key)
        if field is not None and typing.get_origin(field.annotation) is Literal:
            return key
    return None


def tag(table: type[BaseModel]) -> str | None:
    """Return the name of the alternative that a table is, e.g. ``ring``; None where it has no tag."""
    key = tag_key(table)
    return None if key is None else typing.get_args(table.model_fields[key].annotation)[0]


def writable(tables: tuple[type[BaseModel], ...]) -> list[type[BaseModel]]:
    """List the alternatives that can be written in a file."""
    return [table for table in tables if tag(table) != GIVEN_IN_PYTHON]


def summary(table: type[BaseModel]) -> str:
    """Give the first line of a table's description."""
    return (table.__doc__ or "").strip().splitlines()[0].replace("``", "")


def example_of(table: type[BaseModel], *, own: set[str] | None = None) -> dict[str, Any]:
    """Write a table out as an example: its tag, and its keys with their defaults or examples.

    Args:
        table: an alternative of a union.
        own: the keys to show; all that have a value if None.
    """
    out: dict[str, Any] = {}
    key, word = tag_key(table), tag(table)
    if key is not None:
        out[key] = word
    required = {name for name, field in table.model_fields.items() if field.is_required()}
    for found in keys(table):
        if found.example is None or (own is not None and found.name not in own):
            continue
        if found.default is not None or found.name in required or not out:
            out[found.name] = found.example
    return _with_one_of(table, out)


def _with_one_of(table: type[BaseModel], out: dict[str, Any]) -> dict[str, Any]:
    """Add the first optional key that has an example, where a table needs one of several (``period`` or ``times``)."""
    try:
        table.model_validate(out)
    except ValueError:
        for found in keys(table):
            if found.name not in out and found.example is not None:
                return out | {found.name: found.example}
    return out


def with_keys(table: type[BaseModel]) -> str:
    """Give a table's docstring with a section that lists its keys."""
    plain = inspect.cleandoc(table.__doc__ or "").partition(_KEYS)[0]
    if not table.model_fields:
        return plain
    return plain + _KEYS + "\n".join(_lines(table, "    "))


def without_keys(text: str) -> str:
    """Give the docstring of a table without the section that lists its keys."""
    return text.partition(_KEYS)[0]


def _lines(table: type[BaseModel], indent: str) -> Iterator[str]:
    chosen = tag_key(table)
    if chosen is not None:
        yield f"{indent}{chosen}: {tag(table)!r}"
    for key in keys(table):
        default = "" if key.default is None or key.tables else f" (default {key.default!r})"
        words = f" [{', '.join(key.choices)}]" if key.choices else ""
        yield f"{indent}{key.name}{default}: {key.description}{words}"
        inner = indent + "    "
        if len(key.tables) == 1 and tag_key(key.tables[0]) is None:
            yield from _lines(key.tables[0], inner)
            continue
        for held in writable(key.tables):
            names = ", ".join(k.name for k in keys(held))
            yield f"{inner}{tag(held) or 'otherwise'}: {summary(held)}" + (f" Keys: {names}." if names else "")
