"""The table ``[rates]`` and its laws."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dspodfl.config.tables import WORD, Chance, Positive, Probability, Real, Seed, Table, as_list


class BetaLaw(Table):
    """Beta(a, b)."""

    law: Literal["beta"] = "beta"
    a: Positive = 0.5
    b: Positive = 0.5


class UniformLaw(Table):
    """Uniform on (0, 1]."""

    law: Literal["uniform"]


class TruncnormLaw(Table):
    """Normal(mean, std²) of the parent, conditioned on [0, 1]."""

    law: Literal["truncnorm"]
    mean: Real
    std: Positive


class BimodalLaw(Table):
    """Equal mixture of two truncated normals."""

    law: Literal["bimodal"]
    mean1: Real
    std1: Positive
    mean2: Real
    std2: Positive


class ConstantLaw(Table):
    """One value for all."""

    law: Literal["constant"]
    value: Probability


class ListLaw(Table):
    """One value a client, or a link in the order (i, j), i < j."""

    law: Literal["list"]
    values: Annotated[list[Probability], BeforeValidator(as_list), Field(min_length=1)]


class CsvLaw(Table):
    """A file with the columns ``client,rate``, or ``source,target,rate`` for links."""

    law: Literal["csv"]
    file: str


Law = Annotated[
    BetaLaw | UniformLaw | TruncnormLaw | BimodalLaw | ConstantLaw | ListLaw | CsvLaw, Field(discriminator="law")
]


class Rates(Table):
    """How often clients can compute and links can carry a model."""

    sgd: Law = BetaLaw()
    link: Law = BetaLaw()
    refresh: Annotated[int, Field(ge=0, lt=WORD)] = 0
    floor: Chance = 1e-6
    growth: Literal["none", "learning_rate"] = "none"
    link_draw: Literal["symmetric", "two_sided"] = "symmetric"
    seed: Seed | None = None
