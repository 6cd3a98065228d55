"""The fast engine and the plain loop of the paper's pseudocode, step by step the same models."""

from itertools import islice

import pytest
import torch
from tests.worlds import (
    ALGORITHMS,
    BATCH,
    MODELS,
    advance,
    classified,
    erdos_renyi,
    federation,
    make_run,
    regression,
    scattered,
)

from dspodfl.algorithms.learning_rate import Diminishing, Step
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import plain_loop
from dspodfl.engine.mixer import DENSE
from dspodfl.engine.reference import ORDERS
from dspodfl.errors import InputError
from dspodfl.network import generate
from dspodfl.network.laws import Beta, FixedValues
from dspodfl.network.topology import BernoulliLinks, Markov, Switching, Waypoint
from dspodfl.problem.models import build

STEPS = {"svm": 80, "logistic": 80, "linear": 80, "mlp": 24, "custom": 24, "cnn": 6}
"""Steps in float64; fewer where a step of the plain loop takes long."""


def reference(run, model, initial, iterations, order="simultaneous", dtype=torch.float64):
    """The last models of the plain loop. The model's constants are in its precision, as they are in the engine's."""
    steps = plain_loop(
        run, model.to("cpu", dtype), initial.to(dtype), iterations=iterations, batch_size=BATCH, order=order
    )
    *_, last = steps
    return last


def assert_engine_equals_plain_loop(runs, model, iterations, order="simultaneous", dtype=torch.float64, close=1e-9):
    initial = [scattered(model, run.clients, seed=10 + r) for r, run in enumerate(runs)]
    looks = advance(runs, model, iterations=iterations, initial=initial, rule=order, dtype=dtype)
    for run, theta, look in zip(runs, initial, looks, strict=True):
        expected = reference(run, model, theta, iterations, order, dtype)
        got = look[-1].theta
        assert look[-1].iteration == iterations and got.dtype == expected.dtype == dtype
        assert torch.isfinite(expected).all()
        assert (expected - theta).abs().max() > 1e-3, "nothing happened"
        assert torch.allclose(got, expected, rtol=0, atol=close), float((got - expected).abs().max())


def test_the_plain_loop_knows_every_rule_and_refuses_another():
    model, (run, *_) = five_runs("svm")
    assert set(ORDERS) <= set(RULES)
    with pytest.raises(InputError, match="order = 'backwards': must be one of simultaneous"):
        next(plain_loop(run, model, scattered(model, run.clients), iterations=1, batch_size=2, order="backwards"))


def five_runs(name, **more):
    """The five algorithms on different graphs and shards."""
    model, dataset = MODELS[name]()
    return model, [make_run(algorithm, seed, n=3, data=dataset, **more) for seed, algorithm in enumerate(ALGORITHMS)]


