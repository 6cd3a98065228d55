"""The columns of metrics.parquet: names and types, in one place."""

from __future__ import annotations

MetricsRow = dict[str, object]
"""One row of metrics.parquet: one algorithm, seed and evaluated iteration."""

METRICS = (
    "algorithm",
    "seed",
    "iteration",
    "accuracy",
    "accuracy_std",
    "accuracy_min",
    "accuracy_average_model",
    "loss",
    "consensus_error",
    "optimality_error",
    "delay_processing",
    "delay_transmission",
    "delay_total",
    "delay_processing_normalized",
    "delay_transmission_normalized",
    "delay_total_normalized",
    "sgd_steps",
    "link_uses",
    "bytes",
    "diverged",
)
"""The columns of metrics.parquet, in order."""

INTEGERS = ("seed", "iteration", "sgd_steps", "link_uses", "bytes")
"""Columns of whole numbers; of the others `algorithm` is text, `diverged` is a bool, and the rest are floats."""
