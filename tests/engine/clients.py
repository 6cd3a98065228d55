"""Clients of small runs, alone and together: what their tests share."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from threading import Condition

import numpy as np
import torch
from tests.algorithms.instance import DIGRAPH
from tests.algorithms.test_contract import facts
from tests.worlds import BATCH, MODELS, erdos_renyi, make_run, scattered

from dspodfl.algorithms import ALGORITHMS, Algorithm, Constant, Diminishing, PerLink, fitted, make
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Client, Stack, all_clients, client_loop, packed, plain_loop, run_of_client
from dspodfl.network import generate
from dspodfl.network.topology import Markov, Switching, Waypoint
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


COMPRESSED = ["top_k", "random_k", "qsgd", "sign", "identity"]


def assert_bytes_are_the_plain_loop(name, given=None, **settings):
    run, rule, model = given or world(name, **settings)
    start = scattered(model, run.clients, run.seed)
    every = all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float32)
    *_, expected = client_loop(every, start, 20)
    own = [run_of_client(run, i) for i in range(run.clients)]
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
