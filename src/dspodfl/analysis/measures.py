"""The columns that algorithms are compared by: accuracy, loss, distance to the optimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dspodfl.analysis import formatting


@dataclass(frozen=True)
class Measure:
    """The column that algorithms are compared by."""

    column: str
    label: str
    lower_is_better: bool

    def text(self, value: object) -> str:
        """Format a value."""
        return formatting.measure(value) if self.lower_is_better else formatting.accuracy(value)

    def spread(self, mean: object, spread: object) -> str:
        """Format a mean and its spread, or a difference and its interval."""
        if self.lower_is_better:
            return formatting.spread(mean, spread)
        plus = f" ± {formatting.accuracy(spread)}" if formatting.is_number(spread) else ""
        return formatting.accuracy(mean) + plus

    def met(self, values: np.ndarray, target: float) -> np.ndarray:
        """Return where values are at least as good as a target."""
        return values <= target if self.lower_is_better else values >= target


ACCURACY = Measure("accuracy", "accuracy", lower_is_better=False)
LOSS = Measure("loss", "loss", lower_is_better=True)
ERROR = Measure("optimality_error", "‖θ̄ − θ*‖²", lower_is_better=True)


def measure_of(metrics: pd.DataFrame) -> Measure:
    """Return the measure of a study: accuracy; for regression the distance to a known optimum, else the loss."""
    for measure in (ACCURACY, ERROR):
        if measure.column in metrics and metrics[measure.column].notna().any():
            return measure
    return LOSS if metrics["loss"].notna().any() else ACCURACY
