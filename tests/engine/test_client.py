"""One client at a time is the stacked engine, for every registered algorithm; and through bytes it is itself."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from threading import Condition

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DIGRAPH
from tests.algorithms.test_contract import facts
from tests.engine.test_activation import HOW, runs_with
from tests.worlds import BATCH, MODELS, advance, classified, erdos_renyi, make_run, scattered

from dspodfl.algorithms import (
    ALGORITHMS,
    Algorithm,
    Attack,
    Constant,
    Diminishing,
    PerLink,
    bytes_sent,
    fitted,
    local,
    make,
    with_local,
)
from dspodfl.algorithms.attacks import SignFlip
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Client, Stack, all_clients, client_loop, packed, packed_by_peer, plain_loop, runs_on_nodes
from dspodfl.engine.messages import schema_of
from dspodfl.engine.on_nodes import RowLayout, probed
from dspodfl.engine.reference import ORDERS
from dspodfl.errors import InputError
from dspodfl.network import Budget, DelayMeter, Events, Graph, generate
from dspodfl.network.topology import Markov, Switching, Waypoint
from dspodfl.problem.data import restrict_to_clients
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem
from dspodfl.rng import Stream

ITERATIONS = 40
REFUSED = {
    "around": ["bridge", "clipped_gossip"],
    "server": ["fedavg", "scaffold", "anarchic"],
    "gates": ["ef_hc"],
}
"""Why algorithms do not run on nodes."""
REFUSED = {name: reason for reason, names in REFUSED.items() for name in names if name in ALGORITHMS}


def made(name, **settings):
    """The schedule and the rule of an algorithm, with the settings of the contract."""
    entry = ALGORITHMS[name]
    settings = {**facts(name).get("settings", {}), **settings}
    schedule, rule = make(Algorithm(name, schedule=name, rule=name if entry.rule else None, settings=settings))
    return schedule, rule or RULES["simultaneous"]


@cache
def world(name, model="logistic", directed=False, **settings):
    """A run of an algorithm, its rule and its model."""
    schedule, rule = made(name, **settings)
    model, dataset = MODELS[model]()
    graph = DIGRAPH if directed else facts(name).get("graph")
    rule = fitted(rule, tuple(tuple(shape) for shape in model.shapes.values()))
    rate = Constant(0.02 if directed else 0.1)
    run = make_run(name, 3, n=6, graph=graph, data=dataset, schedule=schedule, learning_rate=rate)
    return run, rule, model


def loop(run, rule, model, dtype=torch.float64, iterations=ITERATIONS, batch=BATCH):
    start = scattered(model, run.clients, run.seed).to(dtype)
    return list(plain_loop(run, model, start, iterations=iterations, batch_size=batch, rule=rule))


CASES = [name for name in ALGORITHMS if name not in REFUSED]
DIRECTED = [name for name, entry in ALGORITHMS.items() if entry.directed]


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_is_the_stacked_engine_s(name):
    run, rule, model = world(name)
    assert runs_on_nodes(rule, run) is None
    (looks,) = advance([run], model, iterations=ITERATIONS, every=10, rule=rule)
    models = loop(run, rule, model)
    assert len(models) == ITERATIONS
    assert (models[-1] - looks[0].theta).abs().max() > 1e-3
    for look in looks[1:]:
        assert torch.allclose(models[look.iteration - 1], look.theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", DIRECTED)
def test_directed_graphs_are_the_stacked_engine_s(name):
    run, rule, model = world(name, directed=True)
    assert runs_on_nodes(rule, run) is None
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    assert torch.allclose(loop(run, rule, model)[-1], looks[-1].theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["dspodfl", "choco", "gradient_tracking", "relay", "push_sum"])
def test_float32_is_the_stacked_engine_s_to_its_tolerance(name):
    run, rule, model = world(name)
    (looks,) = advance([run], model, iterations=1, rule=rule, dtype=torch.float32)
    assert torch.allclose(loop(run, rule, model, torch.float32, 1)[-1], looks[-1].theta, rtol=0, atol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_pseudocode_to_the_bit(order, dtype):
    """Two implementations that share events and model alone."""
    for kind in ("svm", "mlp"):
        run, _, model = world("dspodfl", kind)
        start = scattered(model, run.clients, run.seed).to(dtype)
        how = {"iterations": 20, "batch_size": BATCH}
        plain = list(plain_loop(run, model, start, order=order, **how))
        found = list(plain_loop(run, model, start, rule=RULES[order], **how))
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
        assert not torch.equal(plain[-1], start)


# --- events ---------------------------------------------------------------------------------------------------


def assert_events_are_the_engine_s(run, rule, model, iterations=ITERATIONS):
    clients = all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float64)
    (block,) = Stack([run]).blocks(iterations, iterations)
    problem = Problem(model, [(run.seed, run.data)], batch_size=BATCH, dtype=torch.float64)
    batches = problem.minibatches(block.k)
    edges = run.rates.graph.edges.tolist()
    for k in range(iterations):
        assert [client.steps(k) for client in clients] == block.v[k].tolist()
        fired = [edge for edge, weight in zip(edges, block.active[k].tolist(), strict=True) if weight]
        for i, client in enumerate(clients):
            assert client.fires(k) == tuple(b if a == i else a for a, b in fired if i in (a, b))
            events, t = client.events.at(k)
            assert events.lr[t] == block.lr[k, i]
            assert np.array_equal(run.data.shards[i][events.rows[t]], batches[k, i])


@pytest.mark.parametrize("name", CASES)
def test_events_and_minibatches_are_the_engine_s(name):
    assert_events_are_the_engine_s(*world(name))


@pytest.mark.parametrize("name", ["dspodfl", "matcha", "pairwise_gossip"])
def test_delays_follow_from_the_events_of_clients(name):
    run, rule, model = world(name)
    clients = all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float64)
    graph, k = run.rates.graph, np.arange(ITERATIONS)
    v = np.array([[client.steps(t) for client in clients] for t in k])
    v_hat = np.array([[j in clients[i].fires(t) for i, j in graph.edges.tolist()] for t in k])
    _, _, degree = run.topology.at(k)
    meter = DelayMeter(graph.edges, graph.n)
    delays = meter.add(Events(v, v_hat), run.rates.sgd(k), run.rates.link(k), degree, None)
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    counted = looks[-1].counters
    assert (int(v.sum()), int(v_hat.sum())) == (counted.sgd_steps, counted.link_uses)
    assert delays.processing[-1] == pytest.approx(counted.delay_processing, rel=1e-12)
    assert delays.transmission[-1] == pytest.approx(counted.delay_transmission, rel=1e-12)


def test_events_are_the_same_whatever_was_asked_for_before():
    run, rule, model = world("matcha")
    client = Client(run, rule, model, 0, batch_size=BATCH)
    order = np.random.default_rng(0).permutation(600).tolist()
    found = {k: (client.fires(k), client.steps(k)) for k in order}
    other = Client(run, rule, model, 0, batch_size=BATCH)
    assert all(found[k] == (other.fires(k), other.steps(k)) for k in range(600))


@pytest.mark.parametrize("name", DIRECTED)
def test_events_of_directed_graphs_are_the_engine_s(name):
    assert_events_are_the_engine_s(*world(name, directed=True))


def changing(kind):
    """A run in which something changes with the iteration, or is drawn otherwise."""
    model, dataset = MODELS["logistic"]()
    start = generate("geometric", 6, 1, radius=0.45, allow_disconnected=True)
    graph, how = erdos_renyi(6, 2), {"data": dataset, "n": 6}
    topologies = {
        "switching": Switching([generate("ring", 6, 0), generate("star", 6, 0)], period=3),
        "markov": Markov(graph, 4, 0.2, 0.3),
        "waypoint": Waypoint(start, 1, 0.45, 100, (0.02, 0.1)),
    }
    if kind in topologies:
        return make_run("dspodfl", 3, topology=topologies[kind], **how), model
    if kind == "two_sided":
        how |= {"learning_rate": Diminishing(0.3, gamma=10.0)}
        return make_run("dspodfl", 3, two_sided=True, refresh=7, **how), model
    return replace(make_run("dspodfl", 3, **how), inverse_cap=4.0), model


@pytest.mark.parametrize("kind", ["switching", "markov", "waypoint", "two_sided", "inverse"])
@pytest.mark.parametrize("name", ["gradient_tracking", "sporadic_scaffnew", "choco"])
def test_changing_networks_and_step_sizes_are_the_stacked_engine_s(kind, name):
    run, model = changing(kind)
    rule = made(name)[1]
    assert_events_are_the_engine_s(run, rule, model)
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    assert torch.allclose(loop(run, rule, model)[-1], looks[-1].theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", HOW)
def test_clients_and_links_that_are_off_are_the_stacked_engine_s(how):
    model, dataset = MODELS["logistic"]()
    for run in runs_with(how, dataset):
        assert_events_are_the_engine_s(run, RULES["simultaneous"], model)


@pytest.mark.parametrize("name", ["dspodfl", "kgt"])
def test_full_batches_are_the_stacked_engine_s(name):
    run, rule, model = world(name)
    (looks,) = advance([run], model, iterations=10, rule=rule, batch=0)
    assert torch.allclose(loop(run, rule, model, iterations=10, batch=0)[-1], looks[-1].theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["dspodfl", "choco"])
def test_transformed_gradients_are_the_stacked_engine_s(name):
    run, rule, model = world(name)
    rule = with_local(rule, local.chain(local.clip(0.5), local.proximal(0.1), local.adam()))
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    assert torch.allclose(loop(run, rule, model)[-1], looks[-1].theta, rtol=0, atol=1e-9)


def test_a_budget_ends_the_loop_where_it_ends_the_engine():
    run, rule, model = world("gradient_tracking")
    run = replace(run, budget=Budget("delay", 60.0), cap=200)
    (looks,) = advance([run], model, iterations=200, rule=rule)
    models = loop(run, rule, model, iterations=200)
    assert len(models) == looks[-1].iteration < 200


@pytest.mark.parametrize("name", ["dspodfl", "choco", "sporadic_scaffnew", "power_gossip"])
@pytest.mark.parametrize("edges", [[], [(0, 2)]])
def test_clients_without_links_are_the_stacked_engine_s(name, edges):
    model, dataset = MODELS["logistic"]()
    run = make_run("dspodfl", 3, graph=Graph.from_edges(3, edges), data=dataset)
    rule = made(name)[1]
    (looks,) = advance([run], model, iterations=15, rule=rule)
    assert torch.allclose(loop(run, rule, model, iterations=15)[-1], looks[-1].theta, rtol=0, atol=1e-10)
    clients = all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float64)
    assert clients[1].neighbours == () and len({client.schema.digest for client in clients}) == 1


class Everything:
    """A rule that uses all that an iteration offers, and memory that is summed over links."""

    def init(self, theta, links):
        return theta.new_zeros(theta.shape), {"told": PerLink((theta.new_zeros(2 * links, theta.shape[1]),))}

    def step(self, theta, state, at):
        held, links = state
        words = at.words(Stream.COMPRESS, at.layout.parameters)
        noise = at.layout.packed(words.to(theta.dtype) / 2**33)
        half = theta - at.gradient(theta, at.lr * at.v) + 0.01 * noise * at.probability
        (change, count), told = at.exchange((half, at.client), _both, _remembered, links["told"])
        (total,) = at.total(told)
        new = at.mix(half + 0.1 * change) + 0.001 * total / at.n + 0.01 * count.to(theta.dtype)
        held = (held + at.gradient(new)).where(at.linked, held)
        return new - 0.001 * held, (held, {"told": told})


def _both(x, memory):
    return x[0] + 0.1 * memory[0], x[1]


def _remembered(x, mine, theirs, memory, arc):
    return (arc.into * (theirs[0] - mine[0]), theirs[1]), (0.2 * memory[0] + theirs[0],)


@pytest.mark.parametrize("topology", [None, "markov"])
def test_a_rule_that_uses_everything_is_the_stacked_engine_s(topology):
    run, model = changing(topology) if topology else (world("dspodfl")[0], world("dspodfl")[2])
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=Everything())
    found = loop(run, Everything(), model)[-1]
    assert torch.allclose(found, looks[-1].theta, rtol=0, atol=1e-10)
    assert (found - looks[0].theta).abs().max() > 1e-3
    assert_bytes_are_the_plain_loop("", (run, Everything(), model))


def test_the_mean_rate_of_links_is_that_of_the_own_links():
    run, rule, model = world("dspodfl")
    rate, edges = run.rates.link(np.array([7]))[0], run.rates.graph.edges
    for client in all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float64):
        own = (edges == client.i).any(axis=1)
        assert client.events.link_rate(7) == pytest.approx(rate[own].mean(), rel=1e-14)


# --- messages -------------------------------------------------------------------------------------------------


class Wire:
    """Swaps messages as bytes between clients, each of which runs in a thread of its own."""

    def __init__(self, clients):
        self.clients, self.box, self.ready = clients, {}, Condition()
        self.sizes = {}

    def swap(self, i, k):
        def swap(phase, messages):
            with self.ready:
                for peer, message in messages.items():
                    self.box[i, peer, k, phase] = bytes(packed(message))
                    self.sizes.setdefault(phase, set()).add(len(self.box[i, peer, k, phase]))
                self.ready.notify_all()
                keys = {peer: (peer, i, k, phase) for peer in messages}
                assert self.ready.wait_for(lambda: all(key in self.box for key in keys.values()), timeout=60)
                return {peer: self.clients[i].unpacked(phase, bytearray(self.box[key])) for peer, key in keys.items()}

        return swap

    def advance(self, states, iterations):
        """The states of all clients after some more iterations; each client is alone with its messages."""

        def run(i):
            state = states[i]
            for k in range(state.k, state.k + iterations):
                state = self.clients[i].step(state, k, self.swap(i, k))
            return state

        with ThreadPoolExecutor(len(states)) as pool:
            return list(pool.map(run, range(len(states))))


def test_a_model_of_784_inputs_is_the_plain_loop_to_the_bit():
    """Products of this size depend on how memory is aligned, unless it is aligned."""
    model, dataset = build("svm", (1, 28, 28), 10), classified((1, 28, 28), 10, samples=80)
    run = make_run("dgd", 1, n=4, data=dataset)
    assert_bytes_are_the_plain_loop("dgd", (run, RULES["simultaneous"], model))


COMPRESSED = ["top_k", "random_k", "qsgd", "sign", "identity"]


@pytest.mark.parametrize("name", CASES)
def test_through_bytes_and_saved_states_it_is_the_plain_loop_to_the_bit(name):
    """Clients that hold their own samples alone, saved and restored in the middle."""
    assert_bytes_are_the_plain_loop(name)


@pytest.mark.parametrize("compressor", COMPRESSED)
def test_compressed_messages_are_the_plain_loop_to_the_bit_and_the_stacked_engine(compressor):
    settings = {"compressor": compressor, "gamma": 0.3}
    assert_bytes_are_the_plain_loop("choco", **settings)
    run, rule, model = world("choco", **settings)
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    assert torch.allclose(loop(run, rule, model)[-1], looks[-1].theta, rtol=0, atol=1e-10)
    assert (loop(run, rule, model)[-1] - looks[0].theta).abs().max() > 1e-3


@pytest.mark.parametrize("compressor", COMPRESSED)
def test_compressed_messages_have_the_bytes_that_the_rule_counts(compressor):
    _, rule, _ = world("choco", compressor=compressor)
    for shapes in (((10, 784), (10,)), ((7, 3), (7,))):
        layout = RowLayout(shapes)
        (size,) = schema_of(probed(rule, layout, torch.float32, directed=False), {}).sizes
        counted = rule.sent(layout.parameters)
        assert size == counted if compressor != "qsgd" else counted <= size <= 1.01 * counted + 8


def assert_bytes_are_the_plain_loop(name, given=None, **settings):
    run, rule, model = given or world(name, **settings)
    start = scattered(model, run.clients, run.seed)
    every = all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float32)
    *_, expected = client_loop(every, start, 20)
    own = [replace(run, data=restrict_to_clients([run.data], [np.array([i])])[0]) for i in range(run.clients)]
    clients = [Client(one, rule, model, i, batch_size=BATCH) for i, one in enumerate(own)]
    assert all(one.data.dataset.x_train.shape[0] == len(run.data.shards[i]) for i, one in enumerate(own))
    wire = Wire(clients)
    states = wire.advance([client.begin(start[i : i + 1]) for i, client in enumerate(clients)], 11)
    again = [Client(one, rule, model, i, batch_size=BATCH) for i, one in enumerate(own)]
    states = [client.from_arrays(state.to_arrays()) for client, state in zip(again, states, strict=True)]
    wire.clients = again
    states = wire.advance(states, 9)
    for state, other in zip(states, expected, strict=True):
        found, there = state.to_arrays(), other.to_arrays()
        assert found.keys() == there.keys()
        assert all(np.array_equal(found[key], there[key]) for key in found)
    schema = every[0].schema
    assert len({client.schema.digest for client in every}) == 1
    assert wire.sizes == {phase: {size} for phase, size in enumerate(schema.sizes)}
    assert set(wire.sizes) == set(range(every[0].phases))


SENT = {"swift": 2.0, "power_gossip": 36 / 30}
"""What is really sent over what ``sent`` counts. Swift: one of two ends sends a model there, and both do here. Power
gossip: vectors are as long as the longer side of a matrix in every turn, and not in every second one."""


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_messages_are_those_that_the_rule_counts(name):
    run, rule, model = world(name)
    client = Client(run, rule, model, 0, batch_size=BATCH)
    assert sum(client.schema.sizes) == SENT.get(name, 1.0) * bytes_sent(rule, model.parameters)


def test_clients_of_other_models_have_other_schemas():
    run, rule, model = world("dspodfl")
    one = Client(run, rule, model, 0, batch_size=BATCH).schema
    assert one.digest != Client(run, rule, model, 0, batch_size=BATCH, dtype=torch.float64).schema.digest
    assert one.digest != Client(run, world("choco")[1], model, 0, batch_size=BATCH).schema.digest
    other = replace(one, parameters=(("another.weight", one.parameters[0][1]), *one.parameters[1:]))
    assert other.sizes == one.sizes and other.digest != one.digest


def test_a_message_of_another_size_is_refused():
    run, rule, model = world("dspodfl")
    client = Client(run, rule, model, 0, batch_size=BATCH)
    with pytest.raises(InputError, match="of 3 bytes"):
        client.unpacked(0, b"abc")


def test_what_is_the_same_for_all_neighbours_is_packed_once():
    one, other = (torch.ones(1, 3),), (torch.zeros(1, 3),)
    found = packed_by_peer({1: one, 2: one, 5: other})
    assert found[1] is found[2] and bytes(found[5]) == bytes(12) and bytes(found[1]) == bytes(packed(one))


def test_tensors_are_views_of_a_buffer_that_can_be_written_to():
    run, rule, model = world("dspodfl")
    client = Client(run, rule, model, 0, batch_size=BATCH)
    buffer = np.zeros(client.schema.sizes[0], dtype=np.uint8)
    (tensor,) = client.unpacked(0, buffer)
    buffer[:] = 255
    assert torch.isnan(tensor).all()
    (copy,) = client.unpacked(0, bytes(buffer))
    assert torch.isnan(copy).all()


# --- what does not run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_run_on_nodes_is_named_with_its_reason(name):
    run, rule, model = world(name)
    reason = runs_on_nodes(rule, run)
    assert name in reason and REFUSED[name] in reason and "\n" not in reason
    with pytest.raises(InputError, match=REFUSED[name]):
        all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float64)


def test_clipped_gossip_runs_with_a_number_for_tau():
    run, rule, model = world("clipped_gossip", tau=0.3)
    assert runs_on_nodes(rule, run) is None
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    assert torch.allclose(loop(run, rule, model)[-1], looks[-1].theta, rtol=0, atol=1e-10)


def test_runs_under_attack_are_refused():
    run, rule, _ = world("dspodfl")
    attack = Attack((0,), SignFlip())
    assert "attack" in runs_on_nodes(rule, replace(run, attack=attack))


class Gating:
    """A rule that gates."""

    gates = True

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        at.gate(theta)
        return theta, state


def test_a_rule_that_gates_is_refused_whether_it_says_so_or_not():
    run, _, _ = world("dspodfl")
    assert "gates" in runs_on_nodes(Gating(), run)
    assert "gates" in runs_on_nodes(type("Silent", (Gating,), {"gates": False})(), run)


class ForOneModel(Everything):
    """A rule that knows the number of parameters."""

    def step(self, theta, state, at):
        return super().step(theta + torch.zeros(21, dtype=theta.dtype), state, at)


def test_a_rule_for_one_model_runs():
    run, _, model = world("dspodfl")
    assert runs_on_nodes(ForOneModel(), run) is None
    assert len(loop(run, ForOneModel(), model, iterations=2)) == 2


class Sometimes:
    """A rule that mixes in even iterations."""

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        return (theta if at.k % 2 else at.mix(theta)), state


def test_a_rule_that_exchanges_in_some_iterations_alone_is_refused():
    run, _, model = world("dgd")
    with pytest.raises(InputError, match="0 exchanges at iteration 1"):
        loop(run, Sometimes(), model)


@pytest.mark.parametrize("change", [{"theta": np.zeros((1, 3), np.float32)}, {"theta": None}])
def test_arrays_of_another_client_are_refused(change):
    run, rule, model = world("choco")
    client = Client(run, rule, model, 0, batch_size=BATCH)
    arrays = client.begin(torch.zeros(1, model.parameters)).to_arrays() | change
    with pytest.raises(InputError, match="state of client 0: theta"):
        client.from_arrays({name: array for name, array in arrays.items() if array is not None})


def test_an_initial_model_of_another_shape_is_refused():
    run, rule, model = world("dspodfl")
    with pytest.raises(InputError, match="the initial model = 'of shape"):
        Client(run, rule, model, 0, batch_size=BATCH).begin(torch.zeros(1, 3))


def test_a_client_whose_samples_are_not_held_is_refused():
    run, rule, model = world("dspodfl")
    other = replace(run, data=restrict_to_clients([run.data], [np.array([1])])[0])
    with pytest.raises(InputError, match="client = 0"):
        Client(other, rule, model, 0, batch_size=BATCH)


def test_a_client_loads_no_compiled_code():
    """Neither Numba nor Triton: they take memory, and a node has to be small."""
    program = """
import sys
import numpy as np, torch
from dspodfl.algorithms import Constant, Simultaneous, named
from dspodfl.engine import Client, Run, packed
from dspodfl.network import Rates, Static, WeightedTopology, generate
from dspodfl.network.rates import Uniform
from dspodfl.problem.data import Dataset, Federation
from dspodfl.problem.models import build
graph = generate("complete", 12, 0)
arrays = [np.ones((24, 4), np.float32), np.arange(24) % 2] * 2
data = Federation(Dataset.from_arrays(*arrays), (np.arange(24),) * 12, {})
topology = WeightedTopology(Static(graph), "metropolis")
run = Run("dgd", 0, topology, Rates(graph, 0, Uniform(), Uniform()), named("dgd"), data, Constant(0.1))
client = Client(run, Simultaneous(), build("svm", (4,), 2), 0, batch_size=16)
state = client.begin(torch.zeros(1, 10))
def swap(phase, messages):
    return {peer: client.unpacked(phase, bytes(packed(message))) for peer, message in messages.items()}
for k in range(300): state = client.step(state, k, swap)
assert state.theta.any() and not {"numba", "triton"} & set(sys.modules)
"""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | path)
