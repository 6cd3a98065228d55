"""Directed runs: each direction of a link fires by itself, with its own weight, rate and cost."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worlds import MODELS, advance, make_run

from dspodfl import rng
from dspodfl.algorithms import Algorithm, make
from dspodfl.algorithms.methods.push_sum import PushSum
from dspodfl.engine import Stack, horizon
from dspodfl.errors import InputError
from dspodfl.network import Budget, Events, Graph, Part
from dspodfl.network.laws import FixedValues, Uniform
from dspodfl.network.topology import BernoulliLinks, Markov
from dspodfl.rng import Stream

ITERATIONS = 40


@st.composite
def digraphs(draw, least=2, most=7):
    """Any directed graph, connected or not."""
    n = draw(st.integers(least, most))
    every = [(i, j) for i in range(n) for j in range(n) if i != j]
    return Graph.from_arcs(n, sorted(draw(st.sets(st.sampled_from(every)))))


def run_on(graph, seed=0, **how):
    _, data = MODELS["svm"]()
    return make_run("dspodfl", seed, data=data, graph=graph, **how)


def block_of(*runs, length=ITERATIONS):
    (block,) = Stack(list(runs)).blocks(length, length)
    return block


@settings(max_examples=25, deadline=None)
@given(digraphs(), st.integers(0, 99))
def test_an_arc_that_is_missing_never_fires_and_every_other_does(graph, seed):
    events = block_of(run_on(graph, seed, link=FixedValues(1.0))).events(0)
    assert (events.v_hat == graph.arcs[:, 0]).all()
    assert (events.back == graph.arcs[:, 1]).all()


def test_directions_fire_by_themselves_each_at_its_own_rate():
    graph = Graph.from_edges(6, [(i, j) for i in range(6) for j in range(i + 1, 6)]).both_ways()
    run = run_on(graph, link=Uniform())
    events = block_of(run, length=4000).events(0)
    b, back = (rates(np.arange(1))[0] for rates in (run.rates.link, run.rates.back))
    assert np.abs(b - back).max() > 0.2
    assert np.abs(events.v_hat.mean(axis=0) - b).max() < 0.05
    assert np.abs(events.back.mean(axis=0) - back).max() < 0.05
    both = (events.v_hat & events.back).mean(axis=0)
    assert np.abs(both - b * back).max() < 0.05


def test_one_direction_draws_what_the_undirected_link_does_and_the_other_at_the_pair_turned_round():
    graph = Graph.from_edges(5, [(0, 1), (0, 3), (1, 2), (2, 4), (3, 4)])
    one, two = run_on(graph, 7), run_on(graph.both_ways(), 7)
    assert np.array_equal(one.rates.link(np.arange(1)), two.rates.link(np.arange(1)))
    plain, directed = block_of(one).events(0), block_of(two).events(0)
    assert plain.back is None
    assert np.array_equal(plain.v, directed.v) and np.array_equal(plain.v_hat, directed.v_hat)
    i, j = graph.edges.T
    k = np.arange(ITERATIONS)[:, None]
    uniform = rng.uniform(7, Stream.RATE_LINK, j, i, count=2)[:, 0]
    back = two.rates.back(np.arange(1))
    assert np.allclose(back, 1 - uniform, atol=1e-6)
    assert np.array_equal(directed.back, rng.bernoulli(rng.words(7, Stream.LINK, j, i, k)[..., 0], back))


@settings(max_examples=15, deadline=None)
@given(digraphs(), st.integers(0, 99), st.integers(0, 3))
def test_a_part_of_a_run_draws_what_the_engine_draws(graph, seed, refresh):
    run = run_on(graph, seed, refresh=refresh)
    events = block_of(run).events(0)
    part = Part.of(graph, seed, range(graph.n // 2 + 1))
    here = run.schedule(np.arange(ITERATIONS), part, run.rates)
    assert np.array_equal(here.v, events.v[:, part.client])
    assert np.array_equal(here.v_hat, events.v_hat[:, part.link])
    assert np.array_equal(here.back, events.back[:, part.link])


@settings(max_examples=25, deadline=None)
@given(digraphs(), st.integers(0, 99))
def test_weights_are_column_and_row_stochastic_with_the_degrees_of_the_graph(graph, seed):
    block = block_of(run_on(graph, seed))
    fired = [{(i, j) for e, (i, j) in enumerate(graph.edges.tolist()) if block.v_hat[t, e]} for t in range(3)]
    for t, there in enumerate(fired):
        there |= {(j, i) for e, (i, j) in enumerate(graph.edges.tolist()) if block.back[t, e]}
        a, r = np.zeros((graph.n, graph.n)), np.zeros((graph.n, graph.n))
        for e, (i, j) in enumerate(graph.edges.tolist()):
            a[i, j], a[j, i] = block.into[t, 2 * e], block.into[t, 2 * e + 1]
            r[i, j], r[j, i] = block.row[t, 2 * e], block.row[t, 2 * e + 1]
        out = [len({b for a, b in graph.arc_list.tolist() if a == i}) for i in range(graph.n)]
        into = [len({a for a, b in graph.arc_list.tolist() if b == i}) for i in range(graph.n)]
        for i in range(graph.n):
            for j in range(graph.n):
                assert a[i, j] == pytest.approx(1 / (1 + out[j]) if (j, i) in there else 0)
                assert r[i, j] == pytest.approx(1 / (1 + into[i]) if (j, i) in there else 0)


@settings(max_examples=15, deadline=None)
@given(digraphs(), st.integers(0, 99))
def test_arcs_are_counted_and_cost_the_client_that_receives(graph, seed):
    run = run_on(graph, seed)
    model, _ = MODELS["svm"]()
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=PushSum())
    events, counters = block_of(run).events(0), looks[-1].counters
    b, back = (rates(np.arange(1))[0] for rates in (run.rates.link, run.rates.back))
    into = [sum(j == i for _, j in graph.arc_list.tolist()) for i in range(graph.n)]
    uses, delay, whole = 0, 0.0, 0.0
    for e, (i, j) in enumerate(graph.edges.tolist()):
        for receiver, fires, rate, there in (
            (j, events.v_hat[:, e], b[e], graph.arcs[e, 0]),
            (i, events.back[:, e], back[e], graph.arcs[e, 1]),
        ):
            uses += int(fires.sum())
            if there:
                cost = 1 / (graph.n * into[receiver] * rate)
                delay, whole = delay + fires.sum() * cost, whole + cost
    assert counters.link_uses == uses
    assert counters.delay_transmission == pytest.approx(delay, rel=1e-12)
    assert counters.delay_transmission_normalized == pytest.approx(delay / whole if whole else 0, rel=1e-12)


def test_both_directions_at_one_rate_cost_what_the_undirected_link_does():
    graph = Graph.from_edges(4, [(0, 1), (0, 2), (0, 3), (1, 2)])
    model, _ = MODELS["svm"]()
    one, two = (run_on(g, link=FixedValues(1.0)) for g in (graph, graph.both_ways()))
    looks = [advance([run], model, iterations=9, rule=PushSum())[0][-1].counters for run in (one, two)]
    assert looks[0].delay_transmission == pytest.approx(looks[1].delay_transmission, rel=1e-12)
    assert 2 * looks[0].link_uses == looks[1].link_uses


def test_a_budget_of_bytes_counts_arcs():
    graph = Graph.from_arcs(3, [(0, 1), (1, 2), (2, 0)])
    run = replace(run_on(graph, link=FixedValues(1.0)), link_bytes=200, budget=Budget("bytes", 1000.0), cap=50)
    assert horizon.expected(run, run.budget) == 4
    assert horizon.last_iterations([run]) == [4]  # 3 arcs of 100 bytes in each


@pytest.mark.parametrize("dynamics", [lambda g: BernoulliLinks(g, 0, 0.5), lambda g: Markov(g, 0, 0.3, 0.3)])
def test_a_link_that_is_absent_carries_nothing_either_way(dynamics):
    graph = Graph.from_arcs(4, [(0, 1), (1, 2), (2, 3), (3, 0), (1, 0)])
    run = run_on(None, topology=dynamics(graph), link=FixedValues(1.0))
    events, present = block_of(run).events(0), run.topology.present(np.arange(ITERATIONS))
    assert (events.v_hat == (present & graph.arcs[:, 0])).all()
    assert (events.back == (present & graph.arcs[:, 1])).all()


def test_events_without_the_other_direction_are_of_both():
    graph = Graph.from_arcs(3, [(0, 1), (1, 0), (1, 2), (2, 0)])
    fires = np.random.default_rng(0).random((ITERATIONS, graph.links)) < 0.5

    def schedule(k, part, rates):
        return Events(np.ones((len(k), graph.n), dtype=bool), fires[k])

    events = block_of(run_on(graph, schedule=schedule)).events(0)
    assert (events.v_hat == (fires & graph.arcs[:, 0])).all() and (events.back == (fires & graph.arcs[:, 1])).all()


def test_rules_that_mix_are_refused():
    model, _ = MODELS["svm"]()
    run = run_on(Graph.from_arcs(3, [(0, 1), (1, 2), (2, 0)]))
    for name in ("simultaneous", make(Algorithm("t", schedule="dspodfl", rule="gradient_tracking"))[1]):
        with pytest.raises(InputError, match=r"graph\.directed"):
            advance([run], model, iterations=3, rule=name)


@dataclass(frozen=True)
class Mixes:
    """Says that it runs on directed graphs, and mixes all the same."""

    directed: ClassVar[bool] = True
    around: bool = False

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        return (at.around(theta)[0][:, 0] if self.around else at.mix(theta)), state


@pytest.mark.parametrize("around", [False, True])
def test_a_rule_that_mixes_on_arcs_although_it_says_otherwise_is_stopped(around):
    model, _ = MODELS["svm"]()
    run = run_on(Graph.from_arcs(3, [(0, 1), (1, 2), (2, 0)]))
    with pytest.raises(InputError, match="exchange on a directed graph"):
        advance([run], model, iterations=3, rule=Mixes(around))


@dataclass(frozen=True)
class Probable:
    """Adds up the probabilities of what comes in, over all ends that fire."""

    directed: ClassVar[bool] = True
    needs_probability: ClassVar[bool] = True

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        one = torch.zeros_like(theta)
        change, _ = at.exchange(one, lambda x, _: x, lambda x, mine, other, _, arc: (x + arc.probability, None))
        return theta + change, state


def test_the_probability_of_an_end_is_that_of_what_comes_in():
    graph = Graph.from_arcs(3, [(0, 1), (1, 2), (2, 0), (1, 0)])
    run = run_on(graph, link=FixedValues([0.9, 0.2, 0.3, 0.4]))  # 0 → 1, 1 → 0, 2 → 0, 1 → 2
    model, _ = MODELS["svm"]()
    start = torch.zeros(3, model.parameters, dtype=torch.float64)
    (looks,) = advance([run], model, iterations=30, rule=Probable(), initial=[start])
    events = block_of(run).events(0)
    link = (events.v_hat | events.back)[:30]
    into = {0: [(0, 0.2), (1, 0.3)], 1: [(0, 0.9), (2, 0.0)], 2: [(1, 0.0), (2, 0.4)]}
    expected = [sum(link[:, e].sum() * q for e, q in ends) for ends in into.values()]
    assert looks[-1].theta[:, 0].tolist() == pytest.approx(expected)
