"""Graphs as people have them: links, adjacency matrices, NetworkX graphs, files."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.edge import TINY, merged, on_the_cpu, tiny

from dspodfl import Config, Graph, InputError, run
from dspodfl.network import as_graph
from dspodfl.network.graph_io import read_graph

LINKS = [(0, 1), (1, 2), (2, 3), (3, 0)]
MATRIX = nx.to_numpy_array(nx.cycle_graph(4))

FORMS = {
    "a list of pairs": LINKS,
    "a list of lists": [list(pair) for pair in LINKS],
    "pairs the other way round": [(j, i) for i, j in LINKS] + LINKS,
    "a tuple": tuple(LINKS),
    "a set": set(LINKS),
    "an iterator": iter(LINKS),
    "NumPy numbers": [tuple(np.array(pair)) for pair in LINKS],
    "an array of links": np.array([*LINKS, (0, 1)]),
    "a NetworkX graph": nx.cycle_graph(4),
    "a view of links": nx.cycle_graph(4).edges,
    "a graph": Graph.from_edges(4, LINKS),
    "a matrix": MATRIX,
    "a matrix of integers": MATRIX.astype(int),
    "a matrix of truths": MATRIX.astype(bool),
    "a matrix of weights": MATRIX * 0.3,
    "nested lists": MATRIX.tolist(),
    "a tensor": torch.from_numpy(MATRIX),
    "a sparse matrix": sparse.csr_matrix(MATRIX),
    "a sparse array": sparse.coo_array(MATRIX),
    "a sparse array with zeros": sparse.coo_array((np.zeros(1), ([0], [2])), (4, 4)) + sparse.csr_array(MATRIX),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_same_graph_is_the_same_in_every_form(form):
    found = as_graph(form)
    assert found.n == 4 and found.edges.tolist() == [[0, 1], [0, 3], [1, 2], [2, 3]] and found.labels is None


@given(st.integers(3, 9), st.integers(0, 2**30))
def test_a_matrix_and_a_list_of_links_are_the_graph_they_come_from(n, seed):
    graph = nx.gnp_random_graph(n, 0.5, seed=seed)
    wanted = Graph.from_networkx(graph).edges.tolist()
    for form in (nx.to_numpy_array(graph), nx.to_scipy_sparse_array(graph), nx.to_numpy_array(graph).tolist()):
        assert as_graph(form).edges.tolist() == wanted
    assert not wanted or as_graph(wanted, clients=n).edges.tolist() == wanted


def test_pairs_are_links_in_a_list_and_a_square_array_is_a_matrix():
    assert as_graph([(0, 2), (2, 1)]).n == 3
    assert as_graph(np.array([[0, 2], [2, 0]])).edges.tolist() == [[0, 1]]
    assert as_graph(np.array([[0, 2], [2, 1], [1, 3]])).n == 4


def test_names_are_kept_as_labels():
    found = as_graph([("lab", "ward"), ("ward", "home")])
    assert found.labels == ("lab", "ward", "home") and found.edges.tolist() == [[0, 1], [1, 2]]


def test_links_alone_say_how_many_clients_there_are_unless_the_configuration_does(monkeypatch):
    on_the_cpu(monkeypatch)
    raw = merged(
        {key: value for key, value in TINY.items() if key != "clients"}, {"data": {"partition": {"kind": "iid"}}}
    )
    assert run(Config(**raw), graph=[(0, 1), (1, 2)]).config["clients"]["count"] == 3
    more = merged(raw, {"clients": {"count": 5}, "graph": {"allow_disconnected": True}})
    assert run(Config(**more), graph=[(0, 1), (1, 2)]).config["clients"]["count"] == 5
    with pytest.raises(InputError, match=r"clients\.count = 2: must be 3"):
        run(Config(**merged(raw, {"clients": {"count": 2}})), graph=[(0, 1), (1, 2)])


def test_a_run_on_links_or_a_matrix_is_that_on_the_graph(monkeypatch):
    on_the_cpu(monkeypatch)
    expected = run(tiny(), graph=nx.cycle_graph(4)).metrics
    for form in (LINKS, MATRIX, sparse.csr_array(MATRIX)):
        result = run(tiny(), graph=form)
        assert result.metrics.equals(expected) and result.config["graph"]["kind"] == "custom"


WRONG = {
    "a word": ("ring", "graph = 'ring'"),
    "a number": (3, "graph = 'int'"),
    "nothing": ([], "graph = []"),
    "a dictionary": ({0: [1]}, "graph = 'dict'"),
    "triples": ([(0, 1, 0.5), (1, 2, 0.5)], "graph = (0, 1, 0.5)"),
    "numbers": ([0, 1, 2], "graph = 0"),
    "a link to oneself": ([(0, 0), (0, 1)], "graph = [[0, 0]"),
    "a link of names to oneself": ([("a", "a")], "self-loop at 'a'"),
    "a negative client": ([(0, -1)], "graph = [[0, -1]]"),
    "a directed graph": (nx.DiGraph([(0, 1)]), "graph = 'DiGraph'"),
    "a matrix that is not square": (np.zeros((3, 4)), "an array of shape (3, 4), float64"),
    "a flat array": (np.arange(4), "an array of shape (4,)"),
    "an array of links that are floats": (np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]), "shape (3, 2), float64"),
    "a matrix of words": (np.array([["a", "b"], ["b", "a"]]), "a matrix of <U1"),
    "a matrix of one direction": (np.triu(MATRIX), "a link from 0 to 1 and none from 1 to 0"),
    "a matrix with a loop": (np.eye(3), "graph[0, 0] = 1.0"),
    "a negative weight": (-MATRIX, "graph[0, 1] = -1.0"),
    "a weight that is not a number": (np.where(MATRIX > 0, np.nan, 0), "graph[0, 1] = nan"),
    "a sparse matrix that is not square": (sparse.csr_array((3, 4)), "a matrix of shape (3, 4)"),
    "names that cannot be": ([({}, 1)], "graph = ({}, 1)"),
}


@pytest.mark.parametrize(("form", "says"), WRONG.values(), ids=WRONG)
def test_what_is_no_graph_is_refused_in_one_line(form, says):
    with pytest.raises(InputError) as caught:
        run(tiny(), graph=form)
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1


# --- files ----------------------------------------------------------------------------------------------------


def test_a_file_may_hold_an_adjacency_matrix(tmp_path):
    file = tmp_path / "matrix.csv"
    for mark in (",", ";", " ", "\t"):
        np.savetxt(file, MATRIX, fmt="%g", delimiter=mark)
        assert read_graph(file).edges.tolist() == as_graph(LINKS).edges.tolist()


def test_a_file_of_two_columns_is_links_also_where_it_has_two_rows(tmp_path):
    (tmp_path / "links.csv").write_text("0,1\n1,2\n")
    assert read_graph(tmp_path / "links.csv").n == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0,1,0\n0,0,1\n0,1,0\n", "a link from 0 to 1 and none from 1 to 0"),
        ("1,1,0\n1,0,1\n0,1,0\n", "entry [0, 0] = 1"),
        ("0,1,0\n1,0,1\n", "line 1"),
        ("0,a,0\na,0,1\n0,1,0\n", "line 1"),
    ],
)
def test_a_matrix_in_a_file_that_is_none_is_refused_by_the_file(tmp_path, text, says):
    (tmp_path / "matrix.csv").write_text(text)
    with pytest.raises(InputError, match=r"^graph\.file = ") as caught:
        read_graph(tmp_path / "matrix.csv")
    assert says in str(caught.value) and "matrix.csv" in str(caught.value)
