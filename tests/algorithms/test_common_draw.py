"""Schedules of one common draw: all links or none, on the graph of the study or on the complete one."""

import numpy as np
import pytest
from tests.algorithms.instance import DATA, RING, B, N
from tests.worlds import make_run

from dspodfl import rng
from dspodfl.algorithms.common_draw import fires, server, skipping, together
from dspodfl.network import Graph, Part
from dspodfl.rng import Stream

RATES = make_run(data=DATA, graph=RING).rates
WHOLE = Part.whole(RING, 7)
Q = np.linspace(0.5, 1, N).tolist()
EVERY = [together(0.3), server(0.3), skipping(0.3, 0.8), skipping(0.02, Q)]
LONG = 20_000


@pytest.mark.parametrize("schedule", EVERY)
def test_all_links_fire_together_as_often_as_they_should(schedule):
    v_hat = schedule(np.arange(LONG), WHOLE, RATES).v_hat
    assert (v_hat == v_hat[:, :1]).all()
    p = schedule.probability
    assert abs(v_hat[:, 0].mean() - p) < 5 * np.sqrt(p * (1 - p) / LONG)


def test_the_draw_is_the_word_of_the_run_and_the_iteration():
    k = np.arange(50)
    expected = rng.words(7, Stream.COMMON_DRAW, k=k)[:, 0] < 0.3 * 2**32
    assert np.array_equal(fires(k, 7, 0.3), expected) and 0 < expected.sum() < 50


def test_every_client_steps_always_unless_it_skips():
    assert together(0.3)(np.arange(20), WHOLE, RATES).v.all()
    assert server(0.3)(np.arange(20), WHOLE, RATES).v.all()
    assert skipping(0.3, 1.0)(np.arange(20), WHOLE, RATES).v.all()


@pytest.mark.parametrize("schedule", EVERY)
def test_blocks_and_parts_have_the_events_of_the_whole(schedule):
    together = schedule(np.arange(600), WHOLE, RATES)
    for first, last in ((0, 1), (1, 4), (4, 317), (317, 600), (599, 600)):
        some = schedule(np.arange(first, last), WHOLE, RATES)
        assert np.array_equal(some.v, together.v[first:last]) and np.array_equal(some.v_hat, together.v_hat[first:last])
    part = Part.of(RING, 7, [1, 2, 6])
    some = schedule(np.arange(300, 400), part, RATES)
    assert np.array_equal(some.v, together.v[300:400, part.client])
    assert np.array_equal(some.v_hat, together.v_hat[300:400, part.link])


def test_a_client_computes_until_its_first_skip_of_a_round_and_not_after_it():
    found = skipping(0.1, Q)(np.arange(400), WHOLE, RATES)
    computing = dict.fromkeys(range(N), True)
    for k in range(400):
        for i in range(N):
            assert found.v[k, i] == computing[i]
            go_on = int(rng.words(7, Stream.SGD, i, k=k)[0]) < int(Q[i] * 2**32)
            computing[i] = computing[i] and go_on
        if found.v_hat[k, 0]:
            computing = dict.fromkeys(range(N), True)


def test_the_server_is_the_complete_graph_with_the_weights_of_an_average():
    named = Graph.from_edges(3, [(0, 2)], labels=("a", "b", "c"))
    complete = server().graph(named)
    assert complete.edges.tolist() == [[0, 1], [0, 2], [1, 2]] and complete.labels == named.labels
    assert np.array_equal(server().weights(np.arange(4), complete), np.full((1, 3), 1 / 3))
    assert not hasattr(together(), "graph") and len(B) == RING.links
