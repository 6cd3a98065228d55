"""Delays: an example by hand, the identities that follow from the definition, and the definition in plain loops."""

from fractions import Fraction as Ratio
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import ALGORITHMS, classified, cuts, erdos_renyi, graphs, make_run

from dspodfl.algorithms import named
from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.engine import Stack
from dspodfl.network import Graph, Part, generate
from dspodfl.network.delay import CHUNK, DELAYS, DelayMeter, Delays
from dspodfl.network.events import Events
from dspodfl.network.laws import FixedValues, Uniform
from dspodfl.network.rates import Rates
from dspodfl.network.topology import BernoulliLinks, Markov, Static, Switching, Waypoint

DATA = classified()


def columns(delays):
    return {name: getattr(delays, name) for name in DELAYS}


def tallied(run, iterations):
    """Events and cumulative delays of one run, as the engine counts them."""
    (block,) = Stack([run]).blocks(iterations, iterations)
    return block.events(0), Delays(*(getattr(block.tally, name)[:, 0].numpy() for name in DELAYS))


def accumulated(values):
    """Added one after the other, each time rounding."""
    return reduce(add, values, 0.0)


def in_rows(values):
    """Added in rows of so many, and the rows' sums likewise."""
    while len(values) > CHUNK:
        values = [accumulated(values[n : n + CHUNK]) for n in range(0, len(values), CHUNK)]
    return accumulated(values)


def each(cumulative):
    return np.diff(cumulative, prepend=0.0)


# --- by hand --------------------------------------------------------------------------------------------------


def test_four_clients_by_hand():
    """A triangle 0, 1, 2 with a tail 2–3, so that |N| = 2, 2, 3, 1.

    1/d = 2, 4, 1, 5: with all clients computing, processing is (2 + 4 + 1 + 5)/4 = 3.
    1/b = 2, 4, 1, 10 for the links 01, 02, 12, 23, each counted with 1/|N_i| + 1/|N_j| = 1, 5/6, 5/6, 4/3:
    2, 10/3, 5/6 and 40/3, in all 39/2, so that with all links firing transmission is 39/8.
    """
    graph = Graph.from_edges(4, [(0, 1), (0, 2), (1, 2), (2, 3)])
    d, b = np.array([[1 / 2, 1 / 4, 1, 1 / 5]]), np.array([[1 / 2, 1 / 4, 1, 1 / 10]])
    v = [
        [1, 0, 0, 1],  # (2 + 5)/4 = 7/4
        [0, 1, 1, 0],  # (4 + 1)/4 = 5/4
        [0, 0, 0, 0],
        [1, 1, 1, 1],  # 3
        [0, 0, 0, 0],
        [0, 0, 1, 0],  # 1/4
    ]
    v_hat = [
        [1, 0, 0, 0],  # 2/4 = 1/2
        [0, 1, 1, 0],  # (10/3 + 5/6)/4 = 25/24
        [0, 0, 0, 1],  # (40/3)/4 = 10/3
        [1, 1, 1, 1],  # 39/8
        [0, 0, 0, 0],
        [0, 0, 1, 1],  # (5/6 + 40/3)/4 = 85/24
    ]
    events = Events(np.array(v, dtype=bool), np.array(v_hat, dtype=bool))
    got = DelayMeter(graph.edges, 4).add(events, d, b, graph.degree[None])
    processing = [Ratio(7, 4), Ratio(5, 4), Ratio(0), Ratio(3), Ratio(0), Ratio(1, 4)]
    transmission = [Ratio(1, 2), Ratio(25, 24), Ratio(10, 3), Ratio(39, 8), Ratio(0), Ratio(85, 24)]
    normalized = [Ratio(7, 12), Ratio(5, 12), Ratio(0), Ratio(1), Ratio(0), Ratio(1, 12)]
    transmission_normalized = [Ratio(4, 39), Ratio(25, 117), Ratio(80, 117), Ratio(1), Ratio(0), Ratio(85, 117)]
    by_hand = (processing, transmission, normalized, transmission_normalized)
    for name, values in zip(DELAYS, by_hand, strict=True):
        sums = [float(sum(values[: t + 1], Ratio(0))) for t in range(6)]
        assert getattr(got, name).tolist() == pytest.approx(sums, rel=1e-15, abs=0), name
    assert got.total[-1] == pytest.approx(float(Ratio(25, 4) + Ratio(319, 24)))
    assert got.total_normalized.tolist()[-1] == pytest.approx(float(Ratio(25, 12) + Ratio(319, 117)))


