"""Graphs: what the generators draw, what is refused, and the part of a graph that a process holds."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import graphs, pairs, subsets

from dspodfl import rng
from dspodfl.errors import InputError
from dspodfl.network import GRAPHS, Graph, Part, generate
from dspodfl.network import generators as module
from dspodfl.network.graph import union
from dspodfl.rng import Stream

RANDOM = {
    "geometric": {"radius": 0.5},
    "erdos_renyi": {"p": 0.4},
    "regular": {"degree": 3},
    "small_world": {"neighbours": 4, "rewire": 0.3},
}


def linked(n, near):
    return [list(pair) for pair in pairs(n) if near(*pair)]


def steps(a, b, size):
    """How far apart two places on a circle are."""
    return min((a - b) % size, (b - a) % size)


def on_lattice(columns, rows=None):
    """Neighbours on a grid, or on a torus where rows are given."""

    def near(i, j):
        (r, c), (r2, c2) = divmod(i, columns), divmod(j, columns)
        if rows is None:
            return abs(r - r2) + abs(c - c2) == 1
        return steps(r, r2, rows) + steps(c, c2, columns) == 1

    return near


@pytest.mark.parametrize(
    ("kind", "n", "parameters", "near", "degrees"),
    [
        ("ring", 1, {}, lambda i, j: False, [0]),
        ("ring", 2, {}, lambda i, j: True, [1, 1]),
        ("ring", 3, {}, lambda i, j: True, [2, 2, 2]),
        ("ring", 7, {}, lambda i, j: steps(i, j, 7) == 1, [2] * 7),
        ("path", 1, {}, lambda i, j: False, [0]),
        ("path", 5, {}, lambda i, j: j - i == 1, [1, 2, 2, 2, 1]),
        ("star", 1, {}, lambda i, j: False, [0]),
        ("star", 5, {}, lambda i, j: i == 0, [4, 1, 1, 1, 1]),
        ("complete", 6, {}, lambda i, j: True, [5] * 6),
        ("grid", 6, {"rows": 2, "columns": 3}, on_lattice(3), [2, 3, 2, 2, 3, 2]),
        ("grid", 6, {"columns": 2}, on_lattice(2), [2, 2, 3, 3, 2, 2]),
        ("grid", 12, {}, on_lattice(4), [2, 3, 3, 2, 3, 4, 4, 3, 2, 3, 3, 2]),
        ("grid", 7, {}, on_lattice(7), [1, 2, 2, 2, 2, 2, 1]),
        ("torus", 12, {"rows": 3}, on_lattice(4, 3), [4] * 12),
        ("torus", 6, {"rows": 2}, on_lattice(3, 2), [3] * 6),
        ("torus", 4, {}, on_lattice(2, 2), [2] * 4),
        ("torus", 5, {}, on_lattice(5, 1), [2] * 5),
        ("exponential", 1, {}, lambda i, j: False, [0]),
        ("exponential", 2, {}, lambda i, j: True, [1, 1]),
        ("exponential", 8, {}, lambda i, j: steps(i, j, 8) in (1, 2, 4), [5] * 8),
        ("exponential", 11, {}, lambda i, j: bool({(j - i) % 11, (i - j) % 11} & {1, 2, 4, 8}), [8] * 11),
    ],
)
def test_a_graph_without_chance_has_exactly_its_links(kind, n, parameters, near, degrees):
    graph = generate(kind, n, seed=0, **parameters)
    assert graph.n == n
    assert graph.edges.tolist() == linked(n, near)
    assert graph.degree.tolist() == degrees
    assert graph.links == sum(degrees) // 2
    assert graph.connected


def test_every_kind_of_graph_is_tested_here():
    deterministic = {"ring", "path", "star", "complete", "grid", "torus", "exponential"}
    assert set(GRAPHS) == deterministic | set(RANDOM)


@given(st.sampled_from(sorted(RANDOM)), st.integers(0, 2**63 - 1), st.integers(5, 12).map(lambda half: 2 * half))
def test_a_random_graph_is_connected_and_the_same_for_the_same_seed(kind, seed, n):
    graph = generate(kind, n, seed, **RANDOM[kind])
    again = generate(kind, n, seed, **RANDOM[kind])
    assert graph.n == n
    assert nx.is_connected(graph.to_networkx())
    assert np.array_equal(graph.edges, again.edges)


@pytest.mark.parametrize("kind", RANDOM)
def test_other_seeds_give_other_random_graphs(kind):
    drawn = {generate(kind, 12, seed, **RANDOM[kind]).edges.tobytes() for seed in range(10)}
    assert len(drawn) == 10


@given(st.integers(0, 2**40), st.floats(0.35, 1.5))
def test_geometric_links_are_exactly_the_pairs_within_the_radius(seed, radius):
    graph = generate("geometric", 9, seed, radius=radius, allow_disconnected=True)
    at = graph.positions
    assert at.shape == (9, 2) and at.min() >= 0 and at.max() <= 1
    assert graph.edges.tolist() == linked(9, lambda i, j: np.hypot(*(at[i] - at[j])) <= radius)


@given(st.integers(0, 2**40), st.integers(1, 7))
def test_every_client_of_a_regular_graph_has_the_same_number_of_neighbours(seed, degree):
    graph = generate("regular", 10, seed, degree=degree, allow_disconnected=True)
    assert graph.degree.tolist() == [degree] * 10


def test_erdos_renyi_has_each_pair_with_its_probability():
    n, p, draws = 12, 0.3, 200
    found = sum(generate("erdos_renyi", n, s, p=p, allow_disconnected=True).links for s in range(draws))
    tried = draws * len(pairs(n))
    assert abs(found - p * tried) < 5 * np.sqrt(tried * p * (1 - p))


def test_small_world_is_a_ring_lattice_that_keeps_its_number_of_links_when_rewired():
    lattice = generate("small_world", 10, 0, neighbours=4, rewire=0.0)
    rewired = generate("small_world", 10, 0, neighbours=4, rewire=0.5)
    assert lattice.edges.tolist() == linked(10, lambda i, j: steps(i, j, 10) <= 2)
    assert rewired.links == lattice.links == 20
    assert not np.array_equal(rewired.edges, lattice.edges)


def test_a_random_graph_is_the_first_connected_one_of_its_addressed_draws():
    attempts = []
    for seed in range(20):
        for attempt in range(1000):
            word = int(rng.words(seed, Stream.GRAPH, k=attempt)[0])
            expected = nx.random_geometric_graph(12, 0.35, seed=word)
            if nx.is_connected(expected):
                break
        attempts.append(attempt)
        got = generate("geometric", 12, seed, radius=0.35)
        assert {tuple(e) for e in got.edges.tolist()} == {tuple(sorted(e)) for e in expected.edges}
    assert max(attempts) > 1  # some were redrawn, and more than once


def test_the_first_draw_is_kept_where_a_graph_may_be_disconnected():
    word = int(rng.words(3, Stream.GRAPH)[0])
    expected = nx.random_geometric_graph(20, 0.1, seed=word)
    graph = generate("geometric", 20, 3, radius=0.1, allow_disconnected=True)
    assert not graph.connected
    assert {tuple(e) for e in graph.edges.tolist()} == {tuple(sorted(e)) for e in expected.edges}


def test_further_graphs_of_a_run_are_drawn_at_their_own_entity():
    word = int(rng.words(3, Stream.GRAPH, 2)[0])
    expected = nx.gnp_random_graph(9, 0.5, seed=word)
    graph = generate("erdos_renyi", 9, 3, entity=2, allow_disconnected=True, p=0.5)
    assert {tuple(e) for e in graph.edges.tolist()} == {tuple(sorted(e)) for e in expected.edges}


def test_giving_up_names_the_clients_the_parameters_and_the_number_of_draws(monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 7)
    with pytest.raises(InputError, match=r"geometric with 30 clients, radius = 0\.01.*none of 7 draws") as caught:
        generate("geometric", 30, seed=0, radius=0.01)
    assert caught.value.field == "graph"
    assert "allow_disconnected" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "parameters", "field", "value"),
    [
        ("regular", {"degree": 10}, "graph.degree", 10),
        ("regular", {"degree": 0}, "graph.degree", 0),
        ("regular", {"degree": -2}, "graph.degree", -2),
        ("small_world", {"neighbours": 3, "rewire": 0.1}, "graph.neighbours", 3),
        ("small_world", {"neighbours": 10, "rewire": 0.1}, "graph.neighbours", 10),
        ("small_world", {"neighbours": 0, "rewire": 0.1}, "graph.neighbours", 0),
        ("small_world", {"neighbours": 4, "rewire": 1.5}, "graph.rewire", 1.5),
        ("erdos_renyi", {"p": -0.1}, "graph.p", -0.1),
        ("erdos_renyi", {"p": 1.1}, "graph.p", 1.1),
        ("geometric", {"radius": 0.0}, "graph.radius", 0.0),
        ("grid", {"rows": 3}, "graph.rows", 3),
        ("grid", {"rows": 20}, "graph.rows", 20),
        ("grid", {"rows": 0}, "graph.rows", 0),
        ("torus", {"rows": -2}, "graph.rows", -2),
        ("torus", {"columns": 4}, "graph.columns", 4),
        ("torus", {"columns": 11}, "graph.columns", 11),
        ("grid", {"rows": 5, "columns": 5}, "graph.rows", 5),
        ("mesh", {}, "graph.kind", "mesh"),
    ],
)
def test_parameters_that_no_graph_of_ten_clients_has_are_refused_by_name(kind, parameters, field, value):
    with pytest.raises(InputError) as caught:
        generate(kind, 10, seed=0, **parameters)
    assert (caught.value.field, caught.value.value) == (field, value)


def test_a_regular_graph_of_odd_degree_on_an_odd_number_of_clients_is_refused():
    with pytest.raises(InputError, match=r"graph\.degree = 3: .*5.*even"):
        generate("regular", 5, seed=0, degree=3)


def test_links_may_come_in_any_order_orientation_and_number():
    graph = Graph.from_edges(4, [(3, 1), (0, 2), (1, 3), (2, 1)])
    assert graph.edges.tolist() == [[0, 2], [1, 2], [1, 3]]
    assert graph.edges.dtype == np.int64
    assert graph.degree.tolist() == [1, 2, 2, 1]


@pytest.mark.parametrize("links", [[(0, 0)], [(0, 3)], [(-1, 1)], [(0, 1), (2, 2)]])
def test_links_to_oneself_or_to_nobody_are_refused(links):
    with pytest.raises(InputError, match="two different clients of 0 … 2"):
        Graph.from_edges(3, links)


@given(graphs(least=1, most=7))
def test_connected_and_degree_agree_with_networkx(graph):
    other = graph.to_networkx()
    assert graph.connected == nx.is_connected(other)
    assert graph.degree.tolist() == [d for _, d in other.degree]


def test_a_networkx_graph_keeps_its_order_labels_and_positions():
    other = nx.Graph([("berlin", "aachen"), ("aachen", "celle")])
    nx.set_node_attributes(other, {"berlin": (0.5, 1.0), "aachen": [0.0, 0.25], "celle": np.array([2.0, 3.0])}, "pos")
    graph = Graph.from_networkx(other)
    assert graph.labels == ("berlin", "aachen", "celle")
    assert [graph.label(i) for i in range(3)] == ["berlin", "aachen", "celle"]
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.positions.tolist() == [[0.5, 1.0], [0.0, 0.25], [2.0, 3.0]]
    back = graph.to_networkx()
    assert back.nodes[2] == {"label": "celle", "pos": (2.0, 3.0)}
    assert sorted(back.edges) == [(0, 1), (1, 2)]


def test_positions_may_also_be_x_and_y_and_are_left_out_where_a_client_has_none():
    other = nx.path_graph(2)
    nx.set_node_attributes(other, {0: 1.0, 1: 2.0}, "x")
    assert Graph.from_networkx(other).positions is None
    nx.set_node_attributes(other, {0: 3.0, 1: 4.0}, "y")
    assert Graph.from_networkx(other).positions.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    other.add_node(2)
    assert Graph.from_networkx(other).positions is None


def test_clients_that_are_numbered_anyway_have_no_labels_of_their_own():
    graph = Graph.from_networkx(nx.path_graph(3))
    assert graph.labels is None
    assert graph.label(2) == "2"


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (nx.DiGraph([(0, 1)]), "DiGraph"),
        (nx.MultiGraph([(0, 1), (0, 1)]), "MultiGraph"),
        (nx.Graph([("a", "b"), ("b", "b")]), "self-loop at 'b'"),
    ],
    ids=["directed", "multi", "self-loop"],
)
def test_networkx_graphs_with_directions_parallels_or_loops_are_refused(other, found):
    with pytest.raises(InputError) as caught:
        Graph.from_networkx(other)
    assert caught.value.value == found


@given(graphs(least=2, most=6), st.data())
def test_the_union_has_the_links_of_either_graph(one, data):
    two = Graph.from_edges(one.n, data.draw(st.sets(st.sampled_from(pairs(one.n)))))
    both = union([one, two])
    expected = {tuple(e) for e in one.edges.tolist()} | {tuple(e) for e in two.edges.tolist()}
    assert both.n == one.n
    assert both.edges.tolist() == [list(e) for e in sorted(expected)]


def test_the_union_keeps_the_positions_and_labels_of_the_first():
    first = Graph.from_edges(2, [], np.eye(2), ("a", "b"))
    both = union([first, Graph.from_edges(2, [(0, 1)])])
    assert both.labels == ("a", "b")
    assert np.array_equal(both.positions, np.eye(2))


def test_the_union_of_graphs_on_different_clients_is_refused():
    with pytest.raises(InputError, match="same number of clients"):
        union([Graph.from_edges(3, [(0, 1)]), Graph.from_edges(2, [(0, 1)])])


@given(graphs(most=9), st.data())
def test_a_part_has_the_links_that_touch_its_clients_and_the_neighbours_it_lacks(graph, data):
    owned = data.draw(subsets(graph.n))
    part = Part.of(graph, 5, reversed(owned))
    edges = graph.edges.tolist()
    touching = [n for n, (i, j) in enumerate(edges) if i in owned or j in owned]
    assert part.seed == 5
    assert part.client.tolist() == owned
    assert part.link.tolist() == touching
    assert part.ends.tolist() == [edges[n] for n in touching]
    assert part.halo.tolist() == sorted({end for n in touching for end in edges[n]} - set(owned))


@given(graphs())
def test_the_whole_has_every_link_and_no_halo(graph):
    part = Part.whole(graph, 0)
    assert part.client.tolist() == list(range(graph.n))
    assert np.array_equal(part.ends, graph.edges)
    assert part.halo.size == 0
