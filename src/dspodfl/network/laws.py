"""The laws of rates: distributions on [0, 1] that rates are drawn from, or the rates themselves.

To add a law, add a class here under ``@LAWS.register()``: its first docstring line is what users read, its fields are
its parameters, each annotated with its range and a `Doc`, and calling it maps uniforms to values. Configuration,
template, docs and ``dspodfl list`` follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
import scipy  # its submodules are imported where they are first used
from annotated_types import Len

from dspodfl.errors import Doc, InputError, NonNegative, Positive, Probability, Real, Registry
from dspodfl.network.graph import Graph


class Distribution(Protocol):
    """A distribution on [0, 1]: two independent uniforms (..., 2) -> values (...)."""

    def __call__(self, u: np.ndarray) -> np.ndarray: ...


LAWS: Registry[Any] = Registry("rates.law", context=("field", "graph"))
"""The laws of rates: makers of a `Distribution`, or of `FixedValues` where nothing is drawn. Context: ``field``, the
key of the configuration (``rates.sgd`` or ``rates.link``), and ``graph``, whose clients or links have the rates."""


@LAWS.register("beta")
@dataclass(frozen=True)
class Beta:
    """A Beta(a, b) distribution.

    a = b < 1 gives many very good and many very bad devices.
    """

    a: Annotated[Positive, Doc("the first shape parameter; small values push rates towards 0 and 1")] = 0.5
    b: Annotated[Positive, Doc("the second shape parameter")] = 0.5

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Values by inverse CDF."""
        return np.asarray(scipy.special.betaincinv(self.a, self.b, u[..., 0]))


@LAWS.register("uniform")
@dataclass(frozen=True)
class Uniform:
    """Uniform on (0, 1].

    1 − u with u in [0, 1).
    """

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Values by inverse CDF."""
        return np.asarray(1.0 - u[..., 0])


def _truncated_normal(mean: float, std: float, u: np.ndarray) -> np.ndarray:
    from scipy.stats import truncnorm  # slow to import, and rarely needed

    return np.asarray(truncnorm.ppf(u, -mean / std, (1.0 - mean) / std, loc=mean, scale=std))


@LAWS.register("truncnorm")
@dataclass(frozen=True)
class TruncatedNormal:
    """A normal distribution truncated to [0, 1]."""

    mean: Annotated[Real, Doc("the mean of the normal before it is truncated", example=0.5)]
    std: Annotated[Positive, Doc("its standard deviation before it is truncated", example=0.2)]

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Values by inverse CDF."""
        return _truncated_normal(self.mean, self.std, u[..., 0])


