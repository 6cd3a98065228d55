"""What every table of the configuration is made of."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from dspodfl.config.reference import with_keys


class Table(BaseModel):
    """A table of the configuration: unknown keys are errors, values are of the type they look like."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Let ``help()`` of a table show its keys."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.__doc__ = with_keys(cls)


def as_list(value: Any) -> Any:
    """Tuples, which Python users write, are lists as well."""
    return list(value) if isinstance(value, tuple) else value


def refuse(field: str, value: object, allowed: str) -> NoReturn:
    """An error that names its field, for what no single key can tell."""
    raise PydanticCustomError("refused", "must be {allowed}", {"field": field, "value": value, "allowed": allowed})


WORD = 2**32
"""Clients, iterations and positions are words of an address: every count is below this."""
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, lt=WORD)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
