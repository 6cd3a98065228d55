"""Graphs from files: edge lists, adjacency matrices and GraphML."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from xml.etree.ElementTree import ParseError

import networkx as nx

from dspodfl.errors import InputError
from dspodfl.graph import Graph

HEADERS = (["source", "target"], ["from", "to"], ["i", "j"])
"""What the first line of an edge list may say instead of naming a link."""


def read_graph(path: str | Path) -> Graph:
    """A graph from an edge list (two columns: comma, semicolon, tab or blanks), an adjacency matrix or a GraphML file.

    Clients are numbered by their names where all are integers, otherwise as they appear; names are kept as labels.
    A header (``source,target``) in the first line is passed over; a line with one name is a client without links yet.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("graph.file", str(path), "an existing edge list or GraphML file")
    try:
        graph = _graphml(path) if path.suffix.lower() in (".graphml", ".xml") else _edge_list(path)
    except InputError as error:
        if error.field == "graph.file":
            raise
        raise InputError("graph.file", f"{path}: {error.field} = {error.value}", error.allowed) from None
    except (ValueError, KeyError, OSError, ParseError, nx.NetworkXError) as error:
        raise InputError("graph.file", str(path), f"a readable edge list or GraphML file ({error})") from None
    if len(graph) == 0:
        raise InputError("graph.file", str(path), "a file with at least one client")
    try:
        return Graph.from_networkx(_sorted(graph))
    except InputError as error:
        raise InputError("graph.file", f"{path}: {error.value}", error.allowed) from None


def _graphml(path: Path) -> nx.Graph:
    """A GraphML file; what it calls ``pos``, ``x`` or ``y`` is a place only where it is one."""
    graph = nx.read_graphml(path)
    for _, about in graph.nodes(data=True):
        about.pop("pos", None)  # GraphML has no pairs of numbers
        if not all(isinstance(about.get(key), int | float) and isfinite(about[key]) for key in ("x", "y")):
            about.pop("x", None)
    return graph


def _edge_list(path: Path) -> nx.Graph:
    graph, rows = nx.Graph(), _rows(path)
    matrix = _adjacency([names for _, _, names in rows])
    if matrix is not None:
        return matrix
    for number, line, names in rows:
        if len(graph) == 0 and [n.lower() for n in names[:2]] in HEADERS:
            continue
        if len(names) > 2:
            allowed = "two names a line, or as many rows as columns of an adjacency matrix"
            raise InputError("graph.file", f"{path}, line {number}: {line!r}", allowed)
        graph.add_edge(*names) if len(names) == 2 else graph.add_node(names[0])
    return graph


def _rows(path: Path) -> list[tuple[int, str, list[str]]]:
    """The lines of a file that say something: their number, themselves, and the names or numbers in them."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        text = line.partition("#")[0].strip()
        for mark in (",", ";", "\t"):
            if mark in text:
                names = [name.strip().strip('"') for name in text.split(mark)]
                break
        else:
            names = text.split()
        names = [name for name in names if name]
        if names:
            rows.append((number, line, names))
    return rows


def _adjacency(rows: list[list[str]]) -> nx.Graph | None:
    """The graph of an adjacency matrix of at least three clients; None where the rows are no square of numbers."""
    if len(rows) < 3 or any(len(row) != len(rows) for row in rows):
        return None
    try:
        matrix = [[float(entry) for entry in row] for row in rows]
    except ValueError:
        return None
    found = Graph.from_adjacency(matrix)
    graph = nx.empty_graph(found.n)
    graph.add_edges_from(found.edges.tolist())
    return graph


def _sorted(graph: nx.Graph) -> nx.Graph:
    try:
        order = sorted(graph.nodes, key=int)
    except (TypeError, ValueError):
        return graph
    out = nx.Graph() if not graph.is_directed() and not graph.is_multigraph() else graph.__class__()
    out.add_nodes_from((node, graph.nodes[node]) for node in order)
    out.add_edges_from(graph.edges)
    return out
