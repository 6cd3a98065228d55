"""The kinds of graphs, one function each, and the draw of a connected one.

To add a kind, add a function here under ``@GRAPHS.register()``. Its first docstring line is what users read; its
arguments are ``n``, the number of clients; ``seed``, a word, where it is random (it is then drawn again until the graph
is connected); and its parameters, each annotated with its range and a `Doc`. Configuration, template, docs and
``dspodfl list`` follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le, Lt

from dspodfl import rng
from dspodfl.errors import WORD, Count, Doc, EventProbability, InputError, Positive, Registry
from dspodfl.network.graph import Graph
from dspodfl.rng import Stream

ATTEMPTS = 100_000

GRAPHS: Registry[Graph] = Registry("graph.kind", context=("n", "seed"))
"""The kinds of graphs. Facts: ``links``, the expected number of links from n and the parameters (n if not given);
``objects``, whether NetworkX draws it, link by link; ``pairs``, whether each pair of clients is drawn; ``isolated``,
which tells fast of a word whether the graph that it draws has a client without neighbours."""

_FEW = 64
"""Clients of a graph whose pairs are all looked through in less time than a tree of them is made."""
_PAIRS = 2**22
"""Pairs of clients drawn in one batch."""
_MOST_SHUFFLED = 20_000_000
"""Ends of links that a draw of a regular graph may shuffle before it is given up."""
_HOPELESS = -20.0
"""Logarithm of a probability that is none."""

Rows = Annotated[
    Count | None,
    Doc("number of rows, a divisor of the number of clients; as square as possible if not given", example=2),
]
Columns = Annotated[Count | None, Doc("number of columns, as for rows", example=5)]


def _pairs(n: int) -> float:
    return n * (n - 1) / 2


def _uniforms(word: int) -> np.random.RandomState:
    """The Mersenne Twister as Python's own generator starts it from a word: the same uniforms, many at a time."""
    return np.random.RandomState([word])


def _isolated(source: np.random.RandomState, n: int, word: int, radius: float = 0.4) -> bool:
    """Whether some client of a small geometric graph surely has no neighbour; most draws of sparse ones have one.

    ``source`` is started again from the word: that takes a fiftieth of making a new one.
    """
    if not 1 < n <= _FEW or not radius > 0:  # a radius that is none is refused by name, by the generator
        return False
    source.seed([word])
    x, y = source.random_sample((n, 2)).T
    square = (x[:, None] - x) ** 2 + (y[:, None] - y) ** 2
    np.fill_diagonal(square, np.inf)
    return bool(square.min(axis=1).max() > radius**2 * (1 + 1e-9))  # what is near the radius is not decided here


def _within(radius: float) -> float:
    """The probability that two uniform points of the unit square are within a radius of each other."""
    if radius >= 1.0:
        return 1.0
    return math.pi * radius**2 - 8.0 / 3.0 * radius**3 + radius**4 / 2.0


@GRAPHS.register(links=lambda n, radius: _pairs(n) * _within(radius), isolated=_isolated)
def geometric(
    n: int, seed: int, radius: Annotated[Positive, Doc("the distance within which two clients are linked")] = 0.4
) -> Graph:
    """Clients uniform in the unit square, linked within ``radius``; redrawn until connected.

    As `networkx.random_geometric_graph`: the same positions and links from the same seed.
    """
    from scipy.spatial import cKDTree

    if not radius > 0:
        raise InputError("graph.radius", radius, "a number above 0")
    positions = _uniforms(seed).random_sample((n, 2))
    return Graph.from_edges(n, cKDTree(positions).query_pairs(radius, output_type="ndarray"), positions)


def _without_loops(pairs: np.ndarray) -> np.ndarray:
    return np.asarray(pairs[pairs[:, 0] != pairs[:, 1]])


@GRAPHS.register()
def ring(n: int) -> Graph:
    """A cycle."""
    at = np.arange(n)
    return Graph.from_edges(n, _without_loops(np.stack([at, (at + 1) % n], axis=1)))


@GRAPHS.register()
def path(n: int) -> Graph:
    """A line."""
    at = np.arange(n - 1)
    return Graph.from_edges(n, np.stack([at, at + 1], axis=1))


@GRAPHS.register()
def star(n: int) -> Graph:
    """Client 0 in the middle."""
    at = np.arange(1, n)
    return Graph.from_edges(n, np.stack([np.zeros_like(at), at], axis=1))


@GRAPHS.register(links=_pairs)
def complete(n: int) -> Graph:
    """Each client linked to every other."""
    return Graph.from_edges(n, np.stack(np.triu_indices(n, 1), axis=1))


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


@GRAPHS.register(links=lambda n, rows, columns: 2.0 * n)
def grid(n: int, rows: Rows = None, columns: Columns = None) -> Graph:
    """A grid of rows × columns."""
    return _lattice(n, rows, columns, periodic=False)


@GRAPHS.register(links=lambda n, rows, columns: 2.0 * n)
def torus(n: int, rows: Rows = None, columns: Columns = None) -> Graph:
    """A grid whose opposite sides are joined."""
    return _lattice(n, rows, columns, periodic=True)


