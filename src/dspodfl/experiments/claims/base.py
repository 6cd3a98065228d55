"""What a claim check is, the registry of the kinds there are, and the words that all of them use.

A kind is a function of a `Check` and the `Evidence` that is registered under its name. Every module of this package is
imported when the kinds are looked up, so that a new kind is one new file:

    @claim_kind("never_below")
    def never_below(check: Check, evidence: Evidence) -> ClaimCheck: ...
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from dspodfl.analysis import Difference, Side, formatting
from dspodfl.analysis import statistics as paired
from dspodfl.analysis.figures import NAMES
from dspodfl.errors import InputError, nearest
from dspodfl.experiments.definition import Check
from dspodfl.experiments.evidence import Evidence

Status = Literal["holds", "holds in part", "does not hold", "cannot be told"]
"""What the check of a claim finds."""

MOST, SOME = 0.8, 0.4
"""A claim about many comparisons holds where it does in this share of those that are decided, and in part in that."""
ENOUGH = 0.5
"""The share of comparisons that must be decided for a claim about all of them to be."""


@dataclass(frozen=True)
class ClaimCheck:
    """The result of checking one claim.

    Attributes:
        status: Whether the claim holds.
        sentence: The numbers that decide it, in a sentence.
        kind: The kind of the check, one of `kinds`.

    >>> ClaimCheck("holds", "It is best at 3 of 3 points.", "best").record()
    {'word': 'holds', 'sentence': 'It is best at 3 of 3 points.', 'check': 'best'}
    """

    status: Status
    sentence: str
    kind: str

    def record(self) -> dict[str, str]:
        """Return it as plain values under the keys of result.json."""
        return {"word": self.status, "sentence": self.sentence, "check": self.kind}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> ClaimCheck:
        """Read what `record` returns.

        Args:
            record: The keys ``word`` (the status), ``sentence`` and ``check`` (the kind).

        Returns:
            The check.

        Raises:
            KeyError: A key is missing.
            ValueError: There is a key more.

        >>> ClaimCheck.from_record({"word": "holds", "sentence": "It is best.", "check": "best"}).status
        'holds'
        """
        status, sentence, kind = record["word"], record["sentence"], record["check"]
        if len(record) > 3:
            raise ValueError(f"a claim check has no key {next(iter(set(record) - {'word', 'sentence', 'check'}))!r}")
        return ClaimCheck(status, sentence, kind)


# --- the registry ---------------------------------------------------------------------------------------------

ClaimKind = Callable[[Check, Evidence], ClaimCheck]
_KINDS: dict[str, ClaimKind] = {}


def claim_kind(*names: str) -> Callable[[ClaimKind], ClaimKind]:
    """Register a function that checks a kind of claim.

    Args:
        names: The names that ``[[check]] kind`` of an experiment file selects it by.

    Returns:
        A decorator, which returns the function as it is.

    Raises:
        ValueError: A name is registered already.
    """

    def register(function: ClaimKind) -> ClaimKind:
        for name in names:
            if _KINDS.setdefault(name, function) is not function:
                raise ValueError(f"claim kind {name!r}: must be registered once")
        return function

    return register


def kinds() -> dict[str, ClaimKind]:
    """Return the kinds of claim checks.

    Returns:
        The functions that check a claim, by the name of their kind, sorted.

    >>> list(kinds())[:4]
    ['ahead', 'best', 'exact', 'falls']
    """
    _import_kinds()
    return dict(sorted(_KINDS.items()))


@cache
def _import_kinds() -> None:
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{found.name}")


def check_kinds(checks: Sequence[Check]) -> None:
    """Refuse checks of a kind that is not registered.

    Args:
        checks: The checks of an experiment.

    Raises:
        InputError: Names the first such kind, and the one that is spelled most like it.
    """
    known = kinds()
    for check in checks:
        if check.kind not in known:
            hint = nearest(check.kind, known)
            raise InputError("check.kind", check.kind, f"one of {', '.join(known)}{hint}")


def check_claims(evidence: Evidence) -> list[ClaimCheck]:
    """Check every claim of an experiment.

    Args:
        evidence: Rows, aggregates and the experiment itself.

    Returns:
        A result for each of its checks, in their order.

    Raises:
        InputError: A check is of a kind that is not registered.
    """
    checks = evidence.experiment.check
    check_kinds(checks)
    known = kinds()
    return [known[check.kind](check, evidence) for check in checks]


def overall(checks: Sequence[ClaimCheck]) -> Status:
    """Return one status for several claim checks. What cannot be told counts for nothing.

    Args:
        checks: The checks.

    Returns:
        The status that all decided checks share, else ``holds in part``; ``cannot be told`` where none is decided.

    >>> overall([ClaimCheck("holds", "", "best"), ClaimCheck("cannot be told", "", "flat")])
    'holds'
    >>> overall([ClaimCheck("holds", "", "best"), ClaimCheck("does not hold", "", "flat")])
    'holds in part'
    """
    return combined([check.status for check in checks])


def combined(statuses: Sequence[Status]) -> Status:
    """Return what all statuses that are decided agree on, or "holds in part"."""
    decided = {status for status in statuses if status != "cannot be told"}
    if not decided:
        return "cannot be told"
    return decided.pop() if len(decided) == 1 else "holds in part"


# --- words ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """Comparisons that were won, lost, and not decided; where they were lost and not decided."""

    won: int
    lost: list[str]
    open: list[str]

    @property
    def total(self) -> int:
        """The number of comparisons."""
        return self.won + len(self.lost) + len(self.open)

    def status(self, most: float = MOST) -> Status:
        """Decide by the share of what is decided, where enough is."""
        decided = self.won + len(self.lost)
        if not decided or decided < ENOUGH * self.total:
            return "cannot be told"
        share = self.won / decided
        return "holds" if share >= most else "holds in part" if share >= SOME else "does not hold"


def label(algorithm: str | None) -> str:
    """Return the name of an algorithm in figures and tables."""
    return NAMES.get(str(algorithm), str(algorithm))


def unknown(check: Check, reason: str) -> ClaimCheck:
    """Return a check that cannot be told, and the reason."""
    return ClaimCheck("cannot be told", f"{reason[0].upper()}{reason[1:]}.", check.kind)


def tally_of(sides: Mapping[str, Side]) -> Tally:
    """Count comparisons by their side; the keys name them."""
    lost, undecided = ([key for key, side in sides.items() if side == wanted] for wanted in ("behind", "undecided"))
    return Tally(len(sides) - len(lost) - len(undecided), lost, undecided)


def amount(found: Difference) -> str:
    """Format a mean difference and its interval: ``+0.021 ± 0.008``."""
    half = f" ± {formatting.accuracy(found.half)}" if found.half is not None else " (one seed, no interval)"
    return formatting.difference(found.mean) + (half if found.pairs else "")


def wins(found: Difference) -> str:
    """Format the number of seeds in which a difference is positive."""
    return f"in {found.wins} of {formatting.seeds(found.pairs)}"


def point_name(point: Any) -> str:
    """Format the point of a grid."""
    values = point if isinstance(point, tuple) else (point,)
    return "/".join(formatting.setting(value) for value in values)


def sides_in_words(tally: Tally, axes: Sequence[str]) -> str:
    """Format a tally: ``3 of 5 points, behind at 1 (x = 4), undecided at 1 (x = 5)``."""
    axis = " and ".join(axes)
    text = f"{tally.won} of {tally.total} points"
    for side, places in (("behind", tally.lost), ("undecided", tally.open)):
        if places:
            text += f", {side} at {len(places)} ({axis} = {', '.join(places)})"
    return text


def rise_over(lines: Sequence[pd.Series[Any]]) -> Difference:
    """Return how much a line rises over the points in order: its least-squares slope times the range, by seed."""
    table = pd.concat(lines, axis=1).dropna()
    steps = np.arange(table.shape[1], dtype=float)
    steps -= steps.mean()
    rises = table.to_numpy(float) @ steps / float(steps @ steps) * (len(steps) - 1)
    return paired.difference(rises.tolist())


def toward(rise: Difference, direction: str | None) -> Side:
    """Return which way a line goes, seen from a claim that it rises or falls."""
    if direction != "falls" or rise.side == "undecided":
        return rise.side
    return "behind" if rise.side == "ahead" else "ahead"


def status_of(side: Side) -> Status:
    """Return the status of a claim about one comparison."""
    statuses: dict[Side, Status] = {"ahead": "holds", "behind": "does not hold", "undecided": "cannot be told"}
    return statuses[side]