@LAWS.register("bimodal")
@dataclass(frozen=True)
class Bimodal:
    """An equal mixture of two normals truncated to [0, 1].

    The second uniform picks the component.
    """

    mean1: Annotated[Real, Doc("the mean of the first normal before it is truncated", example=0.1)]
    std1: Annotated[Positive, Doc("the standard deviation of the first", example=0.1)]
    mean2: Annotated[Real, Doc("the mean of the second normal before it is truncated", example=0.9)]
    std2: Annotated[Positive, Doc("the standard deviation of the second", example=0.1)]

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Values by inverse CDF within the component."""
        one = _truncated_normal(self.mean1, self.std1, u[..., 0])
        two = _truncated_normal(self.mean2, self.std2, u[..., 0])
        return np.where(u[..., 1] < 0.5, one, two)


@dataclass(frozen=True)
class FixedValues:
    """Values given outright: one for all, or one for each client or link, in order. Never drawn or clipped."""

    values: float | Sequence[float]
    field: str = "rates"

    def expand(self, count: int, what: str) -> np.ndarray:
        """Return the values as an array of shape (count,); any outside (0, 1] is an error."""
        values = np.asarray(self.values, dtype=np.float64)
        if values.ndim and len(values) != count:
            raise InputError(self.field, f"{len(values)} values", f"one value for each of the {count} {what}")
        wrong = values[~((values > 0) & (values <= 1))] if values.ndim else values[None][~(0 < values <= 1)]
        if wrong.size:
            raise InputError(self.field, float(wrong.flat[0]), "in (0, 1]")
        return np.broadcast_to(values, (count,)).copy()


@LAWS.register()
def constant(field: str, value: Annotated[Probability, Doc("the rate of all, in (0, 1]", example=0.5)]) -> FixedValues:
    """One value for all."""
    return FixedValues(value, f"{field}.value")


@LAWS.register("list")
def listed(
    field: str,
    values: Annotated[
        list[Probability],
        Len(1),
        Doc("the rates, each in (0, 1]; used as they are, neither clipped nor redrawn", example=[1.0, 0.5, 0.25]),
    ],
) -> FixedValues:
    """One value per client, or per link in the order of (i, j), i < j."""
    return FixedValues(values, f"{field}.values")


@LAWS.register()
def csv(
    field: str,
    graph: Graph,
    file: Annotated[
        str, Doc("a file with the columns client,rate, or for links source,target,rate", example="rates.csv")
    ],
) -> FixedValues:
    """Rates from a CSV file."""
    from dspodfl.network.rates_io import read_rates

    return FixedValues(read_rates(file, graph, field), f"{field}.file")


PerEntity = Positive | list[Positive]
"""One number for all, or one for each client or link."""


@LAWS.register()
def poisson(
    field: str,
    rate: Annotated[
        PerEntity, Doc("ticks of a clock in an iteration: one number, or one per client or link", example=0.5)
    ],
) -> FixedValues:
    """The probability 1 − exp(−rate) that a Poisson clock ticks within an iteration."""
    return FixedValues((-np.expm1(-np.asarray(rate, dtype=np.float64))).tolist(), f"{field}.rate")


@LAWS.register()
def deadline(
    field: str,
    deadline: Annotated[Positive, Doc("the time of an iteration", example=3.0)],
    shift: Annotated[
        NonNegative | list[NonNegative],
        Doc("the time that a job takes at least: one number, or one per client or link", example=1.0),
    ],
    rate: Annotated[
        PerEntity, Doc("1/rate comes on top on average: one number, or one per client or link", example=0.5)
    ],
) -> FixedValues:
    """The probability that a job of shift + Exp(rate) ends before a deadline, as of stragglers."""
    least, speed = np.asarray(shift, dtype=np.float64), np.asarray(rate, dtype=np.float64)
    if least.ndim and speed.ndim and len(least) != len(speed):
        raise InputError(f"{field}.rate", f"{len(speed)} values", f"as many as shift has, {len(least)}")
    if not (deadline > least).all():
        raise InputError(f"{field}.deadline", deadline, f"above {least.max():g}, the largest shift: no job would end")
    return FixedValues((-np.expm1(-speed * (deadline - least))).tolist(), f"{field}.rate")


@LAWS.register()
def capacities(
    field: str,
    graph: Graph,
    file: Annotated[str, Doc("a file with the columns client,compute,bandwidth", example="capacities.csv")],
    reference: Annotated[
        Positive | None,
        Doc("the capacity whose rate is 1, as that of any larger one; the largest in the file if absent"),
    ] = None,
) -> FixedValues:
    """Capacities from a CSV file, as shares of a reference.

    A client has its compute; a link has the lesser bandwidth of its two ends, or that of the client at a server.
    """
    from dspodfl.network.traces_io import read_capacities

    compute, bandwidth = read_capacities(file, graph, f"{field}.file").T
    bandwidth = np.append(bandwidth, np.inf) if graph.server else bandwidth
    links = field.endswith("link")
    capacity = bandwidth[graph.edges].min(axis=1) if links else compute
    whole = reference or float((bandwidth[: graph.clients] if links else compute).max())
    return FixedValues(np.minimum(capacity / whole, 1.0).tolist(), f"{field}.file")
