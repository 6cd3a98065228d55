"""Tables of the configuration made from registries: one table for each entry, its keys those that the entry names."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BeforeValidator, Field, create_model
from pydantic.fields import FieldInfo

from dspodfl.config.base import Table, as_list
from dspodfl.errors import REQUIRED, Parameter, Registry

T = TypeVar("T", bound=Table)


def tables(
    registry: Registry[Any],
    base: type[T],
    tag: str,
    about: FieldInfo,
    *,
    default: str,
    suffix: str = "",
    types: Mapping[Any, Any] | None = None,
) -> dict[str, type[T]]:
    """Make a table of the configuration for each entry of a registry.

    Args:
        registry: the entries.
        base: what all tables have besides their own keys.
        tag: the key that says which one a table is: kind, law or name.
        about: what that key means.
        default: the entry that a table is where it does not say.
        suffix: what the names of the classes end with.
        types: what a key holds in place of a type of a parameter, by that type.

    Returns:
        The tables by the name of their entry, in the order of the registry.
    """
    made = {}
    for name, entry in registry.items():
        fields: dict[str, Any] = {tag: (Annotated[Literal[name], about], name if name == default else ...)}
        fields |= {one.name: _field(one, types or {}) for one in entry.parameters}
        title = "".join(word.capitalize() for word in name.replace("-", "_").split("_")) + suffix
        made[name] = create_model(title, __base__=base, __doc__=entry.line, __module__=base.__module__, **fields)
    return made


def _field(parameter: Parameter, types: Mapping[Any, Any]) -> tuple[Any, Any]:
    kind = _from_tuples(parameter.type, types)
    example = [] if parameter.doc.example is None else [parameter.doc.example]
    default = ... if parameter.default is REQUIRED else parameter.default
    return kind, Field(default, description=parameter.doc.text, examples=example or None)


def _from_tuples(kind: Any, types: Mapping[Any, Any]) -> Any:
    """Return a type whose lists, or lists or None, can be given as tuples as well."""
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        kind = _from_tuples(inner, types)
        for one in metadata:
            kind = Annotated[kind, one]
        return kind
    if kind in types:
        return Annotated[types[kind], BeforeValidator(as_list)]
    if get_origin(kind) is list:
        return Annotated[kind, BeforeValidator(as_list)]
    if get_origin(kind) in (Union, UnionType):
        return Union[tuple(_from_tuples(one, types) for one in get_args(kind))]  # noqa: UP007
    return kind


def one_of(tag: str, *alternatives: type[Table]) -> Any:
    """Return the type of a key that holds one of several tables, distinguished by a tag."""
    return Annotated[Union[alternatives], Field(discriminator=tag)]  # noqa: UP007
