"""Graphs of clients, the generators that draw them, and the part of a graph that a process holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np

from dspodfl import rng
from dspodfl.errors import InputError, nearest
from dspodfl.rng import Stream

ATTEMPTS = 100_000


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph on clients 0 … n − 1, without loops.

    ``edges`` is an int64 array of shape (links, 2), each row (i, j) with i < j, rows in lexicographic order: the
    order in which links are counted and summed everywhere. ``labels`` are the users' own names of the clients.

    >>> Graph.from_edges(3, [(2, 1), (0, 1)]).edges.tolist()
    [[0, 1], [1, 2]]
    """

    n: int
    edges: np.ndarray
    positions: np.ndarray | None = field(default=None, compare=False)
    labels: tuple[str, ...] | None = None

    @staticmethod
    def from_edges(
        n: int,
        edges: Iterable[Sequence[int]],
        positions: np.ndarray | None = None,
        labels: tuple[str, ...] | None = None,
    ) -> Graph:
        """A graph from pairs in any order and orientation; repeated pairs are one link."""
        given = edges if isinstance(edges, np.ndarray) else list(edges)
        pairs = np.asarray(given, dtype=np.int64).reshape(-1, 2)
        if pairs.size and (pairs.min() < 0 or pairs.max() >= n or (pairs[:, 0] == pairs[:, 1]).any()):
            raise InputError("graph", pairs.tolist()[:5], f"links between two different clients of 0 … {n - 1}")
        return Graph(n, _in_order(n, pairs), positions, labels)

    @staticmethod
    def from_networkx(graph: nx.Graph) -> Graph:
        """Any undirected NetworkX graph, clients in its node order, labels and 2-D ``pos`` kept."""
        if graph.is_directed() or graph.is_multigraph():
            raise InputError("graph", type(graph).__name__, "an undirected graph without parallel edges")
        nodes = list(graph.nodes)
        number = {node: i for i, node in enumerate(nodes)}
        loops = [node for node in nodes if graph.has_edge(node, node)]
        if loops:
            raise InputError("graph", f"self-loop at {loops[0]!r}", "without self-loops")
        where = [graph.nodes[v].get("pos", (graph.nodes[v].get("x"), graph.nodes[v].get("y"))) for v in nodes]
        known = bool(nodes) and all(len(p) == 2 and None not in p for p in where)
        positions = np.array(where, dtype=np.float64) if known else None
        labels = None if nodes == list(range(len(nodes))) else tuple(str(v) for v in nodes)
        return Graph.from_edges(len(nodes), [(number[a], number[b]) for a, b in graph.edges], positions, labels)

    @staticmethod
    def from_adjacency(matrix: Any) -> Graph:
        """Make a graph of an adjacency matrix.

        Args:
            matrix: square and symmetric, with zeros on its diagonal; an entry above 0 is a link, whatever its weight.
                A NumPy array, a SciPy sparse matrix or array, a torch tensor, a table or nested lists.

        Raises:
            InputError: it is not square, not symmetric, has a negative entry or one that is not finite, or a loop.

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
        there, back = pairs @ [n, 1], pairs @ [1, n]
        lonely = np.setdiff1d(there, back)
        if len(lonely):
            a, b = divmod(int(lonely[0]), n)
            raise InputError("graph", f"a link from {a} to {b} and none from {b} to {a}", "symmetric")
        return Graph.from_edges(n, pairs[pairs[:, 0] < pairs[:, 1]].tolist())

    def to_networkx(self) -> nx.Graph:
        """The same graph for NetworkX, with ``label`` and, where known, ``pos`` on each node."""
        graph = nx.Graph()
        for i in range(self.n):
            graph.add_node(i, label=self.label(i))
            if self.positions is not None:
                graph.nodes[i]["pos"] = tuple(self.positions[i].tolist())
        graph.add_edges_from(self.edges.tolist())
        return graph

    def label(self, i: int) -> str:
        """The users' name of client i."""
        return self.labels[i] if self.labels else str(i)

    @property
    def links(self) -> int:
        """Number of undirected links."""
        return len(self.edges)

    @cached_property
    def degree(self) -> np.ndarray:
        """Number of neighbours of each client, shape (n,)."""
        return np.bincount(self.edges.ravel(), minlength=self.n)

    @cached_property
    def connected(self) -> bool:
        """Whether every client reaches every other."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        if self.n > 1 and not self.degree.all():
            return False
        i, j = self.edges.T
        adjacency = coo_array((np.ones(self.links, dtype=bool), (i, j)), shape=(self.n, self.n))
        return bool(connected_components(adjacency, directed=False, return_labels=False) == 1)


def as_graph(given: Any, clients: int | None = None) -> Graph:
    """Make a graph of what a user has.

    Args:
        given: a `Graph`, a NetworkX graph, links as pairs of clients (a list or other iterable, or an integer array of
            shape (links, 2)), or an adjacency matrix (a square array, a SciPy sparse matrix, nested lists of more than
            two columns). A list of pairs is always links, a square array always a matrix.
        clients: how many clients there are, where links alone do not say so; the largest number + 1 if None.

    Raises:
        InputError: it is none of these.

    >>> as_graph([("lab", "clinic"), ("clinic", "ward")]).labels
    ('lab', 'clinic', 'ward')
    """
    if isinstance(given, Graph):
        return given
    if isinstance(given, nx.Graph):
        return Graph.from_networkx(given)
    if hasattr(given, "tocoo"):  # SciPy's sparse matrices and arrays
        return Graph.from_adjacency(given)
    allowed = "a NetworkX graph, a list of pairs of clients, or a square adjacency matrix"
    if isinstance(given, str | bytes | dict) or not hasattr(given, "__iter__"):
        raise InputError("graph", given if isinstance(given, str) else type(given).__name__, allowed)
    if hasattr(given, "__array__"):
        matrix = _matrix(given)
        if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
            return Graph.from_adjacency(matrix)
        if matrix.ndim != 2 or matrix.shape[1] != 2 or matrix.dtype.kind not in "iu":
            raise InputError("graph", f"an array of shape {matrix.shape}, {matrix.dtype}", allowed)
        given = matrix.tolist()
    rows = [tuple(row) if isinstance(row, tuple | list) or hasattr(row, "__array__") else row for row in given]
    if rows and all(isinstance(row, tuple) and len(row) == len(rows) > 2 for row in rows):
        return Graph.from_adjacency(rows)
    odd = next((row for row in rows if not isinstance(row, tuple) or len(row) != 2), None)
    if odd is not None or not rows:
        raise InputError("graph", [] if odd is None else odd, allowed)
    return _from_pairs(rows, clients)


def _from_pairs(rows: list[tuple[Any, ...]], clients: int | None) -> Graph:
    """Links by number where all clients are numbers, else by name in the order of appearance."""
    ends = [end for row in rows for end in row]
    if all(isinstance(end, int | np.integer) and not isinstance(end, bool) for end in ends):
        return Graph.from_edges(max([clients or 0, *(int(end) + 1 for end in ends)]), rows)
    try:
        return Graph.from_networkx(nx.Graph(rows))
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
    """All links of several graphs on the same clients; positions and labels of the first."""
    first = graphs[0]
    other = next((g.n for g in graphs if g.n != first.n), None)
    if other is not None:
        raise InputError("graph", f"graphs of {first.n} and {other} clients", "graphs with the same number of clients")
    return Graph.from_edges(first.n, np.concatenate([g.edges for g in graphs]), first.positions, first.labels)


# --- generators: (n, seed word, parameters) -> graph -------------------------------------------------------------


def _shape(n: int, rows: int | None, columns: int | None) -> tuple[int, int]:
    if rows is None and columns is None:
        rows = max(r for r in range(1, int(n**0.5) + 1) if n % r == 0)
    for field_name, given in (("graph.rows", rows), ("graph.columns", columns)):
        if given is not None and (given < 1 or n % given):
            raise InputError(field_name, given, f"a divisor of the number of clients, {n}")
    rows = rows or n // (columns or 1)
    columns = columns or n // rows
    if rows * columns != n:
        raise InputError("graph.rows", rows, f"such that rows × columns is the number of clients, {n}")
    return rows, columns


def _lattice(n: int, rows: int | None, columns: int | None, *, periodic: bool) -> Graph:
    rows, columns = _shape(n, rows, columns)
    at = np.arange(n).reshape(rows, columns)
    right, below = np.roll(at, -1, axis=1), np.roll(at, -1, axis=0)
    if not periodic:
        at_right, at_below, right, below = at[:, :-1], at[:-1], right[:, :-1], below[:-1]
    else:
        at_right = at_below = at
    pairs = [np.stack([a.ravel(), b.ravel()], axis=1) for a, b in ((at_right, right), (at_below, below))]
    row, column = np.divmod(np.arange(n), columns)
    positions = np.stack([(column + 0.5) / columns, (row + 0.5) / rows], axis=1)
    return Graph.from_edges(n, _without_loops(np.concatenate(pairs)), positions)


def _without_loops(pairs: np.ndarray) -> np.ndarray:
    return np.asarray(pairs[pairs[:, 0] != pairs[:, 1]])


def _ring(n: int) -> Graph:
    at = np.arange(n)
    return Graph.from_edges(n, _without_loops(np.stack([at, (at + 1) % n], axis=1)))


def _path(n: int) -> Graph:
    at = np.arange(n - 1)
    return Graph.from_edges(n, np.stack([at, at + 1], axis=1))


def _star(n: int) -> Graph:
    at = np.arange(1, n)
    return Graph.from_edges(n, np.stack([np.zeros_like(at), at], axis=1))


def _complete(n: int) -> Graph:
    return Graph.from_edges(n, np.stack(np.triu_indices(n, 1), axis=1))


def _exponential(n: int) -> Graph:
    at, hops = np.arange(n)[:, None], 2 ** np.arange(max(1, (n - 1).bit_length()))
    pairs = np.stack(np.broadcast_arrays(at, (at + hops) % n), axis=-1).reshape(-1, 2)
    return Graph.from_edges(n, _without_loops(pairs))


def _uniforms(word: int) -> np.random.RandomState:
    """The Mersenne Twister as Python's own generator starts it from a word: the same uniforms, many at a time."""
    return np.random.RandomState([word])


