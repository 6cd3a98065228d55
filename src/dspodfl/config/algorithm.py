"""The algorithms of a study: registered methods by name, or tables that put a schedule and a rule together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer, model_validator

from dspodfl.algorithms import (
    ALGORITHMS,
    SIMULTANEOUS,
    label_problem,
    local_problem,
    rule_problem,
    schedule_problem,
    settings_problem,
)
from dspodfl.config.base import Table, is_toml, refuse
from dspodfl.config.local import LocalTable
from dspodfl.errors import nearest


class AlgorithmTable(Table):
    """An algorithm of a study: a registered method, or a schedule and a rule."""

    name: str | None = Field(
        None, description="a registered method ('dspodfl list algorithms'); not with schedule or rule"
    )
    schedule: str | None = Field(
        None,
        description="when clients step and links exchange: a registered method's, or 'package.module:object'",
    )
    rule: str | None = Field(
        None, description="how models change: a value of train.order, or 'package.module:object'; absent: train.order"
    )
    label: str | None = Field(
        None, description="what rows, figures and tables call it; absent: its name. Draws do not depend on it"
    )
    settings: dict[str, Any] = Field({}, description="what schedule and rule are made with, by names")
    local: LocalTable | None = Field(
        None,
        description="what a client does with its gradient; not with methods that take plain gradients (trackers, …)",
    )

    @model_validator(mode="after")
    def _whole(self) -> AlgorithmTable:
        if (self.name is None) == (self.schedule is None) or (self.name is not None and self.rule is not None):
            given = {key: value for key in _PARTS if (value := getattr(self, key)) is not None}
            refuse("algorithms", given, "a table with either name, or schedule and rule")
        if self.name is not None and self.name not in ALGORITHMS:
            code = "; code is given by schedule and rule" if ":" in self.name else nearest(self.name, ALGORITHMS)
            refuse("algorithms.name", self.name, f"one of {', '.join(ALGORITHMS)}{code}")
        for key, problem in (
            ("schedule", None if self.schedule is None else schedule_problem(self.schedule, "object")),
            ("rule", None if self.rule is None else rule_problem(self.rule)),
            ("label", label_problem(self.text)),
        ):
            if problem:
                refuse(f"algorithms.{key}", getattr(self, key), problem)
        entry = ALGORITHMS.get(self.schedule or "")
        whole = entry is not None and entry.rule is None and self.rule is None  # the schedule is all of the method
        if self.text in ALGORITHMS and self.text not in (self.name, self.schedule if whole else None):
            refuse("algorithms.label", self.text, "another label: it is the name of a registered method")
        for key, value in self.settings.items():
            if not is_toml(value):
                refuse(f"algorithms.settings.{key}", value, "what TOML can write")
        whose = self.rule if self.name is not None else self.rule or SIMULTANEOUS
        problem = local_problem(self.name or self.schedule or "", whose) if self.local is not None else None
        if self.local is not None and problem is not None:
            refuse("algorithms.local", self.local.model_dump(), f"{problem} (of {self.text!r})")
        found = settings_problem(self.name or self.schedule or "", self.rule, self.settings)
        if found:
            refuse(f"algorithms.settings.{found[0]}", found[1], f"{found[2]} (of {self.text!r})")
        return self

    @property
    def text(self) -> str:
        """The label, or the name where there is none."""
        return label_of(dict(self))

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not given: the table is written as it was."""
        return {key: value for key, value in handler(self).items() if value is not None and value != {}}


_PARTS = ("name", "schedule", "rule")


def _form(value: object) -> str:
    return "by_table" if isinstance(value, Mapping | AlgorithmTable) else "by_name"


FORMS = ("by_name", "by_table")
"""How an algorithm may be given."""

AlgorithmItem = Annotated[
    Annotated[str, Tag("by_name")] | Annotated[AlgorithmTable, Tag("by_table")], Discriminator(_form)
]


def label_of(given: str | Mapping[str, Any] | AlgorithmTable) -> str:
    """Return the label of an algorithm of a configuration.

    Args:
        given: The name of a registered method, or a table, as a mapping or validated.

    Returns:
        ``label`` where it is given, else the name, or schedule and rule joined by ``+``.

    >>> label_of("dgd"), label_of({"schedule": "dgd", "rule": "mine:Momentum"})
    ('dgd', 'dgd+mine:Momentum')
    """
    if isinstance(given, str):
        return given
    table = dict(given)
    parts = [table[key] for key in _PARTS if table.get(key) is not None]
    return str(table.get("label") or "+".join(map(str, parts)))


def labels_of(given: Iterable[str | Mapping[str, Any] | AlgorithmTable]) -> list[str]:
    """Return the labels of the algorithms of a configuration.

    Args:
        given: The algorithms, each as for `label_of`.

    Returns:
        Their labels, in the same order.
    """
    return [label_of(one) for one in given]