@GRAPHS.register(links=lambda n, p: _pairs(n) * p, pairs=True)
def erdos_renyi(
    n: int, seed: int, p: Annotated[EventProbability, Doc("the probability that a pair is linked")] = 0.5
) -> Graph:
    """Each pair linked with probability ``p``; redrawn until connected.

    As `networkx.gnp_random_graph`: the same links from the same seed.
    """
    if not 0 <= p <= 1:
        raise InputError("graph.p", p, "a probability, from 0 to 1")
    if p == 1:
        return complete(n)
    uniforms, found = _uniforms(seed), [np.empty((0, 2), dtype=np.int64)]
    ends = np.cumsum(np.arange(n - 1, 0, -1)) if p > 0 and n > 1 else np.zeros(0, dtype=np.int64)  # of rows of pairs
    for first in range(0, int(ends[-1]) if len(ends) else 0, _PAIRS):
        chosen = first + np.flatnonzero(uniforms.random_sample(min(_PAIRS, int(ends[-1]) - first)) < p)
        i = np.searchsorted(ends, chosen, side="right")
        found.append(np.stack([i, n - (ends[i] - chosen)], axis=1))
    return Graph.from_edges(n, np.concatenate(found))


@GRAPHS.register(links=lambda n, degree: min(_pairs(n), n * degree / 2), objects=True)
def regular(
    n: int,
    seed: int,
    degree: Annotated[Count, Doc("neighbours of each client; degree × clients must be even")] = 4,
) -> Graph:
    """Random, each client with ``degree`` neighbours; redrawn until connected."""
    if not 1 <= degree < n or n * degree % 2:
        raise InputError(
            "graph.degree", degree, f"from 1 to below the number of clients, {n}, with degree × clients even"
        )
    import networkx as nx  # slow to import

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


@GRAPHS.register(links=lambda n, neighbours, rewire: min(_pairs(n), n * neighbours / 2), objects=True)
def small_world(
    n: int,
    seed: int,
    neighbours: Annotated[int, Ge(2), Lt(WORD), Doc("neighbours of each client in the ring, even")] = 4,
    rewire: Annotated[float, Ge(0), Le(1), Doc("the probability that a link is rewired")] = 0.1,
) -> Graph:
    """Watts–Strogatz: a ring whose links are rewired at random; redrawn until connected."""
    if not 2 <= neighbours < n or neighbours % 2:
        raise InputError("graph.neighbours", neighbours, f"an even number from 2 to below the number of clients, {n}")
    if not 0 <= rewire <= 1:
        raise InputError("graph.rewire", rewire, "a probability, from 0 to 1")
    import networkx as nx  # slow to import

    return Graph.from_networkx(nx.watts_strogatz_graph(n, neighbours, rewire, seed=seed))


@GRAPHS.register(links=lambda n: min(_pairs(n), float(n * max(1, (n - 1).bit_length()))))
def exponential(n: int) -> Graph:
    """Client i linked to i ± 1, 2, 4, 8, … (modulo the number of clients)."""
    at, hops = np.arange(n)[:, None], 2 ** np.arange(max(1, (n - 1).bit_length()))
    pairs = np.stack(np.broadcast_arrays(at, (at + hops) % n), axis=-1).reshape(-1, 2)
    return Graph.from_edges(n, _without_loops(pairs))


def log_connected(kind: str, n: int, parameters: Mapping[str, Any]) -> float:
    """Return what the logarithm of the probability that one draw of a graph is connected is about, or below.

    A connected graph has a spanning tree, of which there are nⁿ⁻², each with probability pⁿ⁻¹ at most; and no client
    without neighbours, of whom n (1 − p)ⁿ⁻¹ are expected.

    >>> round(log_connected("erdos_renyi", 3, {"p": 0.001}), 1)
    -12.7
    """
    if kind == "regular" and parameters.get("degree") == 1 and n > 2:
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
        kind: a name of `GRAPHS`.
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
    entry = GRAPHS[kind]
    if not entry.takes("seed"):
        return entry.maker(n, **parameters)
    given = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    what, advice = f"{kind} with {n} clients, {given}", "change the parameters or set allow_disconnected = true"
    hopeless = log_connected(kind, n, parameters) + math.log(ATTEMPTS) < _HOPELESS
    if hopeless and not allow_disconnected:
        raise InputError("graph", what, f"connected, but none of {ATTEMPTS:,} draws would be; {advice}")
    source = np.random.RandomState(0)
    isolated = None if allow_disconnected else entry.facts.get("isolated")
    for first in range(0, ATTEMPTS, 100):
        attempts = np.arange(first, min(first + 100, ATTEMPTS))
        words = rng.words(seed, Stream.GRAPH, entity, k=attempts)[:, 0].tolist()
        for attempt, word in enumerate(words, first):
            if on_draw:
                on_draw(attempt)
            if isolated is not None and isolated(source, n, word, **parameters):
                continue
            drawn = entry.maker(n, seed=word, **parameters)
            if allow_disconnected or drawn.connected:
                return drawn
    raise InputError("graph", what, f"connected, but none of {ATTEMPTS:,} draws was; {advice}")
