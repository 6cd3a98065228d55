"""What every table of the configuration is made of."""

from __future__ import annotations

from datetime import date, time
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from dspodfl.config.reference import with_keys
from dspodfl.errors import (
    LARGEST,
    LEAST,
    SMALLEST,
    WORD,
    ConfigError,
    Count,
    EventProbability,
    NonNegative,
    Positive,
    Probability,
    Real,
    Seed,
    Size,
    shown,
)

__all__ = [
    "LARGEST",
    "LEAST",
    "SMALLEST",
    "WORD",
    "Count",
    "EventProbability",
    "NonNegative",
    "Positive",
    "Probability",
    "Real",
    "Seed",
    "Size",
    "Table",
    "as_list",
    "refuse",
]


class Table(BaseModel):
    """A table of the configuration: unknown keys are errors, values are of the type they look like."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        """Refuse to change a table: its values were validated together."""
        advice = 'make another: Config(**config.model_dump() | {"seeds": 5})'
        raise ConfigError([f"{name} = {shown(value)}: a configuration cannot be changed; {advice}"])

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Let ``help()`` of a table show its keys."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.__doc__ = with_keys(cls)


def as_list(value: Any) -> Any:
    """Tuples, which Python users write, are lists as well."""
    return list(value) if isinstance(value, tuple) else value


def is_toml(value: Any) -> bool:
    """Return whether TOML can write a value."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_toml(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_toml, value))
    return isinstance(value, str | int | float | date | time)


def refuse(field: str, value: object, allowed: str) -> NoReturn:
    """Raise an error that names its field, for rules that involve several keys."""
    raise PydanticCustomError("refused", "must be {allowed}", {"field": field, "value": value, "allowed": allowed})