def test_a_client_without_neighbours_contributes_nothing_to_transmission():
    """Clients 0–1 linked, 2 alone: m is 3 in the mean, and 2 counts only when it computes."""
    graph = Graph.from_edges(3, [(0, 1)])
    events = Events(np.array([[1, 0, 1], [0, 0, 0]], dtype=bool), np.array([[1], [1]], dtype=bool))
    got = DelayMeter(graph.edges, 3).add(events, np.array([[0.5, 0.5, 0.25]]), np.array([[0.2]]), graph.degree[None])
    assert got.processing.tolist() == pytest.approx([6 / 3, 6 / 3])
    assert got.transmission.tolist() == pytest.approx([10 / 3, 20 / 3])  # (1/3)(1/0.2 + 1/0.2 + 0) each
    assert got.processing_normalized.tolist() == pytest.approx([6 / 8, 6 / 8])
    assert got.transmission_normalized.tolist() == [1.0, 2.0]


def test_without_any_link_transmission_is_zero_raw_and_normalized():
    for n in (1, 3):
        graph = Graph.from_edges(n, [])
        events = Events(np.ones((4, n), dtype=bool), np.ones((4, 0), dtype=bool))
        got = DelayMeter(graph.edges, n).add(events, np.full((1, n), 0.5), np.ones((1, 0)), graph.degree[None])
        assert got.transmission.tolist() == got.transmission_normalized.tolist() == [0.0] * 4
        assert got.processing_normalized.tolist() == [1.0, 2.0, 3.0, 4.0]


# --- identities -----------------------------------------------------------------------------------------------


@given(graphs(least=2, most=7).filter(lambda graph: graph.links > 0), st.integers(0, 2**40))
def test_dgd_takes_exactly_two_normalized_units_an_iteration(graph, seed):
    _, delays = tallied(make_run("dgd", seed, data=DATA, graph=graph), 60)
    assert delays.total_normalized.tolist() == [2.0 * (k + 1) for k in range(60)]
    assert delays.processing_normalized.tolist() == delays.transmission_normalized.tolist()


def test_dgd_takes_exactly_two_normalized_units_an_iteration_also_while_rates_change():
    run = make_run("dgd", 3, data=DATA, refresh=4, growth=Diminishing(0.1, gamma=5.0))
    assert tallied(run, 60)[1].total_normalized.tolist() == [2.0 * (k + 1) for k in range(60)]


@given(st.integers(0, 2**40))
def test_rg_and_sporadic_sgd_stay_below_two_normalized_units(seed):
    graph = erdos_renyi(6, seed)
    for name, full, less in (
        ("rg", "processing_normalized", "transmission_normalized"),
        ("sporadic_sgd", "transmission_normalized", "processing_normalized"),
    ):
        _, delays = tallied(make_run(name, seed, data=DATA, graph=graph), 60)
        assert getattr(delays, full).tolist() == list(range(1, 61))
        assert each(getattr(delays, less)).max() <= 1 + 1e-12
        assert getattr(delays, less)[-1] < 60
        assert delays.total_normalized[-1] < 2 * 60


@given(st.integers(0, 2**40), st.one_of(st.none(), st.integers(1, 7)))
def test_dfedavg_takes_d_units_of_processing_then_one_of_transmission(seed, period):
    run = make_run("dfedavg", seed, data=DATA, schedule=named("dfedavg", period=period))
    d = period or int(np.ceil(np.mean(1 / run.rates.sgd(np.zeros(1, dtype=int)))))
    cycle = [(1.0, 0.0)] * d + [(0.0, 1.0)]
    _, delays = tallied(run, 60)
    got = list(zip(each(delays.processing_normalized), each(delays.transmission_normalized), strict=True))
    assert got == [cycle[k % (d + 1)] for k in range(60)]


