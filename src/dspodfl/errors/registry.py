"""Registries of named things that describe themselves: what they are, their parameters, and who makes them.

A maker is a function or a class. Its docstring's first line says what it is; each of its parameters is either part of
the *context* that the registry passes to every maker that takes it (the number of clients, a seed), or a *parameter*
that a user may set, annotated with its range and a `Doc`. The tables of the configuration, the template, the pages of
docs and ``dspodfl list`` are made from this.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar

from annotated_types import Ge, Gt, Le, Lt

from dspodfl.errors.base import InputError, nearest

WORD = 2**32
"""Clients, iterations and positions are words of an address: every count is below this."""
SMALLEST, LARGEST = 1e-30, 1e30
"""Of any number: beyond them products overflow or vanish, and nothing that is measured is that small or large."""
LEAST = 2.0**-32
"""The smallest probability of which a word of 32 bits makes an event."""
Positive = Annotated[float, Ge(SMALLEST), Le(LARGEST)]
"""A number above 0."""
NonNegative = Annotated[float, Ge(0), Le(LARGEST)]
"""A number of at least 0."""
Real = Annotated[float, Ge(-LARGEST), Le(LARGEST)]
"""A finite number."""
Probability = Annotated[float, Gt(0), Le(1)]
"""A number in (0, 1]."""
EventProbability = Annotated[float, Ge(LEAST), Le(1)]
"""A probability of which a word of 32 bits makes an event: nothing with a smaller one would ever happen."""
Size = Annotated[int, Ge(1), Le(2**27)]
"""Numbers that are drawn at one address, two words each: samples of a set, features of a sample."""
Count = Annotated[int, Ge(1), Lt(WORD)]
"""An integer of at least 1."""
Seed = Annotated[int, Ge(0), Lt(2**63)]
"""A seed: an integer of at least 0."""

T = TypeVar("T")
REQUIRED: Any = inspect.Parameter.empty
"""The default of a parameter that has none."""


@dataclass(frozen=True)
class Doc:
    """What a parameter means, and an example where it has no default."""

    text: str
    example: Any = None


@dataclass(frozen=True)
class Parameter:
    """A parameter that a user may set: its type with its range, its default (`REQUIRED`: none) and its meaning."""

    name: str
    type: Any
    default: Any
    doc: Doc


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One thing of a registry.

    Attributes:
        name: what a user calls it.
        maker: the function or class that makes it.
        line: what it is, in one line.
        context: the names of the arguments that every maker may take.
        facts: what else was registered of it.
    """

    name: str
    maker: Callable[..., T]
    line: str
    context: frozenset[str]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.maker).parameters

    def takes(self, name: str) -> bool:
        """Return whether the maker takes a part of the context."""
        return name in self._signature

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a user may set, in the order of the maker."""
        where = self.maker.__init__ if isinstance(self.maker, type) else self.maker  # type: ignore[misc]
        hints = typing.get_type_hints(where, include_extras=True)
        if isinstance(self.maker, type):
            hints = typing.get_type_hints(self.maker, include_extras=True) | hints
        found = []
        for name, given in self._signature.items():
            if name in self.context:
                continue
            metadata = getattr(hints[name], "__metadata__", ())
            doc = next((one for one in metadata if isinstance(one, Doc)), None)
            if doc is None:
                raise TypeError(f"{self.name}: parameter {name} has no Doc: Annotated[type, Doc('what it means')]")
            rest = [one for one in metadata if not isinstance(one, Doc)]
            kind = hints[name].__origin__
            for one in rest:
                kind = Annotated[kind, one]
            found.append(Parameter(name, kind, given.default, doc))
        return tuple(found)

    def make(self, context: Mapping[str, Any], parameters: Mapping[str, Any]) -> T:
        """Call the maker with what it takes of the context, and with the parameters."""
        given = {name: value for name, value in context.items() if self.takes(name)}
        return self.maker(**given, **parameters)


class Registry(Mapping[str, Entry[T]]):
    """Named entries in the order in which they were registered.

    Args:
        field: the key of the configuration that names one, for errors.
        context: names of arguments that makers are given where they take them; all others are parameters.

    >>> FRUIT = Registry("bowl.fruit", context=["count"])
    >>> @FRUIT.register()
    ... def apple(count: int, sweet: Annotated[float, Doc("how sweet")] = 0.5) -> str:
    ...     '''Round and red.'''
    ...     return f"{count} apples, {sweet}"
    >>> FRUIT["apple"].line, [one.name for one in FRUIT["apple"].parameters]
    ('Round and red.', ['sweet'])
    >>> FRUIT["apple"].make({"count": 3}, {"sweet": 0.9})
    '3 apples, 0.9'
    >>> FRUIT["aple"]
    Traceback (most recent call last):
    dspodfl.errors.base.InputError: bowl.fruit = 'aple': must be one of apple; did you mean 'apple'?
    """

    def __init__(self, field: str, context: typing.Iterable[str] = ()) -> None:
        self.field, self.context = field, frozenset(context)
        self._entries: dict[str, Entry[T]] = {}

    def register(
        self, name: str | None = None, *, line: str | None = None, **facts: Any
    ) -> Callable[[Callable[..., Any]], Any]:
        """Register a maker.

        Args:
            name: what users call it; the name of the maker if None.
            line: what it is; the first line of its docstring if None.
            **facts: what else is to be known of it; each registry says which.

        Returns:
            A decorator that returns the maker as it is.
        """

        def add(maker: Callable[..., Any]) -> Callable[..., Any]:
            known = name or maker.__name__
            if known in self._entries:
                raise ValueError(f"{self.field}: {known!r} is registered twice")
            about = line or inspect.cleandoc(maker.__doc__ or "").partition("\n")[0]
            if not about:
                raise ValueError(f"{self.field}: {known!r} has no docstring to say what it is")
            self._entries[known] = Entry(known, maker, about, self.context, facts)
            return maker

        return add

    def __getitem__(self, name: str) -> Entry[T]:
        if name not in self._entries:
            raise InputError(self.field, name, f"one of {', '.join(self)}{nearest(name, self)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def lines(self) -> dict[str, str]:
        """Return what each is, by name."""
        return {name: entry.line for name, entry in self._entries.items()}