def _isolated(source: np.random.RandomState, n: int, word: int, radius: float) -> bool:
    """Whether some client of a small geometric graph surely has no neighbour; most draws of sparse ones have one.

    ``source`` is started again from the word: that takes a fiftieth of making a new one.
    """
    if not 1 < n <= _FEW:
        return False
    source.seed([word])
    x, y = source.random_sample((n, 2)).T
    square = (x[:, None] - x) ** 2 + (y[:, None] - y) ** 2
    np.fill_diagonal(square, np.inf)
    return bool(square.min(axis=1).max() > radius**2 * (1 + 1e-9))  # what is near the radius is not decided here


def _geometric(n: int, seed: int, radius: float) -> Graph:
    """As `networkx.random_geometric_graph`: the same positions and links from the same seed."""
    from scipy.spatial import cKDTree

    if not radius > 0:
        raise InputError("graph.radius", radius, "a number above 0")
    positions = _uniforms(seed).random_sample((n, 2))
    return Graph.from_edges(n, cKDTree(positions).query_pairs(radius, output_type="ndarray"), positions)


def _erdos_renyi(n: int, seed: int, p: float) -> Graph:
    """As `networkx.gnp_random_graph`: the same links from the same seed."""
    if not 0 <= p <= 1:
        raise InputError("graph.p", p, "a probability, from 0 to 1")
    if p == 1:
        return _complete(n)
    uniforms, found = _uniforms(seed), [np.empty((0, 2), dtype=np.int64)]
    ends = np.cumsum(np.arange(n - 1, 0, -1)) if p > 0 and n > 1 else np.zeros(0, dtype=np.int64)  # of rows of pairs
    for first in range(0, int(ends[-1]) if len(ends) else 0, _PAIRS):
        chosen = first + np.flatnonzero(uniforms.random_sample(min(_PAIRS, int(ends[-1]) - first)) < p)
        i = np.searchsorted(ends, chosen, side="right")
        found.append(np.stack([i, n - (ends[i] - chosen)], axis=1))
    return Graph.from_edges(n, np.concatenate(found))


