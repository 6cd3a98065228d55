"""Tables of the clients and of the setting of each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from dspodfl.engine import Run
from dspodfl.problem.data import Federation
from dspodfl.study.study import Setting

Members = dict[int, tuple[np.ndarray, list[list[int]], np.ndarray]]
"""Seed -> how many samples each client holds, which labels, and how many neighbours it has in the study's graph."""


def members(settings: Sequence[Setting]) -> Members:
    """Return what the clients of each seed hold; it is called before samples are released.

    Args:
        settings: The setting of each seed.

    Returns:
        Seed -> the number of samples, the labels and the degree of each client.
    """
    return {found.seed: (found.data.sizes, _labels(found.data), found.rates.graph.degree) for found in settings}


def clients(runs: Sequence[Run], accuracies: Mapping[int, Tensor | None], held: Members) -> pd.DataFrame:
    """Return the table of clients.parquet.

    Args:
        runs: The runs of the study.
        accuracies: Run -> each client's accuracy when it was last evaluated, (clients,).
        held: What the clients of each seed hold, as `members` returns it.

    Returns:
        A row for each run and client, none for servers; empty where ``held`` is.
    """
    tables = []
    if not held:
        return pd.DataFrame()
    for r, run in enumerate(runs):
        graph, final = run.rates.graph, accuracies.get(r)
        tables.append(
            pd.DataFrame(
                {
                    "algorithm": run.algorithm,
                    "seed": run.seed,
                    "client": np.arange(run.members),
                    "name": [graph.label(i) for i in range(run.members)],
                    "degree": held[run.seed][2],
                    "d": run.rates.sgd(np.zeros(1, dtype=np.int64))[0, : run.members],
                    "samples": held[run.seed][0],
                    "labels": held[run.seed][1],
                    **({} if run.attack is None else {"attacker": ~np.isin(np.arange(run.members), run.honest)}),
                    "final_accuracy": np.nan if final is None else final.numpy(),
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def setting(found: Setting) -> dict[str, np.ndarray]:
    """Return what setting.npz holds of a seed.

    Args:
        found: The setting of the seed.

    Returns:
        ``edges`` (links, 2); ``d`` (clients,) and ``b`` (links,) at the first iteration; and, where the graph has them,
        ``positions`` (clients, 2) and ``labels`` (clients,). Of a directed graph also ``arcs`` (links, 2), which of
        i → j and j → i there are, and ``back`` (links,), the rates of j → i, where ``b`` are those of i → j.
    """
    graph, start = found.rates.graph, np.zeros(1, dtype=np.int64)
    out = {"edges": graph.edges, "d": found.rates.sgd(start)[0], "b": found.rates.link(start)[0]}
    if graph.arcs is not None:
        out |= {"arcs": graph.arcs, "back": found.rates.back(start)[0]}
    if graph.positions is not None:
        out["positions"] = graph.positions
    if graph.labels is not None:
        out["labels"] = np.array(graph.labels)
    return out


def report(found: Setting, iterations: int) -> dict[str, Any]:
    """Return what summary.json says of a seed.

    Args:
        found: The setting of the seed.
        iterations: The number of iterations, for rates that grow.

    Returns:
        Its numbers of clients and links, of rates that were clipped, and the report of its data.
    """
    sgd, link = found.rates.clipped(iterations)
    return {
        "clients": found.rates.graph.n,
        "links": found.rates.graph.links,
        **({"arcs": len(found.rates.graph.arc_list)} if found.rates.graph.directed else {}),
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