@pytest.mark.parametrize("alone", [0, 2])
def test_dspodfl_takes_one_raw_unit_of_each_kind_an_iteration_on_average(alone):
    """E[v/d] = 1 for every client, E[v̂/b] = 1 for every link; clients without neighbours send nothing."""
    connected = erdos_renyi(6, 1)
    n, length = 6 + alone, 40_000
    graph = Graph.from_edges(n, connected.edges.tolist())
    d, b = np.linspace(0.05, 1, n), np.linspace(1, 0.1, graph.links)
    rates = Rates(graph, 9, FixedValues(d.tolist()), FixedValues(b.tolist()))
    events = named("dspodfl")(np.arange(length), Part.whole(graph, 9), rates)
    got = DelayMeter(graph.edges, n).add(events, d[None], b[None], graph.degree[None])
    share = 1 / graph.degree[graph.edges[:, 0]] + 1 / graph.degree[graph.edges[:, 1]]
    spread = np.sqrt(np.sum((1 - d) / d) / length) / n
    spread_links = np.sqrt(np.sum(share**2 * (1 - b) / b) / length) / n
    assert abs(got.processing[-1] / length - 1) < 5 * spread
    assert abs(got.transmission[-1] / length - 6 / n) < 5 * spread_links
    assert 5 * max(spread, spread_links) < 0.05  # the bounds say something


def test_a_two_sided_draw_costs_two_minus_b_times_as_much_transmission():
    """The ratio that the paper's printed tables show."""
    graph, b, length = generate("ring", 4, 0), 0.4, 40_000
    rates = Rates(graph, 2, FixedValues(0.5), FixedValues(b), two_sided=True)
    events = named("dspodfl")(np.arange(length), Part.whole(graph, 2), rates)
    got = DelayMeter(graph.edges, 4).add(events, np.full((1, 4), 0.5), np.full((1, 4), b), graph.degree[None])
    q = 1 - (1 - b) ** 2
    spread = np.sqrt(q * (1 - q) / (4 * length)) / b
    assert abs(got.transmission[-1] / length - (2 - b)) < 5 * spread


# --- the same numbers, however they are asked for -------------------------------------------------------------


@given(graphs(least=1, most=6), st.integers(0, 2**40), st.sampled_from([0, 3]), st.data())
def test_delays_do_not_depend_on_the_blocks_in_which_they_are_added(graph, seed, refresh, data):
    rates = Rates(graph, seed, Uniform(), Uniform(), refresh=refresh)
    part, length = Part.whole(graph, seed), 40

    def added(meter, start, end):
        k = np.arange(start, end)
        return meter.add(named("dspodfl")(k, part, rates), rates.sgd(k), rates.link(k), graph.degree[None])

    whole = columns(added(DelayMeter(graph.edges, graph.n), 0, length))
    meter = DelayMeter(graph.edges, graph.n)
    blocks = [columns(added(meter, start, end)) for start, end in data.draw(cuts(length))]
    for name in DELAYS:
        assert np.array_equal(np.concatenate([block[name] for block in blocks]), whole[name]), name


@given(st.data())
def test_tallies_of_a_stack_do_not_depend_on_its_blocks(data):
    run = make_run(seed=3, data=DATA, topology=BernoulliLinks(erdos_renyi(5, 3), 3, 0.6), refresh=4)
    (whole,) = Stack([run]).blocks(30, 30)
    length = data.draw(st.integers(1, 31))
    blocks = list(Stack([run]).blocks(30, length))
    for name in (*DELAYS, "sgd_steps", "link_uses"):
        joined = torch.cat([getattr(block.tally, name) for block in blocks])
        assert torch.equal(joined, getattr(whole.tally, name))
    total = whole.tally.total[:, 0].tolist()
    assert [float(block.tally.before[0]) for block in blocks] == [
        0.0 if start == 0 else total[start - 1] for start in range(0, 30, length)
    ]