_FEW = 64
"""Clients of a graph whose pairs are all looked through in less time than a tree of them is made."""
_PAIRS = 2**22
"""Pairs of clients drawn in one batch."""
_MOST_SHUFFLED = 20_000_000
"""Ends of links that a draw of a regular graph may shuffle before it is given up."""


def _regular(n: int, seed: int, degree: int) -> Graph:
    if not 1 <= degree < n or n * degree % 2:
        raise InputError(
            "graph.degree", degree, f"from 1 to below the number of clients, {n}, with degree × clients even"
        )
    generator = nx.utils.create_py_random_state(seed)
    shuffle, left = generator.shuffle, max(_MOST_SHUFFLED, 20 * n * degree)

    def counted(ends: list[int]) -> None:
        nonlocal left
        left -= len(ends)
        if left < 0:
            allowed = (
                f"smaller (or graph.kind = 'complete'): no graph of {n} clients with {degree} neighbours each was found"
            )
            raise InputError("graph.degree", degree, allowed)
        shuffle(ends)

    generator.shuffle = counted  # the generator tries until it succeeds, however long that takes
    return Graph.from_networkx(nx.random_regular_graph(degree, n, seed=generator))


def _small_world(n: int, seed: int, neighbours: int, rewire: float) -> Graph:
    if not 2 <= neighbours < n or neighbours % 2:
        raise InputError("graph.neighbours", neighbours, f"an even number from 2 to below the number of clients, {n}")
    if not 0 <= rewire <= 1:
        raise InputError("graph.rewire", rewire, "a probability, from 0 to 1")
    return Graph.from_networkx(nx.watts_strogatz_graph(n, neighbours, rewire, seed=seed))


