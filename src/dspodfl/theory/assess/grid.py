"""The theory over a grid of configurations: a row for each cell and algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from dspodfl.config import Cell
from dspodfl.errors import ConfigError, InputError
from dspodfl.theory.assess.assessment import POINTS, Appraisal, Cache, Case, appraise

BOUND_COLUMNS = {
    "algorithm": "algorithm",
    "rho_tilde": "ρ̃",
    "d_min": "d_min",
    "alpha": "α",
    "printed_rate": "largest α,\nprinted",
    "corrected_rate": "largest α,\ncorrected",
    "largest_rate": "largest α,\nρ(Φ) < 1",
    "radius": "ρ(Φ)",
    "gap_optimality": "gap of\n‖θ̄ − θ*‖²",
    "gap_consensus": "gap of\n‖Θ − 1θ̄‖²",
    "iterations": "iterations\nto ε",
    "mean_gradient": "mean ‖∇F‖²\nat most",
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
    said = {} if convex is None else convex.quantities
    other = {} if smooth is None else smooth.quantities
    largest = "largest α with ρ(Φ) < 1" if said else "largest α for which Γ exist"
    return {
        "algorithm": case.algorithm,
        "rho_tilde": case.sporadicity.rho_tilde,
        "d_min": case.sporadicity.d_min,
        "alpha": found.alpha,
        "printed_rate": said.get("largest α by the printed condition", math.nan),
        "corrected_rate": said.get("largest α by the corrected condition", math.nan),
        "largest_rate": (said or other).get(largest, math.nan),
        "radius": said.get("ρ(Φ)", said.get("largest ρ(Φ(k))", math.nan)),
        "gap_optimality": said.get("gap of ‖θ̄ − θ*‖²", math.nan),
        "gap_consensus": said.get("gap of ‖Θ − 1θ̄‖²", math.nan),
        "iterations": said.get("iterations to ‖θ̄ − θ*‖² ≤ ε", math.nan),
        "mean_gradient": other.get("mean ‖∇F(θ̄)‖² over 0 … K, at most", math.nan),
        "guaranteed": found.knowledge.guaranteed,
    }
