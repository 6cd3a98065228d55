"""Graphs from files: edge lists and GraphML."""

from __future__ import annotations

import io
from math import isfinite
from pathlib import Path
from xml.parsers import expat

import networkx as nx
import numpy as np

from dspodfl.errors import DataError, InputError, bounded
from dspodfl.network.graph import Graph

HEADERS = (["source", "target"], ["from", "to"], ["i", "j"])
"""What the first line of an edge list may say instead of naming a link."""
_GRAPHML = 64 * 2**20
"""Bytes of a GraphML file, whose elements are objects of Python."""


def read_graph(path: str | Path, *, directed: bool = False) -> Graph:
    """Read a graph from an edge list (two columns: comma, semicolon, tab or blanks), an adjacency matrix or GraphML.

    Clients are numbered by their names where all are integers, otherwise as they appear; names are kept as labels.
    A header (``source,target``) in the first line is passed over; a line with one name is a client without links yet.

    Args:
        path: a regular file; ``.graphml`` and ``.xml`` are GraphML, everything else is an edge list.
        directed: whether the lines of an edge list, the entries of a matrix and the edges of a directed GraphML file
            are arcs, from the first client to the second, from the row to the column, from source to target.

    Returns:
        The graph.

    Raises:
        InputError: it cannot be read, has no client, or is directed where it may not be.

    """
    path = Path(path)
    try:
        bounded.check(path)
    except bounded.MissingFileError:
        raise InputError("graph.file", str(path), "an existing edge list, adjacency matrix or GraphML file") from None
    except DataError as error:
        raise _unreadable(path, error) from None
    try:
        read = _graphml if path.suffix.lower() in (".graphml", ".xml") else _edge_list
        graph = read(path, directed)
    except InputError as error:
        where = "" if str(path) in str(error.value) else f"{path}: "
        raise InputError("graph.file", f"{where}{error.value}", error.allowed) from None
    except (DataError, ValueError, LookupError, TypeError, AttributeError, SyntaxError, nx.NetworkXError) as error:
        raise _unreadable(path, error) from None
    if graph.n == 0:
        raise InputError("graph.file", str(path), "a file with at least one client")
    return graph


def _unreadable(path: Path, error: Exception) -> InputError:
    allowed = "a readable edge list, adjacency matrix or GraphML file"
    return InputError("graph.file", str(path), f"{allowed} ({' '.join(str(error).split())})")


# --- GraphML ----------------------------------------------------------------------------------------------------


def _graphml(path: Path, directed: bool) -> Graph:
    """Read a GraphML file; what it calls ``pos``, ``x`` or ``y`` is a position only where it is one."""
    content = bounded.read_bytes(path, _GRAPHML)
    _Outline(content)
    graph = nx.read_graphml(io.BytesIO(content))
    for _, about in graph.nodes(data=True):
        about.pop("pos", None)  # GraphML has no pairs of numbers
        if not all(isinstance(about.get(key), int | float) and isfinite(about[key]) for key in ("x", "y")):
            about.pop("x", None)
    return Graph.from_networkx(_sorted(graph), directed=directed)