GENERATORS: dict[str, tuple[bool, Callable[..., Graph]]] = {
    "geometric": (True, _geometric),
    "ring": (False, _ring),
    "path": (False, _path),
    "star": (False, _star),
    "complete": (False, _complete),
    "grid": (False, lambda n, rows=None, columns=None: _lattice(n, rows, columns, periodic=False)),
    "torus": (False, lambda n, rows=None, columns=None: _lattice(n, rows, columns, periodic=True)),
    "erdos_renyi": (True, _erdos_renyi),
    "regular": (True, _regular),
    "small_world": (True, _small_world),
    "exponential": (False, _exponential),
}
"""Kind -> (whether it is random, its generator)."""

_HOPELESS = -20.0
"""Logarithm of a probability that is none."""


def log_connected(kind: str, n: int, parameters: Mapping[str, Any]) -> float:
    """Return what the logarithm of the probability that one draw of a graph is connected is about, or below.

    A connected graph has a spanning tree, of which there are nⁿ⁻², each with probability pⁿ⁻¹ at most; and no client
    without neighbours, of whom n (1 − p)ⁿ⁻¹ are expected.

    >>> round(log_connected("erdos_renyi", 3, {"p": 0.001}), 1)
    -12.7
    """
    if kind == "regular" and parameters["degree"] == 1 and n > 2:
        return -math.inf  # pairs
    near = {"geometric": math.pi * min(parameters.get("radius", 1.0), 1.0) ** 2, "erdos_renyi": parameters.get("p", 1)}
    p = near.get(kind, 1.0)
    if n < 2 or not 0.0 < p < 1.0:
        return 0.0
    trees = (n - 2) * math.log(n) + (n - 1) * math.log(p)
    return min(0.0, trees, -n * (1.0 - p) ** (n - 1))


