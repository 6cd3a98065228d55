"""One client at a time is the stacked engine, for every registered algorithm; and through bytes it is itself."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.clients import (
    CASES,
    COMPRESSED,
    DIRECTED,
    ITERATIONS,
    Everything,
    assert_bytes_are_the_plain_loop,
    assert_events_are_the_engine_s,
    changing,
    loop,
    made,
    world,
)
from tests.worlds import BATCH, MODELS, advance, classified, make_run, scattered

from dspodfl.algorithms import local, with_local
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Client, all_clients, plain_loop, run_of_client, runs_on_nodes
from dspodfl.engine.reference import ORDERS
from dspodfl.errors import InputError
from dspodfl.network import Budget, Graph
from dspodfl.problem.models import build


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
    assert torch.allclose(loop(run, rule, model)[-1], looks[-1].theta, rtol=1e-9, atol=1e-10)


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


@pytest.mark.parametrize("kind", ["switching", "markov", "waypoint", "two_sided", "inverse"])
@pytest.mark.parametrize("name", ["gradient_tracking", "sporadic_scaffnew", "choco"])
def test_changing_networks_and_step_sizes_are_the_stacked_engine_s(kind, name):
    run, model = changing(kind)
    rule = made(name)[1]
    assert_events_are_the_engine_s(run, rule, model)
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    assert torch.allclose(loop(run, rule, model)[-1], looks[-1].theta, rtol=0, atol=1e-10)


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


@pytest.mark.parametrize("topology", [None, "markov"])
def test_a_rule_that_uses_everything_is_the_stacked_engine_s(topology):
    run, model = changing(topology) if topology else (world("dspodfl")[0], world("dspodfl")[2])
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=Everything())
    found = loop(run, Everything(), model)[-1]
    assert torch.allclose(found, looks[-1].theta, rtol=0, atol=1e-10)
    assert (found - looks[0].theta).abs().max() > 1e-3
    assert_bytes_are_the_plain_loop("", (run, Everything(), model))


def test_a_model_of_784_inputs_is_the_plain_loop_to_the_bit():
    """Products of this size depend on how memory is aligned, unless it is aligned."""
    model, dataset = build("svm", (1, 28, 28), 10), classified((1, 28, 28), 10, samples=80)
    run = make_run("dgd", 1, n=4, data=dataset)
    assert_bytes_are_the_plain_loop("dgd", (run, RULES["simultaneous"], model))


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
    other = run_of_client(run, 1)
    assert len(other.data.dataset.x_train) == len(run.data.shards[1]) and other.data.number.tolist() == [1]
    assert run_of_client(other, 1).data.number.tolist() == [1]
    with pytest.raises(InputError, match="client = 0"):
        Client(other, rule, model, 0, batch_size=BATCH)


def test_a_client_loads_no_compiled_code():
    """Neither Numba nor Triton (which torch itself loads where it has CUDA): a node has to be small."""
    program = """
import sys
import numpy as np, torch
from dspodfl.algorithms import Constant, Simultaneous, named
from dspodfl.engine import Client, Run, packed
from dspodfl.network import Rates, Static, WeightedTopology, generate
from dspodfl.network.laws import Uniform
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
assert state.theta.any() and not {"numba", "triton" if torch.version.cuda is None else ""} & set(sys.modules)
"""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | path)