@pytest.mark.parametrize("order", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_one_step_of_every_algorithm_is_the_plain_loop_s_in_float32(name, order):
    model, runs = five_runs(name, sgd=FixedValues(0.8), link=FixedValues(0.8))
    assert_engine_equals_plain_loop(runs, model, 1, order, torch.float32, close=1e-5)


@pytest.mark.parametrize("order", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_many_steps_of_every_algorithm_are_the_plain_loop_s_in_float64(name, order):
    model, runs = five_runs(name)
    assert_engine_equals_plain_loop(runs, model, STEPS[name], order)


def test_one_step_of_vgg11_is_the_plain_loop_s():
    """One step of two clients: a model of nine million parameters is slow on a CPU."""
    model = build("vgg11", (3, 32, 32), 3)
    data = federation(classified((3, 32, 32), samples=6, test_samples=2), 2)
    run = make_run("dgd", data=data, graph=generate("path", 2, 0))
    initial = scattered(model, 2, spread=0.01)
    (looks,) = advance([run], model, iterations=1, initial=[initial], dtype=torch.float32, batch=2)
    (expected,) = islice(plain_loop(run, model, initial, iterations=1, batch_size=2), 1)
    assert (expected - initial).abs().max() > 1e-3
    assert torch.allclose(looks[-1].theta, expected, rtol=0, atol=1e-5)


# --- large and uneven stacks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", RULES)
def test_a_run_of_more_clients_than_the_dense_path_takes_is_the_plain_loop_s(order):
    model = build("svm", (6,), 3)
    n = DENSE + 7
    run = make_run(data=classified(samples=200), graph=erdos_renyi(n, 0, p=0.08), sgd=Beta(2.0, 5.0))
    assert_engine_equals_plain_loop([run], model, 40, order)


@pytest.mark.parametrize("order", RULES)
@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_runs_of_different_sizes_stacked_together_are_each_the_plain_loop_s(name, order):
    model, dataset = MODELS[name]()
    sizes = {"dspodfl": 3, "dgd": 6, "rg": 1, "sporadic_sgd": 6, "dfedavg": 2}
    runs = [make_run(algorithm, seed, n=n, data=dataset) for seed, (algorithm, n) in enumerate(sizes.items())]
    assert_engine_equals_plain_loop(runs, model, 40, order)


def test_a_large_run_stacked_with_small_ones_is_the_plain_loop_s():
    model, dataset = build("linear", (6,), 1, l2=0.1), regression(samples=100)
    runs = [
        make_run("dspodfl", 0, n=3, data=dataset),
        make_run("dspodfl", 1, data=dataset, graph=generate("ring", DENSE + 1, 0)),
        make_run("rg", 2, n=5, data=dataset),
    ]
    assert_engine_equals_plain_loop(runs, model, 30)


def test_runs_on_different_datasets_are_each_the_plain_loop_s():
    model = build("logistic", (6,), 3, l2=0.05)
    runs = [make_run("dspodfl", seed, n=4, data=classified(seed=seed, samples=20 + 10 * seed)) for seed in range(3)]
    assert_engine_equals_plain_loop(runs, model, 50)


# --- changing worlds ------------------------------------------------------------------------------------------


def topologies():
    start = generate("geometric", 6, 1, radius=0.45, allow_disconnected=True)
    graph = erdos_renyi(6, 2)
    return {
        "switching by period": Switching([generate("ring", 6, 0), generate("star", 6, 0)], period=3),
        "switching by times": Switching([graph, generate("path", 6, 0)], times=[0, 17]),
        "flicker": BernoulliLinks(graph, 4, 0.5),
        "markov": Markov(graph, 4, 0.2, 0.3),
        "waypoint": Waypoint(start, 1, 0.45, 100, (0.02, 0.1)),
    }


@pytest.mark.parametrize("kind", topologies())
def test_changing_topologies_are_the_plain_loop_s(kind):
    """Under every weight rule, and with links that fire always and sometimes."""
    model, dataset = MODELS["svm"]()
    topology = topologies()[kind]
    how = {"metropolis": "dspodfl", "lazy_metropolis": "dgd", "max_degree": "rg"}
    runs = [
        make_run(algorithm, 3, data=dataset, topology=topology, weights=weights) for weights, algorithm in how.items()
    ]
    assert_engine_equals_plain_loop(runs, model, 40)


@pytest.mark.parametrize("learning_rate", [Diminishing(0.3, gamma=10.0), Step(0.3, every=12, factor=0.5)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_falling_learning_rates_and_moving_rates_are_the_plain_loop_s(algorithm, learning_rate):
    model, dataset = MODELS["logistic"]()
    run = make_run(algorithm, 3, n=4, data=dataset, learning_rate=learning_rate, refresh=15, growth=learning_rate)
    two = make_run(algorithm, 4, n=4, data=dataset, learning_rate=learning_rate, refresh=7, two_sided=True)
    assert_engine_equals_plain_loop([run, two], model, 40)


def test_every_step_on_the_way_is_the_plain_loop_s():
    model, dataset = MODELS["logistic"]()
    run = make_run(data=dataset)
    initial = scattered(model, run.clients).double()
    (looks,) = advance([run], model, iterations=30, every=1, initial=[initial])
    assert [look.iteration for look in looks] == list(range(31))
    assert torch.equal(looks[0].theta, initial)
    steps = plain_loop(run, model, initial, iterations=30, batch_size=BATCH)
    for look, expected in zip(looks[1:], steps, strict=True):
        assert torch.allclose(look.theta, expected, rtol=0, atol=1e-12)
