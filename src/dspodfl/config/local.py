"""The table ``local`` of an algorithm: what its clients do with their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dspodfl.algorithms import local_table
from dspodfl.config.base import NonNegative, Positive, Table, refuse

Decaying = Annotated[float, Field(ge=0, lt=1)]
"""What is kept of a sum or a mean in a step: a number in [0, 1)."""


class AdamTable(Table):
    """Adam, with bias correction by the number of the client's own steps; with decay, it is AdamW."""

    beta1: Decaying = Field(0.9, description="what is kept of the mean of gradients in a step of the client")
    beta2: Decaying = Field(0.999, description="what is kept of the mean of their squares")
    epsilon: Positive = Field(1e-8, description="added to the root of the mean of squares")


def _on(value: Any) -> Any:
    """Write ``true`` as the table of the defaults."""
    if value is not None and value is not True and not isinstance(value, Mapping | AdamTable):
        refuse("algorithms.local.adam", value, "true, or a table with beta1, beta2 or epsilon")
    return {} if value is True else value


class LocalTable(Table):
    """What clients do with their gradients; applied in the order of these keys."""

    clip: Positive | None = Field(None, description="the largest norm c of a client's gradient: g·min(1, c/‖g‖)")
    proximal: NonNegative | None = Field(
        None, description="λ, adds λ(θ − a), where a is the client's model after its last exchange (FedProx)"
    )
    momentum: Decaying | None = Field(None, description="β: steps along m ← βm + g; not with nesterov or adam")
    nesterov: Decaying | None = Field(None, description="β: steps along g + βm; not with momentum or adam")
    adam: Annotated[AdamTable | None, BeforeValidator(_on)] = Field(
        None, description="true, or a table with beta1, beta2 and epsilon; not with momentum or nesterov"
    )
    decay: NonNegative | None = Field(None, description="λ: a step shrinks the model by αλθ, apart from the gradient")

    @model_validator(mode="after")
    def _one(self) -> LocalTable:
        given = [key for key in local_table.ACCELERATED if getattr(self, key) is not None]
        if len(given) > 1:
            value = getattr(self, given[1])
            value = value.model_dump() if isinstance(value, AdamTable) else value
            refuse(f"algorithms.local.{given[1]}", value, f"left out: there is {given[0]}")
        return self

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not given."""
        return {key: value for key, value in handler(self).items() if value is not None}
