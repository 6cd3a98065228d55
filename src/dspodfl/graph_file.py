"""Graphs from files: edge lists and GraphML."""

from __future__ import annotations

import csv
from pathlib import Path
from xml.etree.ElementTree import ParseError

import networkx as nx

from dspodfl.errors import InputError
from dspodfl.graph import Graph


def read_graph(path: str | Path) -> Graph:
    """A graph from an edge list (two columns: comma, semicolon, tab or blanks) or a GraphML file.

    Clients are numbered by their names where all are integers, otherwise as they appear; names are kept as labels.
    A header ``source,target`` is passed over; a line with one name is a client without links so far.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("graph.file", str(path), "an existing edge list or GraphML file")
    try:
        graph = _graphml(path) if path.suffix.lower() in (".graphml", ".xml") else _edge_list(path)
    except (UnicodeDecodeError, OSError, ParseError, nx.NetworkXError, csv.Error) as error:
        raise InputError("graph.file", str(path), f"a readable edge list or GraphML file ({error})") from None
    if len(graph) == 0:
        raise InputError("graph.file", str(path), "a file with at least one client")
    return Graph.from_networkx(_sorted(graph))


def _graphml(path: Path) -> nx.Graph:
    return nx.read_graphml(path)


def _edge_list(path: Path) -> nx.Graph:
    graph = nx.Graph()
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        text = line.partition("#")[0].strip()
        for mark in (",", ";", "\t"):
            if mark in text:
                names = [name.strip().strip('"') for name in text.split(mark)]
                break
        else:
            names = text.split()
        names = [name for name in names if name]
        if not names or [n.lower() for n in names[:2]] in (["source", "target"], ["from", "to"], ["i", "j"]):
            continue
        if len(names) > 2:
            raise InputError("graph.file", f"{path}, line {number}: {line!r}", "two names a line")
        graph.add_edge(*names) if len(names) == 2 else graph.add_node(names[0])
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
