"""The theory over a grid of configurations: a row for each cell and algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from dspodfl.config import Cell
from dspodfl.errors import ConfigError, InputError
from dspodfl.theory.assess.assessment import POINTS, AlgorithmAssessment, Assessment, Cache, assess
from dspodfl.theory.assess.families import QUANTITIES

BOUND_COLUMNS = {
    "algorithm": "algorithm",
    **{one.name: one.column for one in QUANTITIES.values() if one.column is not None},
}
"""Columns of the table of a sweep after its axes, and their heads."""
BOUND_PANELS = {one.name: (one.panel, one.logarithmic) for one in QUANTITIES.values() if one.panel is not None}
"""Columns of the table of a sweep that its figure shows: the label of the panel, and whether it may be logarithmic."""


def over_cells(
    cells: Sequence[Cell],
    epsilon: float | None = None,
    reach: float | None = None,
    points: int = POINTS,
    on_progress: Callable[[str, float], None] | None = None,
) -> pd.DataFrame:
    """Assess every cell of a grid.

    Args:
        cells: The configurations, each with its point.
        epsilon: As of `assess`.
        reach: As of `assess`.
        points: As of `assess`.
        on_progress: Called as ``on_progress(stage, share)`` before each cell.

    Returns:
        A row for each cell and algorithm: the point, the columns of `BOUND_COLUMNS` (NaN where no theorem gives the
        number), and whether bounds are guarantees.

    Raises:
        ConfigError: A cell cannot be assessed; names its point.
    """
    cache: Cache = {}
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(cells):
        if on_progress:
            on_progress(f"cell {number + 1} of {len(cells)}", number / len(cells))
        try:
            found = assess(cell.config, epsilon, reach, points, cache)
        except InputError as error:
            raise ConfigError([f"at {cell.label}: {error}"]) from None
        rows += [{**cell.point, **_row(found, algorithm)} for algorithm in found.algorithms]
    return pd.DataFrame(rows)


def _row(found: Assessment, algorithm: AlgorithmAssessment) -> dict[str, Any]:
    convex, smooth = algorithm.result("strongly convex"), algorithm.result("smooth, non-convex")
    row = dict.fromkeys(list(BOUND_COLUMNS)[1:], math.nan)
    row |= {"rho_tilde": algorithm.sporadicity.rho_tilde, "d_min": algorithm.sporadicity.d_min, "alpha": found.alpha}
    for result in (smooth, convex):  # where losses are strongly convex, that family fills a column that both can
        for name, value in result.quantities.items() if result is not None else ():
            column = QUANTITIES[name].fills or name
            row |= {column: value} if column in row else {}
    return {
        "algorithm": algorithm.name,
        **row,
        "guaranteed": found.constants.guaranteed,
    }
