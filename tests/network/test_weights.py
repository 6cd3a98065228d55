"""What every weight rule promises: P(k) is symmetric, non-negative and doubly stochastic, whatever fires."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import graphs

from dspodfl.errors import InputError
from dspodfl.network import Graph, generate
from dspodfl.network.weights import WEIGHTS, degrees, matrix, weights

SUITED = {
    "metropolis": graphs(least=1, most=9),
    "lazy_metropolis": graphs(least=1, most=9),
    "max_degree": graphs(least=1, most=9),
    "equal_neighbour": st.one_of(
        st.integers(1, 9).map(lambda n: generate("ring", n, 0)),
        st.integers(1, 8).map(lambda n: generate("complete", n, 0)),
        st.integers(1, 4).map(lambda n: Graph.from_edges(n, [])),
        st.tuples(st.sampled_from([2, 3, 4, 5]), st.integers(0, 2**30)).map(
            lambda given: generate("regular", 8, given[1], degree=given[0])
        ),
    ),
}
"""Weight rule -> graphs that it is for."""


def test_every_weight_rule_is_tested_here():
    assert set(SUITED) == set(WEIGHTS)


@st.composite
def mixings(draw):
    """A rule, a graph that it is for, its weights, and some iterations of any events."""
    kind = draw(st.sampled_from(sorted(SUITED)))
    graph = draw(SUITED[kind])
    r = weights(kind, graph.n, graph.edges, graph.degree)
    iterations = draw(st.integers(1, 3))
    fired = draw(st.lists(st.booleans(), min_size=iterations * graph.links, max_size=iterations * graph.links))
    return graph, r, np.array(fired, dtype=bool).reshape(iterations, graph.links)


@given(mixings())
def test_p_is_symmetric_non_negative_and_its_rows_sum_to_one_for_any_events(mixing):
    graph, r, fired = mixing
    p = matrix(graph.n, graph.edges, r * fired)
    assert p.shape == (len(fired), graph.n, graph.n) and p.dtype == np.float64
    assert np.array_equal(p, p.transpose(0, 2, 1))
    assert p.min() >= 0
    assert np.abs(p.sum(axis=2) - 1).max() < 1e-15 * (graph.n + 1)


@given(mixings())
def test_every_client_keeps_some_of_its_own_model(mixing):
    graph, r, fired = mixing
    p = matrix(graph.n, graph.edges, r * fired)
    assert np.diagonal(p, axis1=1, axis2=2).min() > 0


@given(mixings(), st.integers(0, 2**30))
def test_mixing_preserves_the_average_for_any_events(mixing, seed):
    graph, r, fired = mixing
    models = np.random.default_rng(seed).normal(size=(graph.n, 3))
    mixed = matrix(graph.n, graph.edges, r * fired) @ models
    assert np.allclose(mixed.mean(axis=1), models.mean(axis=0), rtol=0, atol=1e-14)


@given(mixings())
def test_links_that_fire_carry_their_weight_and_the_others_none(mixing):
    graph, r, fired = mixing
    p = matrix(graph.n, graph.edges, r * fired)
    i, j = graph.edges.T
    assert np.array_equal(p[:, i, j], np.where(fired, r, 0.0))
    linked = np.eye(graph.n, dtype=bool)
    linked[i, j] = linked[j, i] = True
    assert not p[:, ~linked].any()


@given(mixings())
def test_the_weight_of_inactive_links_returns_to_the_diagonal(mixing):
    graph, r, fired = mixing
    everything = np.diagonal(matrix(graph.n, graph.edges, r))
    some = np.diagonal(matrix(graph.n, graph.edges, r * fired), axis1=1, axis2=2)
    for row, links in zip(some, fired, strict=True):
        returned = np.zeros(graph.n)
        for (i, j), weight, active in zip(graph.edges.tolist(), r, links, strict=True):
            if not active:
                returned[[i, j]] += weight
        assert np.allclose(row, everything + returned, rtol=0, atol=1e-14)


@given(mixings())
def test_nothing_is_mixed_where_nothing_fires(mixing):
    graph, r, _ = mixing
    assert np.array_equal(matrix(graph.n, graph.edges, 0 * r), np.eye(graph.n))


@pytest.mark.parametrize(
    ("kind", "each"),
    [("metropolis", 1 / 4), ("lazy_metropolis", 1 / 6), ("max_degree", 1 / 4)],
)
def test_the_weights_of_a_star_of_four_are_those_computed_by_hand(kind, each):
    star = generate("star", 4, 0)
    assert weights(kind, 4, star.edges, star.degree).tolist() == [each] * 3


@pytest.mark.parametrize(
    ("kind", "by_hand"),
    [
        ("metropolis", [Fraction(1, 3), Fraction(1, 4), Fraction(1, 4), Fraction(1, 4)]),
        ("lazy_metropolis", [Fraction(1, 4), Fraction(1, 6), Fraction(1, 6), Fraction(1, 6)]),
        ("max_degree", [Fraction(1, 4)] * 4),
    ],
)
def test_the_weights_of_a_triangle_with_a_tail_are_those_computed_by_hand(kind, by_hand):
    """Links (0,1), (0,2), (1,2), (2,3): degrees 2, 2, 3, 1."""
    graph = Graph.from_edges(4, [(0, 1), (0, 2), (1, 2), (2, 3)])
    assert weights(kind, 4, graph.edges, graph.degree).tolist() == [float(w) for w in by_hand]


def test_p_of_a_star_with_two_links_firing_is_the_matrix_computed_by_hand():
    star = generate("star", 4, 0)
    r = weights("metropolis", 4, star.edges, star.degree)
    assert matrix(4, star.edges, r * [True, False, True]).tolist() == [
        [0.50, 0.25, 0.00, 0.25],
        [0.25, 0.75, 0.00, 0.00],
        [0.00, 0.00, 1.00, 0.00],
        [0.25, 0.00, 0.00, 0.75],
    ]


@given(graphs(least=2, most=9))
def test_equal_neighbour_is_one_over_one_plus_the_degree_or_refused(graph):
    if len(set(graph.degree.tolist())) == 1:
        r = weights("equal_neighbour", graph.n, graph.edges, graph.degree)
        assert r.tolist() == [1 / (1 + graph.degree[0])] * graph.links
    else:
        with pytest.raises(InputError, match="not doubly stochastic") as caught:
            weights("equal_neighbour", graph.n, graph.edges, graph.degree)
        assert (caught.value.field, caught.value.value) == ("graph.weights", "equal_neighbour")


def test_an_unknown_weight_rule_is_refused_by_name():
    ring = generate("ring", 3, 0)
    with pytest.raises(InputError, match="one of metropolis, lazy_metropolis, max_degree, equal_neighbour"):
        weights("median", 3, ring.edges, ring.degree)


@given(graphs(least=1, most=8), st.data())
def test_degrees_count_the_links_that_are_present(graph, data):
    present = np.array(
        data.draw(st.lists(st.booleans(), min_size=2 * graph.links, max_size=2 * graph.links)), dtype=bool
    ).reshape(2, graph.links)
    counted = np.zeros((2, graph.n), dtype=int)
    for row in range(2):
        for n in np.flatnonzero(present[row]):
            for end in graph.edges[n]:
                counted[row, end] += 1
    assert np.array_equal(degrees(graph.n, graph.edges, present), counted)