def generate(
    kind: str,
    n: int,
    seed: int,
    *,
    allow_disconnected: bool = False,
    entity: int = 0,
    on_draw: Callable[[int], None] | None = None,
    **parameters: Any,
) -> Graph:
    """Return a graph of a named kind; a random one is redrawn until it is connected.

    Attempt a is seeded with the word at address (seed, GRAPH, entity, k = a); further graphs of a run, where a
    topology switches between several, are entities 1, 2, …

    Args:
        kind: a key of `GENERATORS`.
        n: number of clients.
        seed: of the run.
        allow_disconnected: keep the first draw, connected or not.
        entity: number of the graph in its run.
        on_draw: called with the number of each attempt before it is made.
        **parameters: those of the kind.

    Returns:
        The graph.

    Raises:
        InputError: a parameter does not fit, or no connected graph is, or would be, found.

    >>> generate("ring", 4, seed=0).edges.tolist()
    [[0, 1], [0, 3], [1, 2], [2, 3]]
    """
    if kind not in GENERATORS:
        raise InputError("graph.kind", kind, f"one of {', '.join(GENERATORS)}{nearest(kind, GENERATORS)}")
    drawn_at_random, generator = GENERATORS[kind]
    if not drawn_at_random:
        return generator(n, **parameters)
    given = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    what, advice = f"{kind} with {n} clients, {given}", "change the parameters or set allow_disconnected = true"
    hopeless = log_connected(kind, n, parameters) + math.log(ATTEMPTS) < _HOPELESS
    if hopeless and not allow_disconnected:
        raise InputError("graph", what, f"connected, but none of {ATTEMPTS:,} draws would be; {advice}")
    source = np.random.RandomState(0)
    # a radius that is none is left to the generator, which refuses it by name
    sifted = kind == "geometric" and not allow_disconnected and parameters.get("radius", 0) > 0
    for first in range(0, ATTEMPTS, 100):
        attempts = np.arange(first, min(first + 100, ATTEMPTS))
        words = rng.words(seed, Stream.GRAPH, entity, k=attempts)[:, 0].tolist()
        for attempt, word in enumerate(words, first):
            if on_draw:
                on_draw(attempt)
            if sifted and _isolated(source, n, word, **parameters):
                continue
            drawn = generator(n, seed=word, **parameters)
            if allow_disconnected or drawn.connected:
                return drawn
    raise InputError("graph", what, f"connected, but none of {ATTEMPTS:,} draws was; {advice}")


@dataclass(frozen=True, eq=False)
class Part:
    """The clients of one run that a process holds, the links that touch them, and the neighbour rows they need.

    Every array names addresses, so a part draws exactly the numbers that the whole would. Rows of stacked arrays
    are the owned clients in order, then the halo. The simulator holds everything: no halo.
    """

    seed: int
    client: np.ndarray  # (clients,) numbers of the owned clients in the run's graph
    halo: np.ndarray  # (halo,) numbers of neighbours whose rows are needed but not owned
    link: np.ndarray  # (links,) numbers of the links in the run's graph
    ends: np.ndarray  # (links, 2) client numbers i < j of each link

    @staticmethod
    def whole(graph: Graph, seed: int) -> Part:
        """Every client of a run."""
        return Part.of(graph, seed, range(graph.n))

    @staticmethod
    def of(graph: Graph, seed: int, clients: Iterable[int]) -> Part:
        """Some clients of a run, with every link that touches one of them."""
        owned = np.array(sorted(clients), dtype=np.int64)
        link = np.flatnonzero(np.isin(graph.edges, owned).any(axis=1))
        ends = graph.edges[link]
        return Part(seed, owned, np.setdiff1d(ends, owned), link, ends)
