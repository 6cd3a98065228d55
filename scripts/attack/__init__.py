"""Attempts to break the program, kept as code: each attack tries something many times and counts what held."""

from __future__ import annotations

from dataclasses import dataclass, field


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
