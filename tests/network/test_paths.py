"""The appendix's remark on links: traffic in proportion to b, and what a slow link cannot carry goes around it."""

import numpy as np

from dspodfl.algorithms import named
from dspodfl.network import Graph, Part
from dspodfl.network.laws import FixedValues
from dspodfl.network.rates import Rates
from dspodfl.network.weights import matrix, weights

TRIANGLE = Graph.from_edges(3, [(0, 1), (0, 2), (1, 2)])
SLOW, FAST = 0.02, 0.9


def events(graph, b, iterations, seed=0):
    rates = Rates(graph, seed, FixedValues(1.0), FixedValues(b))
    return named("dspodfl")(np.arange(iterations), Part.whole(graph, seed), rates).v_hat


def arrived(links, b, iterations, seeds):
    """How much of what client 0 knew client 1 has after some iterations of mixing alone, mean over seeds."""
    graph = Graph.from_edges(3, links)
    r = weights("metropolis", 3, TRIANGLE.edges, TRIANGLE.degree)
    own = [TRIANGLE.edges.tolist().index(list(edge)) for edge in graph.edges.tolist()]
    found = []
    for seed in range(seeds):
        theta = np.array([1.0, 0.0, 0.0])
        for p in matrix(3, graph.edges, events(graph, b, iterations, seed) * r[own]):
            theta = p @ theta
        found.append(theta[1])
    return float(np.mean(found))


def test_every_link_carries_traffic_in_proportion_to_its_rate():
    b, length = [SLOW, FAST, 0.3], 40_000
    uses = events(TRIANGLE, b, length).mean(axis=0)
    assert (np.abs(uses - b) < 5 * np.sqrt(np.array(b) * (1 - np.array(b)) / length)).all()


def test_what_a_slow_link_cannot_carry_goes_around_it():
    """After five iterations client 1 has most of what it can know of client 0 by way of client 2."""
    whole = arrived([(0, 1), (0, 2), (1, 2)], [SLOW, FAST, FAST], 5, 400)
    direct = arrived([(0, 1)], [SLOW], 5, 400)
    around = arrived([(0, 2), (1, 2)], [FAST, FAST], 5, 400)
    assert around > 5 * direct
    assert abs(whole - around) < 0.2 * around
    assert whole > 0.25  # of the third that is left when all agree
