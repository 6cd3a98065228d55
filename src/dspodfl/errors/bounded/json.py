"""JSON within bounds: size and depth."""

from __future__ import annotations

import json
import os
from typing import Any

from dspodfl.errors.base import DataError
from dspodfl.errors.bounded.depth import DEPTH, too_deep
from dspodfl.errors.bounded.files import name_of, read_text

JSON = 256 * 2**20
"""The largest file, in bytes."""


class NestedError(ValueError):
    """Lists and objects nest more than `DEPTH` deep."""


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text that nests at most `DEPTH` deep.

    Args:
        text: the text, or its bytes.

    Returns:
        The content, as Python values.

    Raises:
        ValueError: it is not JSON, or nests deeper (`NestedError`).

    >>> parse_json(b"[[1]]")
    [[1]]
    """
    try:
        found = json.loads(text)
    except RecursionError:
        found, deep = None, True
    else:
        deep = isinstance(found, dict | list) and too_deep(found)
    if deep:
        raise NestedError(f"lists and objects nest more than {DEPTH} deep")
    return found


def read_json(path: str | os.PathLike[str], limit: int = JSON) -> Any:
    """Return the content of a JSON file.

    Args:
        path: the file.
        limit: the largest size allowed, in bytes.

    Returns:
        The content, as Python values.

    Raises:
        DataError: as for `read_text`, or it is not JSON, or nests more than `DEPTH` deep.
    """
    text = read_text(path, limit)
    try:
        return parse_json(text)
    except NestedError as error:
        raise DataError(f"{name_of(path)}: not valid here: {error}") from None
    except ValueError as error:
        raise DataError(f"{name_of(path)}: not valid JSON: {error}") from None
