"""Traces of availability and capacities of clients from CSV files; errors name the line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NoReturn

import numpy as np

from dspodfl.errors import DataError, InputError, bounded
from dspodfl.network.graph import Graph

TRACE = ("client", "start", "end")
CAPACITIES = ("client", "compute", "bandwidth")


def read_trace(path: str, graph: Graph, field: str) -> list[np.ndarray]:
    """Read the intervals in which clients are available.

    Args:
        path: A file with the columns client,start,end; times are in seconds, from 0.
        graph: Whose clients they are, by label or number.
        field: The key of the configuration, for errors.

    Returns:
        For each client: start, end, start, end, … in seconds, increasing. Shape: (2 · intervals,).

    Raises:
        InputError: The file cannot be read, or a line of it is not an interval of a client, which do not overlap; or it
            does not name every client.
    """
    found: list[list[tuple[float, float, int]]] = [[] for _ in range(graph.clients)]
    for line, client, (start, end) in _rows(path, graph, field, TRACE):
        if start < 0:
            _refuse(field, path, line, f"start = {start:g}, which must be at least 0")
        if end <= start:
            _refuse(field, path, line, f"end = {end:g}, which must be above start = {start:g}")
        found[client].append((start, end, line))
    for client, intervals in enumerate(found):
        if not intervals:
            raise InputError(field, path, f"a file with an interval for each client: {graph.label(client)} has none")
        intervals.sort()
        for (_, end, before), (start, _, line) in pairwise(intervals):
            if start < end:
                also = f"overlaps line {min(before, line)} (client {graph.label(client)})"
                _refuse(field, path, max(before, line), f"an interval that {also}")
    return [np.array([bound for start, end, _ in intervals for bound in (start, end)]) for intervals in found]


def read_capacities(path: str, graph: Graph, field: str) -> np.ndarray:
    """Read how capable clients are.

    Args:
        path: A file with the columns client,compute,bandwidth; each in a unit of its own.
        graph: Whose clients they are, by label or number.
        field: The key of the configuration, for errors.

    Returns:
        Compute and bandwidth of each client, (clients, 2).

    Raises:
        InputError: The file cannot be read, or does not name each client once with two numbers above 0.
    """
    out = np.zeros((graph.clients, 2))
    named: dict[int, int] = {}
    for line, client, values in _rows(path, graph, field, CAPACITIES):
        if client in named:
            _refuse(field, path, line, f"client {graph.label(client)}, as line {named[client]} does")
        for name, value in zip(CAPACITIES[1:], values, strict=True):
            if value <= 0:
                _refuse(field, path, line, f"{name} = {value:g}, which must be above 0")
        named[client], out[client] = line, values
    missing = next((i for i in range(graph.clients) if i not in named), None)
    if missing is not None:
        raise InputError(field, path, f"a file with one row for each client: {graph.label(missing)} is missing")
    return out


def _rows(
    path: str, graph: Graph, field: str, columns: tuple[str, ...]
) -> Iterator[tuple[int, int, tuple[float, float]]]:
    """Read the rows of a file: line, number of the client, and two finite numbers."""
    try:
        text = bounded.read_text(path)
    except (DataError, OSError) as error:
        raise InputError(field, path, f"a readable CSV file ({str(error).strip()})") from None
    numbers = {graph.label(i): i for i in range(graph.clients)}
    headed = False
    for line, content in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in content.partition("#")[0].split(",", 10)]
        if cells == [""]:
            continue
        if not headed:
            if tuple(cells) != columns:
                _refuse(field, path, line, f"columns {','.join(cells)[:80]}, which must be {','.join(columns)}")
            headed = True
            continue
        if len(cells) != 3:
            _refuse(field, path, line, f"{len(cells)} values, not {','.join(columns)}")
        if cells[0] not in numbers:
            _refuse(field, path, line, f"client {cells[0][:80]!r}, which is not in the graph")
        values = _number(cells[1]), _number(cells[2])
        for name, cell, value in zip(columns[1:], cells[1:], values, strict=True):
            if not math.isfinite(value):
                _refuse(field, path, line, f"{name} = {cell[:80]!r}, which must be a number")
        yield line, numbers[cells[0]], values
    if not headed:
        raise InputError(field, path, f"a file with columns {','.join(columns)}")


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _refuse(field: str, path: str, line: int, what: str) -> NoReturn:
    raise InputError(field, path, f"a file without mistakes: line {line} has {what}")
