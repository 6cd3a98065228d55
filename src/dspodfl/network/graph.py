"""Graphs of clients: links in one order, from and to what users have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dspodfl.errors import InputError

if TYPE_CHECKING:
    import networkx as nx  # slow to import


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph on clients 0 … n − 1, without loops: undirected, or with directions that a link has (``arcs``).

    Attributes:
        n: The number of clients.
        edges: The links, shape (links, 2), int64: each row (i, j) with i < j, rows in lexicographic order. This is the
            order in which links are counted and summed everywhere.
        positions: The positions of the clients, shape (n, 2), if they have some.
        labels: The user's names of the clients, if there are some.
        arcs: Which directions each link (i, j) has, i → j and j → i, shape (links, 2), bool; None: undirected.
        server: Whether the last node is no client but a server, which has neither data nor steps.

    >>> Graph.from_edges(3, [(2, 1), (0, 1)]).edges.tolist()
    [[0, 1], [1, 2]]
    """

    n: int
    edges: np.ndarray
    positions: np.ndarray | None = field(default=None, compare=False)
    labels: tuple[str, ...] | None = None
    arcs: np.ndarray | None = None
    server: bool = False

    @property
    def clients(self) -> int:
        """The number of nodes that are clients: all but a server."""
        return self.n - self.server

    @staticmethod
    def from_edges(
        n: int,
        edges: Iterable[Sequence[int]],
        positions: np.ndarray | None = None,
        labels: tuple[str, ...] | None = None,
    ) -> Graph:
        """Make a graph from pairs of clients.

        Args:
            n: The number of clients.
            edges: Pairs in any order and orientation, (links, 2); repeated pairs are one link.
            positions: The positions of the clients, (n, 2).
            labels: The names of the clients.

        Returns:
            The graph.

        Raises:
            InputError: A pair names a client twice, or one that does not exist.
        """
        given = edges if isinstance(edges, np.ndarray) else list(edges)
        pairs = np.asarray(given, dtype=np.int64).reshape(-1, 2)
        if pairs.size and (pairs.min() < 0 or pairs.max() >= n or (pairs[:, 0] == pairs[:, 1]).any()):
            raise InputError("graph", pairs.tolist()[:5], f"links between two different clients of 0 … {n - 1}")
        return Graph(n, _in_order(n, pairs), positions, labels)

    @staticmethod
    def from_arcs(
        n: int,
        arcs: Iterable[Sequence[int]],
        positions: np.ndarray | None = None,
        labels: tuple[str, ...] | None = None,
    ) -> Graph:
        """Make a directed graph: clients are linked if one of them sends to the other.

        Args:
            n: The number of clients.
            arcs: Pairs (from, to) in any order, (arcs, 2); repeated pairs are one arc.
            positions: The positions of the clients, (n, 2).
            labels: The names of the clients.

        Returns:
            The graph.

        Raises:
            InputError: A pair names a client twice, or one that does not exist.

        >>> ring = Graph.from_arcs(3, [(0, 1), (1, 2), (2, 0)])
        >>> ring.edges.tolist(), ring.arcs.tolist()
        ([[0, 1], [0, 2], [1, 2]], [[True, False], [False, True], [True, False]])
        """
        given = arcs if isinstance(arcs, np.ndarray) else list(arcs)
        pairs = np.asarray(given, dtype=np.int64).reshape(-1, 2)
        graph = Graph.from_edges(n, pairs, positions, labels)
        there = np.zeros((graph.links, 2), dtype=bool)
        link = np.searchsorted(graph.edges @ [n, 1], pairs.min(axis=1) * n + pairs.max(axis=1))
        there[link, (pairs[:, 0] > pairs[:, 1]).astype(np.int64)] = True
        return replace(graph, arcs=there)

    @staticmethod
    def from_networkx(graph: nx.Graph, *, directed: bool = False) -> Graph:
        """Make a graph from a NetworkX graph: clients in its node order, with labels and 2-D ``pos``.

        Args:
            graph: A graph without parallel edges and loops.
            directed: Whether it may be a ``DiGraph``, whose edges are arcs.

        Returns:
            The graph.

        Raises:
            InputError: The graph has parallel edges or a loop, or is directed where it may not be.

        >>> import networkx as nx
        >>> Graph.from_networkx(nx.Graph([("lab", "ward")])).labels
        ('lab', 'ward')
        """
        if graph.is_multigraph() or (graph.is_directed() and not directed):
            kind = "a graph" if directed else "an undirected graph"
            hint = "" if directed else " (or graph.directed = true)" if not graph.is_multigraph() else ""
            raise InputError("graph", type(graph).__name__, f"{kind} without parallel edges{hint}")
        nodes = list(graph.nodes)
        number = {node: i for i, node in enumerate(nodes)}
        loops = [node for node in nodes if graph.has_edge(node, node)]
        if loops:
            raise InputError("graph", f"self-loop at {loops[0]!r}", "without self-loops")
        where = [graph.nodes[v].get("pos", (graph.nodes[v].get("x"), graph.nodes[v].get("y"))) for v in nodes]
        known = bool(nodes) and all(len(p) == 2 and None not in p for p in where)
        positions = np.array(where, dtype=np.float64) if known else None
        labels = None if nodes == list(range(len(nodes))) else tuple(str(v) for v in nodes)
        make = Graph.from_arcs if graph.is_directed() else Graph.from_edges
        return make(len(nodes), [(number[a], number[b]) for a, b in graph.edges], positions, labels)

    @staticmethod
    def from_adjacency(matrix: Any, *, directed: bool = False) -> Graph:
        """Make a graph from an adjacency matrix.

        Args:
            matrix: Shape (n, n), symmetric, with zeros on its diagonal; an entry above 0 is a link, whatever its
                weight. A NumPy array, a SciPy sparse matrix or array, a torch tensor, a table or nested lists.
            directed: Whether the entry of row i and column j is an arc from i to j; the matrix need not be symmetric.

        Returns:
            The graph.

        Raises:
            InputError: It is not square, not symmetric, has a negative entry or one that is not finite, or a loop.

        >>> Graph.from_adjacency([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).edges.tolist()
        [[0, 1], [1, 2]]
        """
        from scipy.sparse import coo_array, issparse

        given = coo_array(matrix if issparse(matrix) else _matrix(matrix))
        given.sum_duplicates()
        if given.ndim != 2 or given.shape[0] != given.shape[1]:
            raise InputError("graph", f"a matrix of shape {given.shape}", "a square adjacency matrix")
        i, j, entries = given.row, given.col, given.data
        _refuse_entry(
            i, j, ~np.isfinite(entries) | (entries < 0), entries, "0 where there is no link, and above 0 else"
        )
        _refuse_entry(i, j, (i == j) & (entries != 0), entries, "0: a client has no link to itself")
        n, links = given.shape[0], entries != 0
        pairs = np.stack([i[links], j[links]], axis=1).astype(np.int64)
        if directed:
            return Graph.from_arcs(n, pairs)
        there, back = pairs @ [n, 1], pairs @ [1, n]
        lonely = np.setdiff1d(there, back)
        if len(lonely):
            a, b = divmod(int(lonely[0]), n)
            raise InputError("graph", f"a link from {a} to {b} and none from {b} to {a}", "symmetric")
        return Graph.from_edges(n, pairs[pairs[:, 0] < pairs[:, 1]].tolist())

    def to_networkx(self) -> nx.Graph:
        """Return the same graph for NetworkX, with ``label`` and, where known, ``pos`` on each node."""
        import networkx as nx

        graph = nx.DiGraph() if self.directed else nx.Graph()
        for i in range(self.n):
            graph.add_node(i, label=self.label(i))
            if self.positions is not None:
                graph.nodes[i]["pos"] = tuple(self.positions[i].tolist())
        graph.add_edges_from(self.edges.tolist() if self.arcs is None else self.arc_list.tolist())
        return graph

    def both_ways(self) -> Graph:
        """Return the directed graph in which every link has both directions; a directed graph is returned as it is."""
        return self if self.directed else replace(self, arcs=np.ones((self.links, 2), dtype=bool))

    def label(self, i: int) -> str:
        """Return the user's name of client i, or its number."""
        return self.labels[i] if self.labels else str(i)

    @property
    def links(self) -> int:
        """The number of links; one with two directions is one link."""
        return len(self.edges)

    @property
    def directed(self) -> bool:
        """Whether each direction of a link is there, and fires, by itself."""
        return self.arcs is not None

    @cached_property
    def arc_list(self) -> np.ndarray:
        """The directions there are, (from, to), by link, i → j before j → i, shape (arcs, 2); undirected: all."""
        every = np.stack([self.edges, self.edges[:, ::-1]], axis=1)
        return every[np.ones((self.links, 2), dtype=bool) if self.arcs is None else self.arcs]

    @cached_property
    def in_degree(self) -> np.ndarray:
        """From how many clients each client receives, shape (n,)."""
        return np.bincount(self.arc_list[:, 1], minlength=self.n)

    @cached_property
    def out_degree(self) -> np.ndarray:
        """To how many clients each client sends, shape (n,)."""
        return np.bincount(self.arc_list[:, 0], minlength=self.n)

    @cached_property
    def degree(self) -> np.ndarray:
        """The number of neighbours of each client, shape (n,)."""
        return np.bincount(self.edges.ravel(), minlength=self.n)

    @cached_property
    def connected(self) -> bool:
        """Whether every client reaches every other, along arcs where there are some."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        if self.n > 1 and not self.degree.all():
            return False
        i, j = (self.edges if self.arcs is None else self.arc_list).T
        adjacency = coo_array((np.ones(len(i), dtype=bool), (i, j)), shape=(self.n, self.n))
        parts = connected_components(adjacency, directed=self.directed, connection="strong", return_labels=False)
        return bool(parts == 1)


def as_graph(given: Any, clients: int | None = None, *, directed: bool = False) -> Graph:
    """Make a graph from what a user has.

    Args:
        given: A `Graph`, a NetworkX graph, links as pairs of clients (a list or other iterable, or an integer array of
            shape (links, 2)), or an adjacency matrix (a square array, a SciPy sparse matrix, nested lists of more than
            two columns). A list of pairs is always links, a square array always a matrix.
        clients: The number of clients, where links alone do not say so; the largest number + 1 if None.
        directed: Whether pairs are arcs, from and to, as are the entries of a matrix, and edges of a ``DiGraph``.

    Returns:
        The graph.

    Raises:
        InputError: It is none of these.

    >>> as_graph([("lab", "clinic"), ("clinic", "ward")]).labels
    ('lab', 'clinic', 'ward')
    """
    import networkx as nx

    if isinstance(given, Graph):
        return given
    if isinstance(given, nx.Graph):
        return Graph.from_networkx(given, directed=directed)
    if hasattr(given, "tocoo"):  # SciPy's sparse matrices and arrays
        return Graph.from_adjacency(given, directed=directed)
    allowed = "a NetworkX graph, a list of pairs of clients, or a square adjacency matrix"
    if isinstance(given, str | bytes | dict) or not hasattr(given, "__iter__"):
        raise InputError("graph", given if isinstance(given, str) else type(given).__name__, allowed)
    if hasattr(given, "__array__"):
        matrix = _matrix(given)
        if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
            return Graph.from_adjacency(matrix, directed=directed)
        if matrix.ndim != 2 or matrix.shape[1] != 2 or matrix.dtype.kind not in "iu":
            raise InputError("graph", f"an array of shape {matrix.shape}, {matrix.dtype}", allowed)
        given = matrix.tolist()
    rows = [tuple(row) if isinstance(row, tuple | list) or hasattr(row, "__array__") else row for row in given]
    if rows and all(isinstance(row, tuple) and len(row) == len(rows) > 2 for row in rows):
        return Graph.from_adjacency(rows, directed=directed)
    odd = next((row for row in rows if not isinstance(row, tuple) or len(row) != 2), None)
    if odd is not None or not rows:
        raise InputError("graph", [] if odd is None else odd, allowed)
    return _from_pairs(rows, clients, directed=directed)


def _from_pairs(rows: list[tuple[Any, ...]], clients: int | None, *, directed: bool) -> Graph:
    """Links by number where all clients are numbers, else by name in the order of appearance."""
    ends = [end for row in rows for end in row]
    if all(isinstance(end, int | np.integer) and not isinstance(end, bool) for end in ends):
        make = Graph.from_arcs if directed else Graph.from_edges
        return make(max([clients or 0, *(int(end) + 1 for end in ends)]), rows)
    import networkx as nx

    try:
        return Graph.from_networkx(nx.DiGraph(rows) if directed else nx.Graph(rows), directed=directed)
    except (TypeError, nx.NetworkXError) as error:
        raise InputError("graph", rows[0], f"pairs of numbers or names ({error})") from None


def _matrix(given: Any) -> np.ndarray:
    try:
        matrix = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    except (TypeError, ValueError) as error:
        raise InputError("graph", type(given).__name__, f"a matrix of numbers ({error})") from None
    if matrix.dtype.kind not in "biuf":
        raise InputError("graph", f"a matrix of {matrix.dtype}", "a matrix of numbers")
    return matrix


def _refuse_entry(i: np.ndarray, j: np.ndarray, wrong: np.ndarray, entries: np.ndarray, allowed: str) -> None:
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise InputError(f"graph[{i[at]}, {j[at]}]", entries[at].item(), allowed)


def _in_order(n: int, pairs: np.ndarray) -> np.ndarray:
    """Each pair once, as i < j, in lexicographic order. Shapes: (pairs, 2) -> (links, 2), int64."""
    key = np.minimum(pairs[:, 0], pairs[:, 1]) * n + np.maximum(pairs[:, 0], pairs[:, 1])  # n < 2³¹: no overflow
    if len(key) > 1 and not (key[1:] > key[:-1]).all():
        key.sort()
        key = key[np.concatenate([[True], key[1:] > key[:-1]])]  # np.unique hashes, which takes ten times as long
    return np.stack(np.divmod(key, max(n, 1)), axis=1)


def union(graphs: Sequence[Graph]) -> Graph:
    """Return the union of several graphs on the same clients, with the positions and labels of the first.

    Args:
        graphs: The graphs.

    Returns:
        The union.

    Raises:
        InputError: The graphs have different numbers of clients, or links of which one direction is missing.
    """
    first = graphs[0]
    other = next((g.n for g in graphs if g.n != first.n), None)
    if other is not None:
        raise InputError("graph", f"graphs of {first.n} and {other} clients", "graphs with the same number of clients")
    if any(g.arcs is not None and not g.arcs.all() for g in graphs):
        allowed = "graphs whose links have both directions, where one follows the other"
        raise InputError("graph", "a link of one direction", allowed)
    whole = Graph.from_edges(first.n, np.concatenate([g.edges for g in graphs]), first.positions, first.labels)
    return whole.both_ways() if first.directed else whole
