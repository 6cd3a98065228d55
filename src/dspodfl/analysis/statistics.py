"""Spread over seeds, paired differences, and the interval that decides whether one algorithm is ahead of another.

Algorithms of a study share the graph, the rates, the data and the draws of a seed. What differs between them is read
seed by seed, and the spread that seeds have in common falls out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

LEVEL = 0.95
"""The confidence of every interval."""
_SAME = 1e-12
"""Relative differences below this are rounding: the two are equal."""
K = TypeVar("K", bound=Hashable)

Side = Literal["ahead", "behind", "undecided"]
"""What the 95% interval of a paired difference decides."""


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, and how sure it is.

    ``half`` is half the width of the 95% t interval; None where there is one pair or none, which have no interval.
    """

    pairs: int
    mean: float
    half: float | None
    wins: int
    ties: int

    @property
    def low(self) -> float | None:
        """The lower end of the interval."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """The upper end of the interval."""
        return None if self.half is None else self.mean + self.half

    @property
    def side(self) -> Side:
        """Which side of zero the whole interval is on."""
        if self.low is None or self.high is None:
            return "undecided"
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "undecided"


def difference(values: Iterable[float]) -> Difference:
    """Return the mean of differences with its 95% t interval; values that are not finite are left out.

    >>> found = difference([0.01, 0.03, 0.02])
    >>> found.pairs, round(found.mean, 3), round(found.half, 4), found.side
    (3, 0.02, 0.0248, 'undecided')
    """
    known = np.array([value for value in values if np.isfinite(value)], dtype=np.float64)
    count = len(known)
    if not count:
        return Difference(0, float("nan"), None, 0, 0)
    half = None
    if count > 1:
        quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
        half = quantile * float(known.std(ddof=1)) / float(np.sqrt(count))
    return Difference(count, float(known.mean()), half, int((known > 0).sum()), int((known == 0).sum()))


def compare(ours: Mapping[K, float], theirs: Mapping[K, float], *, lower_is_better: bool = False) -> Difference:
    """Compare two algorithms over the seeds that both have a finite value for; positive where ours is better.

    >>> compare({0: 0.6, 1: 0.7, 2: 0.8}, {0: 0.5, 1: 0.6}).wins
    2
    """
    both = [key for key in ours if key in theirs]
    pairs = [(ours[key], theirs[key]) for key in both]
    return difference(_less(b, a) if lower_is_better else _less(a, b) for a, b in pairs)


def _less(a: float, b: float) -> float:
    """Return a − b, and 0 where that is rounding alone."""
    gap = a - b
    return 0.0 if np.isfinite(gap) and abs(gap) <= _SAME * max(abs(a), abs(b)) else gap


def deviation(values: np.ndarray) -> float | None:
    """Return the standard deviation over seeds (ddof 1); None for fewer than two.

    >>> deviation(np.array([1.0, 3.0]))
    1.4142135623730951
    """
    if len(values) < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        found = float(values.std(ddof=1))
    return found if np.isfinite(found) else None


def spread(values: ArrayLike) -> dict[str, float | None]:
    """Return the mean and the standard deviation over seeds; NaN are left out.

    Returns:
        ``mean`` and ``std``: None where there is no value, where one is infinite, or where the mean overflows.

    >>> spread([1.0, 3.0, float("nan")])
    {'mean': 2.0, 'std': 1.4142135623730951}
    """
    given = np.asarray(values, dtype=np.float64)
    known = given[~np.isnan(given)]
    if not len(known) or not np.isfinite(known).all():
        return {"mean": None, "std": None}
    with np.errstate(over="ignore"):
        mean = float(known.mean())
    return {"mean": mean if np.isfinite(mean) else None, "std": deviation(known)}


def quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """Return the quartiles and the mean of values where missing ones are infinite; None where the result is infinite.

    >>> quantiles([1.0, 2.0, float("nan")])
    {'median': 2.0, 'quartile1': 1.5, 'quartile3': None, 'mean': None}
    """
    ordered = sorted(float("inf") if v is None or np.isnan(v) else float(v) for v in values)
    out: dict[str, float | None] = {}
    for name, q in (("median", 0.5), ("quartile1", 0.25), ("quartile3", 0.75)):
        at = q * (len(ordered) - 1)
        low, high = ordered[int(np.floor(at))], ordered[int(np.ceil(at))]
        value = low if low == high else low + (high - low) * (at % 1)
        out[name] = value if np.isfinite(value) else None
    finite = [v for v in ordered if np.isfinite(v)]
    out["mean"] = float(np.mean(finite)) if len(finite) == len(ordered) and ordered else None
    return out


@dataclass(frozen=True)
class Reached:
    """What a run spent until it reached a target, or until it ended without reaching it (censored)."""

    cost: float
    reached: bool


@dataclass(frozen=True)
class Sooner:
    """Paired costs to a target: ``ahead`` is the side that spends less."""

    side: Side
    wins: int
    losses: int
    open: int
    """Seeds in which the runs ended too early to decide which was sooner."""


def compare_costs(ours: Mapping[K, Reached], theirs: Mapping[K, Reached]) -> Sooner:
    """Compare costs to a target over the seeds of both, where runs may have ended before they reached it.

    The logarithm of theirs over ours is known, or known to be at least or at most a number, seed by seed. One side is
    sooner where the 95% t interval of the bounds on its side is beyond zero; where a bound is infinite, where a sign
    test over the seeds whose order is known says so (95%).

    Args:
        ours: Seed -> cost.
        theirs: Seed -> cost.
    """
    least, most = [], []
    for key in (key for key in ours if key in theirs):
        low, high = _log_ratio(ours[key], theirs[key])
        least.append(low)
        most.append(high)
    wins, losses = sum(low > 0 for low in least), sum(high < 0 for high in most)
    ties = sum(low == high == 0 for low, high in zip(least, most, strict=True))
    side: Side = "undecided"
    if len(least) > 1 and np.isfinite(least).all() and difference(least).side == "ahead":
        side = "ahead"
    elif len(most) > 1 and np.isfinite(most).all() and difference(most).side == "behind":
        side = "behind"
    elif wins + losses > 1 and stats.binomtest(wins, wins + losses).pvalue < 1 - LEVEL:
        side = "ahead" if wins > losses else "behind"
    return Sooner(side, wins, losses, len(least) - wins - losses - ties)


def _log_ratio(ours: Reached, theirs: Reached) -> tuple[float, float]:
    """Return the least and the largest that log(theirs / ours) can be."""
    if ours.cost == theirs.cost and ours.reached and theirs.reached:
        return 0.0, 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(np.log(np.float64(theirs.cost)) - np.log(np.float64(ours.cost)))
    ratio = 0.0 if np.isnan(ratio) else ratio
    return ratio if ours.reached else -np.inf, ratio if theirs.reached else np.inf
