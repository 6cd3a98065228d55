"""Numbers as text, in one way everywhere: terminal, report, figures and CSV files.

A number that is missing, infinite or not a number is a dash. Every function takes the number itself, never a rounded
copy, so that two places that show one number show the same text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import pandas as pd

MISSING = "–"
"""The text of a missing number."""
NEVER = "∞"
"""A quartile that falls on a run that never reached its target."""


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a finite number (of Python or NumPy); a truth value is none.

    >>> [is_number(value) for value in (1, 0.5, float("nan"), float("inf"), None, "1", True)]
    [True, True, False, False, False, False, False]
    """
    if isinstance(value, bool | str | bytes) or value is None:
        return False
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def accuracy(value: object) -> str:
    """Format an accuracy, or another share between 0 and 1.

    >>> accuracy(0.63449), accuracy(1), accuracy(None)
    ('0.634', '1.000', '–')
    """
    return f"{value:.3f}" if is_number(value) else MISSING


def measure(value: object) -> str:
    """Format a loss or an error: three decimals, or three digits and an exponent where it is small or large.

    >>> measure(0.4), measure(1.5e-7), measure(123456.0), measure(0)
    ('0.400', '1.50e-07', '1.23e+05', '0.000')
    """
    if not is_number(value):
        return MISSING
    return f"{value:.3f}" if _plain(value) else f"{value:.2e}"


def spread(mean: object, std: object) -> str:
    """Format a mean and a standard deviation; the mean alone where one seed has none.

    >>> spread(0.6341, 0.0123), spread(0.6341, None), spread(None, None), spread(1.5e-7, 2e-8)
    ('0.634 ± 0.012', '0.634', '–', '1.50e-07 ± 2.0e-08')
    """
    if not is_number(mean):
        return MISSING
    if not is_number(std):
        return measure(mean)
    return f"{mean:.3f} ± {std:.3f}" if _plain(mean) else f"{mean:.2e} ± {std:.1e}"


def spread_of(found: Mapping[str, Any]) -> str:
    """Format ``{"mean": …, "std": …}`` as summaries hold them.

    >>> spread_of({"mean": 0.5, "std": 0.25})
    '0.500 ± 0.250'
    """
    return spread(found.get("mean"), found.get("std"))


def difference(value: object) -> str:
    """Format a difference of accuracies, with its sign.

    >>> difference(0.0091), difference(-0.02), difference(-0.0001)
    ('+0.009', '−0.020', '+0.000')
    """
    if not is_number(value):
        return MISSING
    text = f"{value:+.3f}"
    return "+0.000" if text == "-0.000" else text.replace("-", "−")


def delay(value: object) -> str:
    """Format a delay: a whole number, three digits where it is small, an exponent where it is huge.

    >>> delay(1234.4), delay(15.75), delay(0.0), delay(999999), delay(1234567), delay(0.00012), delay(None)
    ('1,234', '15.8', '0', '999,999', '1.2e+06', '0.00012', '–')
    """
    if not is_number(value):
        return MISSING
    if round(abs(value)) >= 1_000_000:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 99.95 or value == 0 else f"{value:.3g}"


def delay_at_least(value: object) -> str:
    """Format a delay that is known to be larger than a number.

    >>> delay_at_least(37.5), delay_at_least(None)
    ('> 37.5', '–')
    """
    return f"> {delay(value)}" if is_number(value) else MISSING


def quartiles(found: Mapping[str, Any], seeds: int) -> str:
    """Format a median delay with its quartiles in brackets; without them where there is one seed.

    >>> quartiles({"median": 22.5, "quartile1": 18.75, "quartile3": None}, 3)
    '22.5 [18.8, ∞]'
    >>> quartiles({"median": 22.5, "quartile1": 22.5, "quartile3": 22.5}, 1)
    '22.5'
    >>> quartiles({"median": None, "quartile1": None, "quartile3": None}, 3)
    '–'
    """
    median, low, high = (found.get(name) for name in ("median", "quartile1", "quartile3"))
    if not is_number(median) or seeds < 2 or not is_number(low):
        return delay(median)
    return f"{delay(median)} [{delay(low)}, {delay(high) if is_number(high) else NEVER}]"


def times(value: object) -> str:
    """Format a multiple of the best.

    >>> times(1), times(14.27), times(1234.0), times(None)
    ('1.00×', '14.3×', '1,234×', '–')
    """
    if not is_number(value):
        return MISSING
    return f"{value:.2f}×" if abs(value) < 9.995 else f"{delay(value)}×"


def count(value: object) -> str:
    """Format a count.

    >>> count(2000), count(3.0), count(None)
    ('2,000', '3', '–')
    """
    return f"{int(value):,}" if is_number(value) else MISSING


def reached(number: object, of: object) -> str:
    """Format how many of all seeds reached something.

    >>> reached(2, 3)
    '2/3'
    """
    return f"{count(number)}/{count(of)}"


def seeds(number: int) -> str:
    """Format a number of seeds.

    >>> seeds(1), seeds(3)
    ('1 seed', '3 seeds')
    """
    return f"{count(number)} seed{'' if number == 1 else 's'}"


def seconds(value: object) -> str:
    """Format a duration.

    >>> seconds(0.0416), seconds(12.34), seconds(59.96), seconds(200), seconds(7500), seconds(90000)
    ('0.04 s', '12.3 s', '1 min 0 s', '3 min 20 s', '2 h 5 min', '1 d 1 h')
    """
    if not is_number(value):
        return MISSING
    if value < 59.95:
        return f"{value:.1f} s" if value >= 0.95 or value == 0 else f"{value:.1g} s"
    whole = round(value)
    for unit, small, size, part in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {small}"
    return f"{whole} s"


def size(value: object) -> str:
    """Format a number of bytes.

    >>> size(512), size(31_400), size(2.5e9)
    ('512 B', '31.4 kB', '2.5 GB')
    """
    if not is_number(value):
        return MISSING
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale:
            return f"{float(f'{value / scale:.3g}'):,g} {unit}"
    return f"{value:,.0f} B"


def rate(value: object) -> str:
    """Format a speed, such as iterations per second.

    >>> rate(12345.6), rate(3.14159)
    ('12,346', '3.1')
    """
    if not is_number(value):
        return MISSING
    return delay(value) if value >= 10 else f"{value:.2g}"


def setting(value: object) -> str:
    """Format a value of the configuration: a point of a sweep, an iteration, a target accuracy.

    >>> setting(0.1), setting(2000), setting("ring"), setting(True), setting(1e-05)
    ('0.1', '2,000', 'ring', 'true', '1e-05')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) or not is_number(value):
        return str(value)
    return f"{int(value):,}" if float(value).is_integer() and 1000 <= abs(value) < 1e15 else f"{value:g}"


def to_csv(table: pd.DataFrame) -> bytes:
    r"""Write a table as CSV, with every digit of its numbers, so that a reader who rounds them gets what is shown.

    >>> import pandas as pd
    >>> to_csv(pd.DataFrame({"a": [0.1 + 0.2], "b": [None]}))
    b'a,b\n0.30000000000000004,\n'
    """
    return table.to_csv(index=False, lineterminator="\n").encode()


def _plain(value: float) -> bool:
    return value == 0 or 1e-3 <= abs(value) < 1e4
