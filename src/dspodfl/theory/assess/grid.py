"""The theory over a grid of configurations: a row for each cell and algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from dspodfl.config import Cell
from dspodfl.errors import ConfigError, InputError
from dspodfl.theory.assess.assessment import POINTS, Appraisal, Cache, Case, appraise
from dspodfl.theory.assess.families import QUANTITIES

BOUND_COLUMNS = {
    "algorithm": "algorithm",
    "rho_tilde": "ρ̃",
    "d_min": "d_min",
    "alpha": "α",
    **{one.name: one.column for one in QUANTITIES.values() if one.column is not None},
}
"""Columns of a sweep besides its axes, and what they are called."""


def over_cells(
    cells: Sequence[Cell],
    epsilon: float | None = None,
    reach: float | None = None,
    points: int = POINTS,
    on_progress: Callable[[str, float], None] | None = None,
) -> pd.DataFrame:
    """A row for each cell and algorithm; NaN where a theorem says nothing.

    ``on_progress(stage, share)`` is called before each cell.
    """
    cache: Cache = {}
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(cells):
        if on_progress:
            on_progress(f"cell {number + 1} of {len(cells)}", number / len(cells))
        try:
            found = appraise(cell.config, epsilon, reach, points, cache)
        except InputError as error:
            raise ConfigError([f"at {cell.label}: {error}"]) from None
        rows += [{**cell.point, **_row(found, case)} for case in found.cases]
    return pd.DataFrame(rows)


def _row(found: Appraisal, case: Case) -> dict[str, Any]:
    convex, smooth = case.statement("strongly convex"), case.statement("smooth, non-convex")
    told = {one.name: math.nan for one in QUANTITIES.values() if one.column is not None}
    for statement in (smooth, convex):  # where losses are strongly convex, that family fills a column that both can
        for name, value in statement.quantities.items() if statement is not None else ():
            column = QUANTITIES[name].fills or name
            told |= {column: value} if column in told else {}
    return {
        "algorithm": case.algorithm,
        "rho_tilde": case.sporadicity.rho_tilde,
        "d_min": case.sporadicity.d_min,
        "alpha": found.alpha,
        **told,
        "guaranteed": found.knowledge.guaranteed,
    }
