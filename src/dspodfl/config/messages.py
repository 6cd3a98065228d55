"""Validation errors in the user's terms: which field, which value, what is allowed."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from dspodfl.config import schema
from dspodfl.config.algorithm import FORMS
from dspodfl.config.base import LEAST, SMALLEST
from dspodfl.config.hints import for_table, hint
from dspodfl.config.model import Factory
from dspodfl.config.reference import GIVEN_IN_PYTHON, TAGS, summary, tables_of, tag_key
from dspodfl.errors import nearest, shown

_ALLOWED = {
    "float_type": "a number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "finite_number": "a finite number",
    "too_short": "a list with at least {min_length} in it",
    "too_long": "a list with at most {max_length} in it",
}


_AT_LEAST = {SMALLEST: f"greater than 0 (at least {SMALLEST:g})", LEAST: "greater than 0 (at least 2⁻³² ≈ 2.3e-10)"}
"""The text for limits that only an attack meets."""
_MOST_PROBLEMS = 20
_LONGEST_KEY = 100


def explain(error: ValidationError, renamed: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Write one line for each field: ``graph.radius = -1: must be greater than 0``.

    Args:
        error: What pydantic found.
        renamed: Keys that were written otherwise, as version 0.1 called them: key -> key as it was written.

    Returns:
        The lines.
    """
    allowed: dict[str, tuple[str, list[str]]] = {}
    lines = []
    problems = error.errors(include_url=False)
    for problem in problems[:_MOST_PROBLEMS]:
        path, table = _locate(problem["loc"])
        path = renamed.get(path, path)
        kind, value, context = problem["type"], problem["input"], problem.get("ctx") or {}
        if kind == "extra_forbidden":
            lines.append(_unknown_key(path, table, value))
        elif kind == "missing":
            lines.append(f"{path}: missing; {_about(table, path)}")
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            lines.append(_wrong_tag(path, context, value))
        elif kind == "refused":
            lines.append(f"{context['field']} = {shown(context['value'])}: must be {context['allowed']}")
        else:
            plain = problem["msg"].removeprefix("Input should be ").removeprefix("a valid ")
            text = (
                _AT_LEAST.get(context.get("ge", 0))
                or _bound(kind, context)
                or _ALLOWED.get(kind, plain).format(**context)
            )
            if text == "a table":
                lines.append(_no_table(path, value))
                continue
            allowed.setdefault(path, (_short(value), []))[1].append(text)
    lines += [f"{path} = {value}: must be {' or '.join(texts)}" for path, (value, texts) in allowed.items()]
    more = max(len(problems) - _MOST_PROBLEMS, 0)
    return lines if more == 0 else [*lines, f"and {more:,} more like these"]


def _bound(kind: str, context: dict[str, Any]) -> str | None:
    """A limit as text, its number short."""
    for name, phrase, limit in (("greater_than_equal", "at least", "ge"), ("less_than_equal", "at most", "le")):
        if kind == name:
            number = context[limit]
            text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
            return f"{phrase} {text}"
    return None


def _short(value: object) -> str:
    return shown(value, 80)


def _locate(loc: tuple[int | str, ...]) -> tuple[str, type[BaseModel] | None]:
    """The path a user would write (without the tags of unions), and the table that the last key belongs to."""
    path, here, table = "", schema.Config, None
    annotation: Any = here
    for part in loc:
        models = tables_of(annotation)
        if part in FORMS and path.startswith("algorithms"):
            continue
        if isinstance(part, int):
            path += f"[{part}]"
            annotation = _item(annotation)
            continue
        tagged = [m for m in models if part in _tags(m)]
        if len(models) > 1 and tagged:
            annotation = tagged[0]
            continue
        if not models and path:  # a member of a union of plain types
            continue
        table = models[0] if models else None
        path += f".{_plain(part)}" if path else _plain(part)
        known = table.model_fields.get(str(part)) if table else None
        annotation = known.annotation if known else None
    return path or "config", table


def _plain(key: str) -> str:
    """A key as a line can show it."""
    text = key if key.isprintable() else ascii(key)[1:-1]
    return text if len(text) <= _LONGEST_KEY else text[: _LONGEST_KEY - 1] + "…"


def _item(annotation: Any) -> Any:
    if typing.get_origin(annotation) is list:
        return typing.get_args(annotation)[0]
    return next((_item(a) for a in typing.get_args(annotation) if _item(a) is not None), None)


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    """The names under which a union knows a table."""
    if model is Factory:
        return ("factory",)
    key = tag_key(model)
    return () if key is None else typing.get_args(model.model_fields[key].annotation)


def _unknown_key(path: str, table: type[BaseModel] | None, value: object) -> str:
    keys = list(table.model_fields) if table else []
    tag = _tags(table)[0] if table and _tags(table) else None
    of = f" (of {tag!r})" if tag else ""
    meant = hint(path, value, keys)
    replace = ""
    if tag and "did you mean" not in meant:
        where = path.rpartition(".")[0]
        replace = f"; to change the kind replace the whole table, e.g. --set '{where}={{ … }}'"
    clause = f"; {meant}" if meant else ""
    joined = "" if meant.endswith("?") else ";"
    name = path if len(path) <= 160 else path[:157] + "…"
    return f"{name} = {_short(value)}: unknown key{clause}{joined} allowed here{of}: {', '.join(keys)}{replace}"


def _wrong_tag(path: str, context: dict[str, Any], value: Any) -> str:
    key = {"_model_tag()": "name"}.get(context["discriminator"], context["discriminator"].strip("'"))
    if "expected_tags" not in context:
        return f"{path}.{key}: missing" if isinstance(value, dict) else _no_table(path, value)
    tags = [tag.strip("' ") for tag in context["expected_tags"].split(",")]
    given = context.get("tag", value)
    custom = " (or give model.factory)" if "factory" in tags else ""
    tags = [tag for tag in tags if tag not in ("factory", "custom")]  # no name to write, or Python's alone
    return f"{path}.{key} = {_short(given)}: must be one of {', '.join(tags)}{custom}{nearest(str(given), tags)}"


def _no_table(path: str, value: object) -> str:
    text = "a number or a table" if path == "train.learning_rate" else "a table"
    return f"{path} = {_short(value)}: must be {text}{for_table(path, value)}"


def _about(table: type[BaseModel] | None, path: str) -> str:
    known = table.model_fields.get(path.rpartition(".")[2]) if table else None
    return f"it belongs to {_tags(table)[0]!r}" if known and table and _tags(table) else "it has no default"


def catalogue(union: Any) -> dict[str, str]:
    """Describe the tables that a key can hold, in one line each.

    Args:
        union: The type of the key: a union of tables that are distinguished by a tag, as ``graph.Graph``.

    Returns:
        Tag -> the first line of the table's description, and the keys that only this table has.

    >>> from dspodfl.config import rates
    >>> catalogue(rates.Law)["beta"]
    'A Beta(a, b) distribution. (a, b)'
    """
    out = {}
    for table in tables_of(union):
        if _tags(table)[0] == GIVEN_IN_PYTHON:
            continue
        common = set().union(*(base.model_fields for base in table.__mro__[1:] if hasattr(base, "model_fields")))
        specific = [key for key in table.model_fields if key not in common and key not in TAGS]
        out[_tags(table)[0]] = summary(table) + (f" ({', '.join(specific)})" if specific else "")
    return out
