"""Who takes part: the tables that say what each client and each seed is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from dspodfl.engine import Run
from dspodfl.problem.data import Federation
from dspodfl.study.study import Setting

Members = dict[int, tuple[np.ndarray, list[list[int]]]]
"""Seed -> how many samples each client holds, and which labels."""


def members(settings: Sequence[Setting]) -> Members:
    """Return what the clients of each seed hold; called before any rank releases samples."""
    return {found.seed: (found.data.sizes, _labels(found.data)) for found in settings}


def clients(runs: Sequence[Run], accuracies: Mapping[int, Tensor | None], held: Members) -> pd.DataFrame:
    """The table of clients.parquet; accuracies are those of the clients of a run, where it was evaluated."""
    tables = []
    if not held:
        return pd.DataFrame()
    for r, run in enumerate(runs):
        graph, own = run.rates.graph, accuracies.get(r)
        tables.append(
            pd.DataFrame(
                {
                    "algorithm": run.algorithm,
                    "seed": run.seed,
                    "client": np.arange(run.clients),
                    "name": [graph.label(i) for i in range(run.clients)],
                    "degree": graph.degree,
                    "d": run.rates.sgd(np.zeros(1, dtype=np.int64))[0],
                    "samples": held[run.seed][0],
                    "labels": held[run.seed][1],
                    "final_accuracy": np.nan if own is None else own.numpy(),
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def setting(found: Setting) -> dict[str, np.ndarray]:
    """What setting.npz holds of a seed; rates are those of the first iteration."""
    graph, start = found.rates.graph, np.zeros(1, dtype=np.int64)
    out = {"edges": graph.edges, "d": found.rates.sgd(start)[0], "b": found.rates.link(start)[0]}
    if graph.positions is not None:
        out["positions"] = graph.positions
    if graph.labels is not None:
        out["labels"] = np.array(graph.labels)
    return out


def report(found: Setting, iterations: int) -> dict[str, Any]:
    """What summary.json says of a seed: its size, and what should be known of its rates and its data."""
    sgd, link = found.rates.clipped(iterations)
    return {
        "clients": found.rates.graph.n,
        "links": found.rates.graph.links,
        "clipped_sgd_rates": sgd,
        "clipped_link_rates": link,
        "data": {key: list(value) if isinstance(value, tuple) else value for key, value in found.data.report.items()},
    }


def _labels(data: Federation) -> list[list[int]]:
    """The labels that each client holds, in order; none in a regression."""
    if data.dataset.classes is None:
        return [[] for _ in data.shards]
    client = np.repeat(np.arange(data.clients), data.sizes)
    held = np.zeros((data.clients, data.dataset.classes), dtype=bool)
    held[client, data.dataset.y_train[np.concatenate(data.shards)]] = True
    return [np.flatnonzero(row).tolist() for row in held]
