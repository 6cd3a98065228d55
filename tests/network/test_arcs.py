"""Directed graphs: arcs of links, degrees, connection, files and rates."""

import networkx as nx
import numpy as np
import pytest

from dspodfl.errors import InputError
from dspodfl.network import Graph, as_graph, generate, read_graph, read_rates
from dspodfl.network.graph import union
from dspodfl.network.laws import FixedValues, Uniform
from dspodfl.network.rates import Rates

ARCS = [(2, 0), (0, 1), (1, 2), (1, 0)]
K = np.zeros(1, dtype=np.int64)


def arcs_of(graph):
    return sorted(map(tuple, graph.arc_list.tolist()))


def test_a_link_exists_if_one_of_its_arcs_does():
    graph = Graph.from_arcs(4, ARCS)
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert graph.arcs.tolist() == [[True, True], [False, True], [True, False]]
    assert arcs_of(graph) == sorted(ARCS)
    assert graph.in_degree.tolist() == [2, 1, 1, 0] and graph.out_degree.tolist() == [1, 2, 1, 0]


def test_connected_is_along_arcs():
    assert Graph.from_arcs(3, [(0, 1), (1, 2), (2, 0)]).connected
    assert not Graph.from_arcs(3, [(0, 1), (1, 2), (0, 2)]).connected
    assert Graph.from_edges(3, [(0, 1), (1, 2)]).both_ways().connected


@pytest.mark.parametrize("seed", range(3))
def test_a_digraph_from_and_to_networkx_is_the_same(seed):
    random = nx.gnp_random_graph(6, 0.4, seed=seed, directed=True)
    graph = Graph.from_networkx(random, directed=True)
    assert arcs_of(graph) == sorted(random.edges)
    back = graph.to_networkx()
    assert back.is_directed() and set(back.edges) == set(random.edges)
    assert graph.connected == nx.is_strongly_connected(random)
    with pytest.raises(InputError, match=r"graph\.directed = true"):
        Graph.from_networkx(random)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "from,to\n2,0\n0,1\n1,2\n1,0\n"),
        ("b.csv", "0,1,0\n1,0,1\n1,0,0\n"),
    ],
)
def test_files_list_arcs(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert arcs_of(read_graph(tmp_path / name, directed=True)) == sorted(ARCS)


def test_graphml_may_be_directed(tmp_path):
    nx.write_graphml(nx.DiGraph(ARCS), tmp_path / "a.graphml")
    assert arcs_of(read_graph(tmp_path / "a.graphml", directed=True)) == sorted(ARCS)
    with pytest.raises(InputError, match="undirected"):
        read_graph(tmp_path / "a.graphml")


def test_pairs_names_and_matrices_are_arcs():
    matrix = np.zeros((3, 3), dtype=int)
    for i, j in ARCS:
        matrix[i, j] = 1
    names = ["a", "b", "c"]
    for given in (ARCS, np.array(ARCS), matrix, matrix.tolist()):
        assert arcs_of(as_graph(given, directed=True)) == sorted(ARCS)
    named = as_graph([(names[i], names[j]) for i, j in ARCS], directed=True)
    assert {(named.label(i), named.label(j)) for i, j in named.arc_list} == {(names[i], names[j]) for i, j in ARCS}


def test_rates_of_arcs_are_listed_in_their_order_and_missing_ones_are_zero():
    graph = Graph.from_arcs(3, ARCS)
    rates = Rates(graph, 0, FixedValues(1.0), FixedValues([0.1, 0.2, 0.3, 0.4]))
    assert graph.arc_list.tolist() == [[0, 1], [1, 0], [2, 0], [1, 2]]
    assert rates.link(K).tolist() == [[0.1, 0.0, 0.4]] and rates.back(K).tolist() == [[0.2, 0.3, 0.0]]
    with pytest.raises(InputError, match="one value for each of the 4 arcs"):
        Rates(graph, 0, FixedValues(1.0), FixedValues([0.1, 0.2, 0.3])).link(K)


def test_rates_of_arcs_are_read_from_source_to_target(tmp_path):
    rates = {(0, 1): 0.1, (1, 0): 0.2, (2, 0): 0.3, (1, 2): 0.4}
    rows = "\n".join(f"{i},{j},{rate}" for (i, j), rate in reversed(rates.items()))
    (tmp_path / "rates.csv").write_text(f"source,target,rate\n{rows}\n")
    graph = Graph.from_arcs(3, ARCS)
    assert read_rates(str(tmp_path / "rates.csv"), graph, "rates.link") == [0.1, 0.2, 0.3, 0.4]
    with pytest.raises(InputError, match="once"):
        read_rates(str(tmp_path / "rates.csv"), Graph.from_edges(3, graph.edges), "rates.link")


def test_drawn_rates_of_directions_differ_and_are_counted_where_they_are_clipped():
    graph = generate("complete", 6, 0).both_ways()
    rates = Rates(graph, 3, Uniform(), Uniform(), floor=0.5)
    assert np.abs(rates.link(K) - rates.back(K)).max() > 0.1
    clipped = int((rates.link(K) == 0.5).sum() + (rates.back(K) == 0.5).sum())
    assert rates.clipped()[1] == clipped > 0


def test_graphs_that_follow_each_other_have_both_directions_or_none():
    ring, star = (generate(kind, 4, 0) for kind in ("ring", "star"))
    assert union([ring.both_ways(), star]).arcs.all() and union([ring, star]).arcs is None
    with pytest.raises(InputError, match="both directions"):
        union([Graph.from_arcs(4, [(0, 1)]), star])