def test_raw_delays_are_summed_client_by_client_and_link_by_link_and_then_in_their_order():
    """To the last bit, so that whoever adds up what each client and link has spent finds the same number."""
    graph, length = erdos_renyi(30, 2, p=0.3), 50
    rates = Rates(graph, 2, Uniform(), Uniform())
    k = np.arange(length)
    events = named("dspodfl")(k, Part.whole(graph, 2), rates)
    d, b = rates.sgd(k), rates.link(k)
    got = DelayMeter(graph.edges, 30).add(events, d, b, graph.degree[None])
    cost = [1 / rate / 30 for rate in d[0]]
    link_cost = [
        (1 / graph.degree[i] + 1 / graph.degree[j]) / rate / 30
        for (i, j), rate in zip(graph.edges.tolist(), b[0], strict=True)
    ]
    for total, costs, fired in (
        (got.processing, cost, events.v),
        (got.transmission, link_cost, events.v_hat),
    ):
        spent = [accumulated([one] * int(times)) for one, times in zip(costs, fired.sum(axis=0), strict=True)]
        assert total[-1] == in_rows(spent)


# --- the definition, one term at a time -----------------------------------------------------------------------


def plain(run, events, iterations):
    """Raw and normalized delays of each iteration, as the definition says them."""
    graph, m = run.rates.graph, run.clients
    moving = run.topology.time_varying_weights
    rows = []
    for k in range(iterations):
        at = np.array([k])
        d, b = run.rates.sgd(at)[0], run.rates.link(at)[0]
        present = run.topology.present(at)
        there = np.ones(graph.links, dtype=bool) if present is None or not moving else present[0]
        neighbours = [[] for _ in range(m)]
        for link, (i, j) in enumerate(graph.edges.tolist()):
            if there[link]:
                neighbours[i].append(link)
                neighbours[j].append(link)
        processing = sum(events.v[k, i] / d[i] for i in range(m)) / m
        most = sum(1 / d[i] for i in range(m)) / m
        transmission = sum(sum(events.v_hat[k, e] / b[e] for e in near) / len(near) for near in neighbours if near) / m
        most_sent = sum(sum(1 / b[e] for e in near) / len(near) for near in neighbours if near) / m
        rows.append((processing, transmission, processing / most, transmission / most_sent if most_sent else 0.0))
    return np.cumsum(rows, axis=0)


def walkers():
    start = generate("geometric", 6, 1, radius=0.3, allow_disconnected=True)
    return Waypoint(start, 1, 0.3, 40, (0.02, 0.1))


TOPOLOGIES = {
    "static": lambda: Static(erdos_renyi(6, 1)),
    "with a client alone": lambda: Static(Graph.from_edges(6, [(0, 1), (1, 2), (3, 4), (0, 4)])),
    "switching": lambda: Switching([generate("ring", 6, 0), generate("star", 6, 0)], period=3),
    "flicker": lambda: BernoulliLinks(erdos_renyi(6, 2), 2, 0.4),
    "markov": lambda: Markov(erdos_renyi(6, 3), 3, 0.1, 0.3),
    "waypoint": walkers,
}


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_delays_follow_their_definition_with_the_rates_and_degrees_in_force(topology, algorithm):
    run = make_run(algorithm, 5, data=DATA, topology=topology(), refresh=7, growth=Diminishing(0.1, gamma=9.0))
    events, delays = tallied(run, 40)
    expected = plain(run, events, 40)
    for column, name in enumerate(DELAYS):
        assert np.allclose(getattr(delays, name), expected[:, column], rtol=1e-12, atol=0), name


def test_links_that_are_absent_never_fire():
    run = make_run("dgd", data=DATA, topology=TOPOLOGIES["switching"]())
    events, _ = tallied(run, 20)
    assert np.array_equal(events.v_hat, run.topology.present(np.arange(20)))


def test_dgd_takes_two_normalized_units_under_mobility_whenever_anyone_is_in_reach():
    run = make_run("dgd", 5, data=DATA, topology=walkers())
    _, delays = tallied(run, 40)
    reach = run.topology.present(np.arange(40)).any(axis=1)
    assert each(delays.total_normalized).tolist() == (1.0 + reach).tolist()