class _Outline:
    """What a GraphML file must be for NetworkX to read all of it: it drops, or merges, the rest without a word."""

    def __init__(self, content: bytes) -> None:
        self._depth, self._graphs, self._inside = 0, 0, 0
        self._nodes: set[str] = set()
        self._ends: list[str] = []
        parser = expat.ParserCreate(namespace_separator="}")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            raise ValueError(str(error)) from None
        unknown = [name for name in self._ends if name not in self._nodes]
        if unknown:
            raise _must(f"an edge of node {unknown[0]!r}", "a file that has a <node> for both ends of every <edge>")

    def _doctype(self, *_: object) -> None:
        raise _must("<!DOCTYPE …>", "GraphML without a document type: it may define entities")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > bounded.DEPTH:
            raise _must(f"more than {bounded.DEPTH} elements inside one another", "nested less deep")
        element = name.rpartition("}")[2]
        if element == "graph":
            if self._inside:
                raise _must("a <graph> inside a <graph>", "one flat graph: nested graphs have no meaning here")
            if self._graphs:
                raise _must("a second <graph>", "a file with one graph")
            self._graphs, self._inside = self._graphs + 1, self._depth
        elif element == "node" and self._inside:
            self._node(attributes)
        elif element == "edge" and self._inside:
            ends = [attributes.get(key) for key in ("source", "target")]
            if None in ends:
                raise _must(f"an <edge> without {'source' if ends[0] is None else 'target'}", "with both")
            self._ends += [str(end) for end in ends]
        elif element in ("hyperedge", "port"):
            raise _must(f"a <{element}>", "made of nodes and edges alone")

    def _node(self, attributes: dict[str, str]) -> None:
        name = attributes.get("id")
        if name is None:
            raise _must("a <node> without id", "a file whose nodes all have ids: they are the clients' names")
        if name in self._nodes:
            raise _must(f"two nodes with id {name!r}", "a file whose nodes have different ids")
        self._nodes.add(name)

    def _end(self, name: str) -> None:
        if self._depth == self._inside:
            self._inside = 0
        self._depth -= 1


def _must(found: str, allowed: str) -> InputError:
    return InputError("graph.file", found, allowed)


def _sorted(graph: nx.Graph) -> nx.Graph:
    try:
        order = sorted(graph.nodes, key=int)
    except (TypeError, ValueError):
        return graph
    out = nx.Graph() if not graph.is_directed() and not graph.is_multigraph() else graph.__class__()
    out.add_nodes_from((node, graph.nodes[node]) for node in order)
    out.add_edges_from(graph.edges)
    return out


# --- edge lists -------------------------------------------------------------------------------------------------


def _edge_list(path: Path, directed: bool) -> Graph:
    numbers: dict[str, int] = {}
    links: list[tuple[int, int]] = []
    lines = bounded.read_text(path).splitlines()
    matrix = _adjacency(lines, directed)
    if matrix is not None:
        return matrix
    for line_number, line in enumerate(lines, 1):
        names = _names(line)
        header = not numbers and [name.lower() for name in names[:2]] in HEADERS
        if header or not names:
            continue
        if len(names) > 2:
            allowed = "two names a line, or as many rows as columns of an adjacency matrix"
            raise InputError("graph.file", f"{path}, line {line_number}: {line!r}", allowed)
        ends = [numbers.setdefault(name, len(numbers)) for name in names]
        if len(ends) == 2:
            if ends[0] == ends[1]:
                raise InputError("graph.file", f"{path}: self-loop at {names[0]!r}", "without self-loops")
            links.append((ends[0], ends[1]))
    names = list(numbers)
    try:
        order = sorted(range(len(names)), key=lambda place: int(names[place]))
    except ValueError:
        order = list(range(len(names)))
    place = np.empty(len(names), dtype=np.int64)
    place[order] = np.arange(len(names))
    pairs = place[np.array(links, dtype=np.int64).reshape(-1, 2)]
    make = Graph.from_arcs if directed else Graph.from_edges
    return make(len(names), pairs, labels=tuple(names[n] for n in order))


def _adjacency(lines: list[str], directed: bool) -> Graph | None:
    """The graph of an adjacency matrix of at least three clients; None where the lines are no square of numbers."""
    first = next((names for line in lines if (names := _names(line))), [])
    if len(first) < 3:
        return None
    rows = [names for line in lines if (names := _names(line))]
    if any(len(row) != len(rows) for row in rows):
        return None
    try:
        matrix = [[float(entry) for entry in row] for row in rows]
    except ValueError:
        return None
    try:
        return Graph.from_adjacency(matrix, directed=directed)
    except InputError as error:
        value = error.value if error.field == "graph" else f"{error.field.replace('graph', 'entry ')} = {error.value}"
        raise InputError("graph.file", value, error.allowed) from None


def _names(line: str) -> list[str]:
    text = line.partition("#")[0].strip()
    for mark in (",", ";", "\t"):
        if mark in text:
            return [name for part in text.split(mark) if (name := part.strip().strip('"'))]
    return text.split()
