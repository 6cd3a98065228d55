"""Rates of clients and links from a CSV file."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import pandas as pd

from dspodfl.errors import DataError, InputError, bounded
from dspodfl.network.graph import Graph


def read_rates(path: str, graph: Graph, field: str) -> list[float]:
    """Read rates by the names of clients or links (a label, or a number).

    Args:
        path: a file with the columns client,rate, or for links source,target,rate.
        graph: whose clients or links have the rates.
        field: ``rates.sgd`` or ``rates.link``, for errors; it also says which of the two is read.

    Returns:
        A rate for each client, or each link in the order of the graph; of a directed graph for each arc.

    Raises:
        InputError: the file cannot be read, or does not name each client or link once with a rate in (0, 1].
    """
    links = field.endswith("link")
    columns = ["source", "target", "rate"] if links else ["client", "rate"]
    try:
        text = bounded.read_text(path)
        _check_columns(text, columns, field)
        table = pd.read_csv(io.StringIO(text), dtype=str, skipinitialspace=True, comment="#")
    except InputError:
        raise
    except (DataError, OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise InputError(f"{field}.file", path, f"a readable CSV file ({str(error).strip()})") from None
    if list(table.columns) != columns:
        raise InputError(
            f"{field}.file", f"columns {','.join(table.columns)}", f"a file with columns {','.join(columns)}"
        )
    known: dict[tuple[str, ...], float] = {}
    for row in table.itertuples(index=False):
        given, value = [str(name) for name in row[:-1]], row[-1]
        names = tuple(given if graph.directed else sorted(given))
        if names in known:
            raise InputError(f"{field}.file", path, f"a file that names {'–'.join(names)} once")
        try:
            known[names] = float(value)
        except (TypeError, ValueError):
            known[names] = math.nan
        if not 0 < known[names] <= 1:
            raise InputError(f"{field}.file", value, f"a number in (0, 1] (of {'–'.join(names)} in {path})")
    pairs = graph.arc_list if graph.directed else graph.edges
    entities: list[Sequence[int]] = pairs.tolist() if links else [[i] for i in range(graph.clients)]
    names_of = [[graph.label(i) for i in entity] for entity in entities]
    wanted = [tuple(names if graph.directed else sorted(names)) for names in names_of]
    missing = [names for names in wanted if names not in known]
    extra = set(known) - set(wanted)
    if missing or extra:
        which = f"{'–'.join(missing[0])} is missing" if missing else f"{'–'.join(min(extra))} is not in the graph"
        raise InputError(
            f"{field}.file", path, f"a file with one row for each {'link' if links else 'client'}: {which}"
        )
    return [known[names] for names in wanted]


def _check_columns(text: str, columns: list[str], field: str) -> None:
    """Refuse a file of many columns before a table is made of them."""
    head = next((line for line in text.splitlines() if line.partition("#")[0].strip()), "")
    if head.count(",") > 10 * len(columns):
        found = f"{head.count(',') + 1:,} columns"
        raise InputError(f"{field}.file", found, f"a file with columns {','.join(columns)}")
