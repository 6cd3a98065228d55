"""Graphs that change: which links exist when, and the weights that follow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import cuts, erdos_renyi, graphs, pairs

from dspodfl import rng
from dspodfl.errors import InputError
from dspodfl.network import DYNAMICS, Graph, generate
from dspodfl.network.topology import BernoulliLinks, Markov, Static, Switching, Waypoint, WeightedTopology
from dspodfl.network.weights import WEIGHTS, matrix
from dspodfl.rng import Stream

RING = generate("ring", 5, 0)
STAR = generate("star", 5, 0)
PATH = generate("path", 5, 0)


def links_at(topology, k):
    """The pairs that exist at iteration k."""
    edges = topology.graph.edges
    present = topology.present(np.array([k]))
    return edges.tolist() if present is None else edges[present[0]].tolist()


# --- the registry ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(DYNAMICS))
def test_every_kind_of_dynamics_makes_a_topology_of_its_context_and_its_examples(kind):
    entry, base = DYNAMICS[kind], generate("geometric", 5, 0, radius=0.9)
    context = {"graph": base, "seed": 3, "radius": 0.9, "horizon": 20, "on_progress": None}
    given = {one.name: one.doc.example for one in entry.parameters if one.doc.example is not None}
    topology = entry.make(context, given | ({"graphs": [generate("ring", 5, 0)]} if "graphs" in given else {}))
    assert topology.graph.n == 5 and isinstance(topology.time_varying_weights, bool)
    present = topology.present(np.arange(4))
    assert present is None if kind == "static" else present.shape == (4, topology.graph.links)
    assert entry.line and set(context) >= {name for name in entry.context if entry.takes(name)}


@pytest.mark.parametrize(
    ("kind", "given", "field"),
    [
        ("switching", {"graphs": [], "period": None, "times": None}, "graph.dynamics.period"),
        ("switching", {"graphs": [], "period": 2, "times": [0]}, "graph.dynamics.period"),
        ("waypoint", {"speed": [0.2, 0.1], "pause": 0.0}, "graph.dynamics.speed"),
    ],
)
def test_parameters_that_do_not_fit_together_are_refused_by_the_check_of_their_kind(kind, given, field):
    with pytest.raises(InputError) as caught:
        DYNAMICS[kind].facts["check"](**given)
    assert caught.value.field == field


# --- static and switching -------------------------------------------------------------------------------------


def test_a_static_graph_has_every_link_always():
    assert Static(RING).present(np.arange(3)) is None
    assert links_at(Static(RING), 7) == RING.edges.tolist()


def test_graphs_take_turns_by_period_in_a_cycle():
    topology = Switching([RING, STAR, PATH], period=4)
    for k in range(30):
        assert links_at(topology, k) == [RING, STAR, PATH][k // 4 % 3].edges.tolist()


def test_graphs_take_turns_by_times_and_the_last_one_stays():
    topology = Switching([RING, STAR, PATH], times=[0, 3, 10])
    for k in range(30):
        expected = RING if k < 3 else STAR if k < 10 else PATH
        assert links_at(topology, k) == expected.edges.tolist()


def test_the_superset_of_switching_graphs_is_their_union_and_its_weights_never_change():
    topology = Switching([RING, STAR], period=2)
    assert {tuple(e) for e in topology.graph.edges.tolist()} == {
        tuple(e) for g in (RING, STAR) for e in g.edges.tolist()
    }
    _, weight, degree = WeightedTopology(topology, "metropolis").at(np.arange(8))
    assert degree.tolist() == [topology.graph.degree.tolist()]
    i, j = topology.graph.edges.T
    assert weight.tolist() == [(1 / (1 + np.maximum(degree[0, i], degree[0, j]))).tolist()]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "graph.dynamics"),
        ({"period": 2, "times": [0, 5]}, "graph.dynamics"),
        ({"times": [0]}, "graph.dynamics.times"),
        ({"times": [1, 5]}, "graph.dynamics.times"),
        ({"times": [0, 0]}, "graph.dynamics.times"),
        ({"period": 0}, "graph.dynamics.period"),
    ],
)
def test_turns_without_a_clear_order_are_refused(given, field):
    with pytest.raises(InputError) as caught:
        Switching([RING, STAR], **given)
    assert caught.value.field == field


# --- flickering links -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("up", [0.02, 0.5, 0.9])
def test_a_flickering_link_exists_with_its_probability_independently_at_every_iteration(up):
    length = 20_000
    there = BernoulliLinks(RING, 3, up).present(np.arange(length))
    sigma = np.sqrt(up * (1 - up) / length)
    assert there.shape == (length, 5) and there.dtype == bool
    assert (np.abs(there.mean(axis=0) - up) < 5 * sigma).all()
    together = np.corrcoef(np.concatenate([there[1:].T, there[:-1].T]).astype(float))
    assert (np.abs(together[~np.eye(10, dtype=bool)]) < 5 / np.sqrt(length)).all()


def test_a_link_that_is_up_with_probability_one_is_always_there():
    assert BernoulliLinks(RING, 0, 1.0).present(np.arange(100)).all()
    assert not BernoulliLinks(RING, 0, 0.0).present(np.arange(100)).any()


# --- Markov links ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("up", "down"), [(0.1, 0.2), (0.02, 0.01), (0.7, 0.9)])
def test_a_markov_link_has_its_stationary_share_and_its_transition_probabilities(up, down):
    length = 40_000
    there = Markov(RING, 1, up, down).present(np.arange(length)).T.ravel()  # link after link
    before, after = there[:-1], there[1:]
    inside = np.arange(1, len(there)) % length != 0  # not from the end of one link to the start of the next
    for state, probability in ((False, up), (True, 1 - down)):
        follows = after[inside & (before == state)]
        assert abs(follows.mean() - probability) < 5 * np.sqrt(probability * (1 - probability) / len(follows))
    share = up / (up + down)
    memory = 1 - up - down  # correlation of one iteration with the next
    spread = np.sqrt(share * (1 - share) / len(there) * max(1.0, (1 + memory) / (1 - memory)))
    assert abs(there.mean() - share) < 5 * spread


def test_markov_links_start_from_their_stationary_share():
    graph = generate("complete", 100, 0)
    up, down = 0.001, 0.004
    share = up / (up + down)
    first = Markov(graph, 2, up, down).present(np.array([0]))[0]
    assert abs(first.mean() - share) < 5 * np.sqrt(share * (1 - share) / graph.links)


PROBABILITY = st.one_of(st.sampled_from([0.01, 0.1, 1.0]), st.floats(0.01, 1.0))


@given(graphs(least=2, most=5), st.integers(0, 2**40), PROBABILITY, PROBABILITY, st.data())
def test_the_state_of_markov_links_is_a_pure_function_of_k(graph, seed, up, down, data):
    length = 400
    whole = Markov(graph, seed, up, down).present(np.arange(length))
    topology = Markov(graph, seed, up, down)
    for start, end in data.draw(st.permutations(data.draw(cuts(length)))):
        assert np.array_equal(topology.present(np.arange(start, end)), whole[start:end])
    anywhere = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20))
    assert np.array_equal(topology.present(np.array(anywhere)), whole[anywhere])


def test_the_state_of_markov_links_is_that_of_a_plain_chain():
    up, down, seed = 0.2, 0.3, 9
    got = Markov(STAR, seed, up, down).present(np.arange(200))
    for n, (i, j) in enumerate(STAR.edges.tolist()):
        state = int(rng.words(seed, Stream.TOPOLOGY, i, j, slots=2)[1]) < int(rng.threshold(up / (up + down)))
        for k in range(200):
            chance = 1 - down if state else up
            state = int(rng.words(seed, Stream.TOPOLOGY, i, j, k)[0]) < int(rng.threshold(chance))
            assert got[k, n] == state


def test_links_that_never_fail_and_links_that_never_come_stay_as_they_are():
    assert Markov(RING, 0, 0.3, 0.0).present(np.arange(50)).all()
    assert not Markov(RING, 0, 0.0, 0.3).present(np.arange(50)).any()
    with pytest.raises(InputError, match=r"graph\.dynamics\.up = 0.*above 0"):
        Markov(RING, 0, 0.0, 0.0)


# --- mobility -------------------------------------------------------------------------------------------------

HORIZON = 150


def walk(seed=0, n=8, radius=0.35, speed=(0.01, 0.05), pause=0.0, horizon=HORIZON):
    start = generate("geometric", n, seed, radius=radius, allow_disconnected=True)
    return start, Waypoint(start, seed, radius, horizon, speed, pause)


WALK = walk(seed=6, pause=1.5)[1]


@given(st.integers(0, 2**40), st.sampled_from([0.0, 2.5]))
def test_walkers_start_where_the_graph_put_them_stay_in_the_square_and_keep_to_their_speed(seed, pause):
    start, topology = walk(seed, pause=pause)
    at = topology.positions(np.arange(HORIZON))
    assert at.shape == (HORIZON, 8, 2)
    assert np.allclose(at[0], start.positions, rtol=0, atol=1e-15)
    assert at.min() >= 0 and at.max() <= 1
    pace = np.linalg.norm(np.diff(at, axis=0), axis=-1)
    assert pace.max() <= 0.05 * (1 + 1e-9)
    assert pace.max() > 0.01  # they do move


def test_walkers_keep_to_one_pace_within_the_limits_until_they_turn_and_rest_where_they_arrive():
    _, topology = walk(pause=5.0, speed=(0.01, 0.05))
    fine = np.linspace(0, HORIZON - 1, 20 * HORIZON)
    at = topology.positions(fine)
    pace = np.linalg.norm(np.diff(at, axis=0), axis=-1) / (fine[1] - fine[0])
    resting = pace < 1e-9
    steady = np.abs(np.diff(pace, axis=0)) < 1e-9  # neither turning nor setting off within the step
    walking = pace[:-1][steady & ~resting[:-1]]
    assert walking.min() >= 0.01 - 1e-9 and walking.max() <= 0.05 + 1e-9
    assert resting.any(axis=0).all()
    assert len(np.unique(np.round(walking, 9))) > 8  # a new pace for every leg


def test_walkers_turn_at_their_addressed_waypoints():
    _, topology = walk(seed=4, n=3, speed=(0.02, 0.02))
    start = topology.positions(np.array([0]))[0]
    for client in range(3):
        x, y, _ = rng.uniform(4, Stream.MOBILITY, client, k=0, count=3)
        arrival = np.hypot(*(np.array([x, y]) - start[client])) / 0.02
        assert np.allclose(topology.positions(np.array([arrival]))[0, client], [x, y], atol=1e-12)


@given(st.integers(0, 2**40), st.floats(0.1, 0.6))
def test_links_are_exactly_the_pairs_within_the_radius_at_every_iteration(seed, radius):
    _, topology = walk(seed, radius=radius, horizon=40)
    ever = set()
    for k, at in enumerate(topology.positions(np.arange(40))):
        near = [pair for pair in pairs(8) if np.linalg.norm(at[pair[0]] - at[pair[1]]) <= radius]
        assert links_at(topology, k) == [list(pair) for pair in near]
        ever |= set(near)
    assert topology.graph.edges.tolist() == [list(pair) for pair in sorted(ever)]


@pytest.mark.parametrize("kind", [kind for kind in WEIGHTS if kind != "equal_neighbour"])
def test_weights_under_mobility_follow_the_current_graph_and_are_doubly_stochastic(kind):
    _, topology = walk(seed=2)
    present, weight, degree = WeightedTopology(topology, kind).at(np.arange(HORIZON))
    now = np.zeros((HORIZON, 8), dtype=int)
    for k in range(HORIZON):
        for i, j in links_at(topology, k):
            now[k, [i, j]] += 1
    assert np.array_equal(degree, now)
    p = matrix(8, topology.graph.edges, weight * present)
    assert np.allclose(p.sum(axis=1), 1) and np.allclose(p.sum(axis=2), 1)
    assert p.min() >= 0
    assert np.array_equal(p, p.transpose(0, 2, 1))
    largest = np.maximum(now[:, topology.graph.edges[:, 0]], now[:, topology.graph.edges[:, 1]])
    expected = {
        "metropolis": 1 / (1 + largest),
        "lazy_metropolis": 1 / (2 * np.maximum(largest, 1)),
        "max_degree": np.broadcast_to(1 / (1 + now.max(axis=1, keepdims=True)), largest.shape),
    }[kind]
    assert np.allclose(weight[present], expected[present], rtol=1e-15)
    assert len(np.unique(degree, axis=0)) > 1  # it did change


@given(st.data())
def test_mobility_is_a_pure_function_of_k(data):
    whole = WALK.present(np.arange(HORIZON))
    for start, end in data.draw(st.permutations(data.draw(cuts(HORIZON)))):
        assert np.array_equal(WALK.present(np.arange(start, end)), whole[start:end])


def test_where_walkers_are_does_not_depend_on_the_horizon():
    _, longer = walk(seed=6, pause=1.5, horizon=2 * HORIZON)
    assert np.array_equal(longer.positions(np.arange(HORIZON)), WALK.positions(np.arange(HORIZON)))


def test_mobility_needs_positions():
    with pytest.raises(InputError, match="geometric"):
        Waypoint(RING, 0, 0.3, 10)


def test_equal_neighbour_weights_are_refused_under_mobility():
    with pytest.raises(InputError, match=r"graph\.weights = 'equal_neighbour'"):
        WeightedTopology(walk()[1], "equal_neighbour")


def test_weights_that_do_not_fit_a_graph_are_refused_when_the_wiring_is_made():
    with pytest.raises(InputError, match="degrees from 1 to 4"):
        WeightedTopology(Static(STAR), "equal_neighbour")
    with pytest.raises(InputError, match="one of metropolis"):
        WeightedTopology(Static(RING), "metropolitan")


@pytest.mark.parametrize("kind", ["flicker", "markov", "switching"])
def test_weights_follow_the_superset_where_nobody_moves(kind):
    graph = erdos_renyi(7, 1)
    topology = {
        "flicker": BernoulliLinks(graph, 0, 0.3),
        "markov": Markov(graph, 0, 0.1, 0.2),
        "switching": Switching([graph, Graph.from_edges(7, [(0, 6)])], period=3),
    }[kind]
    present, weight, degree = WeightedTopology(topology, "metropolis").at(np.arange(20))
    assert present.shape == (20, topology.graph.links) and not present.all()
    assert degree.tolist() == [topology.graph.degree.tolist()]
    assert np.array_equal(weight, WeightedTopology(Static(topology.graph), "metropolis").at(np.arange(1))[1])
