"""Attempts to break the program, kept as code: each attack tries something many times and counts what held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tests.edge import TINY_TOML

_T = TypeVar("_T")

STUDY = TINY_TOML.partition("[eval]")[0].replace("iterations = 4", "iterations = 6")
"""The study that is attacked: it runs in milliseconds."""


def thinned(cases: Sequence[_T], every: int) -> list[_T]:
    """One case of ``every``, spread evenly; at least one of them."""
    return list(cases[(every - 1) // 2 :: every] or cases[len(cases) // 2 :][:1])


@dataclass
class Tally:
    """What came of one kind of attempt."""

    attack: str
    what: str
    tried: int = 0
    held: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, failure: str | None) -> None:
        """Count an attempt, and what went wrong, if anything did."""
        self.tried += 1
        if failure is None:
            self.held += 1
        else:
            self.failures.append(failure)

    def __str__(self) -> str:
        return f"{self.attack}: {self.what}: tried {self.tried:,}, held {self.held:,}"
