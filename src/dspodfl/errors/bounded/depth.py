"""How deep lists and tables may nest."""

from __future__ import annotations

from typing import Any

DEPTH = 64
"""Levels of lists and tables inside one another."""


def too_deep(value: Any) -> bool:
    """Return whether lists and tables nest more than `DEPTH` deep; level by level, since recursion could overflow."""
    level = [value]
    for _ in range(DEPTH + 1):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
