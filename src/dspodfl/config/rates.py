"""The table ``[rates]`` and its laws."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dspodfl.config.base import WORD, Chance, Positive, Probability, Real, Seed, Table, as_list

LawName = Field(description="the law that the rates are drawn from, or how they are given")


class BetaLaw(Table):
    """A Beta(a, b) distribution."""

    law: Annotated[Literal["beta"], LawName] = "beta"
    a: Positive = Field(0.5, description="the first shape parameter; small values push rates towards 0 and 1")
    b: Positive = Field(0.5, description="the second shape parameter")


class UniformLaw(Table):
    """Uniform on (0, 1]."""

    law: Annotated[Literal["uniform"], LawName]


class TruncnormLaw(Table):
    """A normal distribution truncated to [0, 1]."""

    law: Annotated[Literal["truncnorm"], LawName]
    mean: Real = Field(description="the mean of the normal before it is truncated", examples=[0.5])
    std: Positive = Field(description="its standard deviation before it is truncated", examples=[0.2])


class BimodalLaw(Table):
    """An equal mixture of two normals truncated to [0, 1]."""

    law: Annotated[Literal["bimodal"], LawName]
    mean1: Real = Field(description="the mean of the first normal before it is truncated", examples=[0.1])
    std1: Positive = Field(description="the standard deviation of the first", examples=[0.1])
    mean2: Real = Field(description="the mean of the second normal before it is truncated", examples=[0.9])
    std2: Positive = Field(description="the standard deviation of the second", examples=[0.1])


class ConstantLaw(Table):
    """One value for all."""

    law: Annotated[Literal["constant"], LawName]
    value: Probability = Field(description="the rate of all, in (0, 1]", examples=[0.5])


class ListLaw(Table):
    """One value per client, or per link in the order of (i, j), i < j."""

    law: Annotated[Literal["list"], LawName]
    values: Annotated[list[Probability], BeforeValidator(as_list), Field(min_length=1)] = Field(
        description="the rates, each in (0, 1]; used as they are, neither clipped nor redrawn",
        examples=[[1.0, 0.5, 0.25]],
    )


class CsvLaw(Table):
    """Rates from a CSV file."""

    law: Annotated[Literal["csv"], LawName]
    file: str = Field(
        description="a file with the columns client,rate, or for links source,target,rate", examples=["rates.csv"]
    )


Law = Annotated[
    BetaLaw | UniformLaw | TruncnormLaw | BimodalLaw | ConstantLaw | ListLaw | CsvLaw, Field(discriminator="law")
]


class Rates(Table):
    """How often clients can compute and links can carry a model."""

    sgd: Law = Field(BetaLaw(), description="the law of d_i, the rate at which client i can compute an SGD step")
    link: Law = Field(BetaLaw(), description="the law of b_ij, the rate at which link (i, j) can carry models")
    refresh: Annotated[int, Field(ge=0, lt=WORD)] = Field(
        0, description="N > 0: both are drawn again every N iterations; 0: once"
    )
    floor: Chance = Field(1e-6, description="drawn rates are clipped to [floor, 1]; summary.json counts them")
    growth: Literal["none", "learning_rate"] = Field(
        "none", description="learning_rate: d_i(k) = 1 − (1 − d_i) α(k)/α(0), which grows as the learning rate falls"
    )
    link_draw: Literal["symmetric", "two_sided"] = Field(
        "symmetric",
        description="symmetric: one draw per link and iteration; two_sided: both ends draw, so that a link fires with "
        "probability 1 − (1 − b)² (to explain printed delay tables of the paper)",
    )
    seed: Seed | None = Field(
        None, description="draw the rates with this seed for all seeds of the study", examples=[1]
    )
