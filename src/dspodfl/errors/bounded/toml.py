"""TOML within bounds: size, depth, and the length of integers."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any

from dspodfl.errors.base import DataError
from dspodfl.errors.bounded.depth import DEPTH, too_deep
from dspodfl.errors.bounded.files import name_of, read_text

TOML = 8 * 2**20
"""The largest file, in bytes."""
_BITS = 1024
"""The longest integer."""

_STRINGS = re.compile(r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*+"|\'[^\'\n]*+\'|#[^\n]*+', re.DOTALL)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEPTH},}}")
_BRACKETS = re.compile(r"[\[\]{}]")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text that nests at most `DEPTH` deep.

    Args:
        text: the text, of any length; the depth is counted before it is parsed.

    Returns:
        The tables.

    Raises:
        ValueError: it is not TOML, or nests deeper.

    >>> parse_toml("a = [[1]]")
    {'a': [[1]]}
    """
    bare = _STRINGS.sub(lambda found: "" if found[0].startswith("#") else "s", text)
    depth = 0
    for bracket in _BRACKETS.finditer(bare):
        depth = max(0, depth + (1 if bracket[0] in "[{" else -1))
        if depth > DEPTH:
            raise ValueError(f"lists and tables nest more than {DEPTH} deep")
    if _LONG_KEY.search(bare):
        raise ValueError(f"a dotted key has more than {DEPTH} parts")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"lists and tables nest more than {DEPTH} deep") from None
    if too_deep(found):
        raise ValueError(f"lists and tables nest more than {DEPTH} deep")
    if _too_long(found):
        raise ValueError(f"an integer has more than {_BITS:,} bits")
    return found


def read_toml(path: str | os.PathLike[str], limit: int = TOML) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Args:
        path: the file.
        limit: the largest size allowed, in bytes.

    Returns:
        The tables.

    Raises:
        DataError: as for `read_text`, or it is not TOML, or nests more than `DEPTH` deep.
    """
    text = read_text(path, limit)
    try:
        return parse_toml(text)
    except ValueError as error:  # TOMLDecodeError, or an integer too long to be read
        raise DataError(f"{name_of(path)}: not valid TOML: {error}") from None


def _too_long(value: Any) -> bool:
    """Whether there is an integer of more than `_BITS` bits: Python writes none of more than 4,300 digits."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, int) and item.bit_length() > _BITS:
            return True
        left += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return False
