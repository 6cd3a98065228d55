"""What the registry knows of a method, without importing the code that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Dash = str | tuple[float, tuple[float, ...]]
"""Dashes of a line, as Matplotlib takes them."""


@dataclass(frozen=True)
class Setting:
    """One number or word that a method takes."""

    line: str
    """What it is, in one line."""
    allowed: str
    """What it may be, as a message says it after "must be"."""
    check: Callable[[Any], bool]
    """Whether a value is allowed."""
    default: Any = None
    """What it is where it is left out; None: what the parameter of that name of the rule or the schedule says."""
    key: str | None = None
    """The key of the configuration that has the value where the method's settings do not; None: the method's own."""


@dataclass(frozen=True)
class Style:
    """How a method is drawn: dashes and markers differ as well as colours, since figures are read in grey too."""

    colour: str
    dash: Dash
    marker: str


@dataclass(frozen=True)
class Entry:
    """A registered method. The name of its file is its name."""

    label: str
    """What figures and tables call it."""
    line: str
    """What it does, in one line."""
    schedule: str
    """``"module:object"``: a `Schedule`, or what makes one of the settings. Imported when it is used."""
    rule: str | None = None
    """``"module:object"``: a `Rule`, or what makes one of the settings; None: the one that ``train.order`` names."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    style: Style | None = None
    """None: one of the further colours, dashes and markers."""
    aliases: tuple[str, ...] = ()
    """Other names in use. Case, spaces, hyphens and underscores do not count, and the label is one anyway."""
    reference: str = ""
    """Where it was published."""
    paper: bool = False
    """Whether it is one of the methods that the DSpodFL paper compares."""
    exact: bool = False
    """Whether models converge to the minimizer with full gradients and a constant step size, or to a neighbourhood."""
    sends: str = "1 model"
    """What a client sends over a link in one use."""
    sporadic: bool = True
    """Whether clients and links may be sporadic, by the rates d and b."""
    directed: bool = False
    """Whether it runs on directed graphs."""
    takes_local: bool = True
    """Whether steps are along plain gradients, so that ``local`` transformations and ``inverse_rates`` make sense."""
    complete: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether it uses the links of all pairs of clients in place of [graph], by its settings; None: it never does."""
    server: bool = False
    """Whether it has a server: it runs on a star of the clients and the server in place of [graph]."""
    update: str = ""
    """The update as docs/algorithms.md prints it: one formula a line, in the notation of that page."""
    when: str = ""
    """When to use it, and when not: a sentence or two for docs/algorithms.md."""
    order: int = 1000
    """Its place in lists: smaller numbers come first, then the alphabet decides."""

    @property
    def facts(self) -> tuple[str, str, str, str]:
        """Where it ends, what it sends, whether it may be sporadic, and on which graphs it runs, in few words."""
        return (
            "exact" if self.exact else "neighbourhood",
            f"sends {self.sends}",
            "sporadic" if self.sporadic else "not sporadic",
            "star" if self.server else "directed" if self.directed else "undirected",
        )
