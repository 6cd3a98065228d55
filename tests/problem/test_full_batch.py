"""Full gradients: the exact mean over all samples of each client, whoever is stacked with it."""

import numpy as np
import pytest
import torch
from tests.engine.test_sharded import assert_the_same, split_up
from tests.worlds import MODELS, advance, classified, federation, final, make_run, scattered

from dspodfl.algorithms import Constant, make
from dspodfl.algorithms.base import Algorithm
from dspodfl.engine import Split, Stack, plain_loop
from dspodfl.engine.steppers.base import choose
from dspodfl.engine.steppers.plain import Plain
from dspodfl.network import generate
from dspodfl.problem import full_batch
from dspodfl.problem.data.dataset import Federation
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem


def by_autograd(model, data, i, theta):
    """The gradient of the mean loss over a client's samples, the penalty included."""
    rows = data.shards[i]
    x = torch.from_numpy(data.dataset.normalized(data.dataset.x_train[rows])).to(theta.dtype)
    y = torch.from_numpy(data.dataset.y_train[rows])
    point = theta.clone().requires_grad_()
    (found,) = torch.autograd.grad(model.objective(point, x, y.to(theta.dtype) if y.is_floating_point() else y), point)
    return found


def uneven(dataset, sizes):
    """Clients with shards of these sizes."""
    return Federation(dataset, tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])), {})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("piece", [4, 256])
def test_gradients_are_those_of_the_mean_loss_over_each_shard(name, piece, monkeypatch):
    monkeypatch.setattr(full_batch, "PIECE", piece)
    monkeypatch.setattr(full_batch, "SAMPLES_AT_ONCE", 2 * piece)
    model, dataset = MODELS[name]()
    data = uneven(dataset, [1, 2, 3, 7, 16, 31])
    theta = scattered(model, 6, dtype=torch.float64)
    problem = Problem(model.to("cpu", torch.float64), [(0, data)], batch_size=0, dtype=torch.float64)
    scale = torch.tensor([1.0, 0.0, -2.0, 0.5, 0.0, 1.0], dtype=torch.float64)
    for factor in (None, scale, torch.ones(6, dtype=torch.float64)):
        found = problem.unpack(problem.full.gradient(problem.pack(theta), factor))
        for i in range(6):
            times = 1.0 if factor is None else factor[i]
            expected = times * by_autograd(problem.model, data, i, theta[i])
            assert torch.allclose(found[i], expected, rtol=0, atol=1e-12), (name, i)


def test_inputs_that_are_not_kept_give_the_same_gradients_to_the_bit(monkeypatch):
    model, dataset = MODELS["svm"]()
    data, theta = uneven(dataset, [5, 20, 35]), scattered(model, 3)
    found = []
    for most in (0, 2**20):
        monkeypatch.setattr(full_batch, "_MAX_KEPT_INPUTS", most)
        problem = Problem(model, [(0, data)], batch_size=0)
        found += [problem.full.gradient(problem.pack(theta)) for _ in range(2)]
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("name", ["svm", "linear", "mlp"])
def test_of_one_sample_a_client_it_is_the_minibatch_of_that_sample(name):
    model, dataset = MODELS[name]()
    data = uneven(dataset, [1] * 7)
    run = make_run(data=data, n=7, learning_rate=Constant(0.2))
    full, one = (final([run], model, iterations=40, batch=batch)[0] for batch in (0, 1))
    assert torch.allclose(full, one, rtol=0, atol=1e-12)
    assert (full - scattered(model, 7, 0, torch.float64)).abs().max() > 1e-3


@pytest.mark.parametrize("order", ["simultaneous", "combine_then_adapt", "adapt_then_combine"])
@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_the_engine_with_full_gradients_is_the_plain_loop(name, order):
    model, dataset = MODELS[name]()
    runs = [make_run(algorithm, seed, data=dataset) for algorithm, seed in (("dspodfl", 0), ("dgd", 0), ("rg", 3))]
    looks = advance(runs, model, iterations=25, batch=0, rule=order)
    for run, look in zip(runs, looks, strict=True):
        start = scattered(model, run.clients, run.seed).double()
        *_, last = plain_loop(run, model, start, iterations=25, batch_size=0, order=order)
        assert torch.allclose(look[-1].theta, last, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_stacked_is_alone_and_split_is_whole(name):
    """Shards of other runs have other sizes."""
    model, dataset = MODELS[name]()
    _, rule = make(Algorithm("t", schedule="dspodfl", rule="gradient_tracking"))
    runs = [make_run("dspodfl", seed, n=7, data=dataset) for seed in range(3)]
    together = final(runs, model, iterations=20, rule=rule, batch=0)
    for run, found in zip(runs, together, strict=True):
        (alone,) = final([run], model, iterations=20, rule=rule, batch=0)
        assert torch.allclose(alone, found, rtol=0, atol=1e-12)
    if model.is_linear:  # threads cannot share a module
        looks, _, _ = split_up(runs, model, 3, rule=rule, batch=0)
        assert_the_same(runs, model, looks, rule=rule, close=1e-9, batch=0)


def test_the_kernels_that_take_minibatches_are_not_chosen():
    model, dataset = MODELS["svm"]()
    run = make_run(data=dataset)
    problem, stack = Problem(model, [(0, run.data)], batch_size=0), Stack([run])
    rule = make(Algorithm("d", schedule="dspodfl"))[1]
    stepper = choose(Split.local(stack), problem, rule, problem.pack(scattered(model, run.clients)))
    assert isinstance(stepper, Plain)


def test_large_shards_are_cut_and_each_sample_counts_once():
    dataset = classified(samples=1000)
    model = build("logistic", (6,), 3, l2=0.1)
    data = federation(dataset, 3, seed=5)
    assert max(map(len, data.shards)) > full_batch.PIECE
    theta = scattered(model, 3, dtype=torch.float64)
    problem = Problem(model, [(0, data), (0, data)], batch_size=0, dtype=torch.float64)
    twice = problem.unpack(problem.full.gradient(problem.pack(torch.cat([theta, theta + 1]))))
    for i in range(3):
        for r, point in enumerate((theta[i], theta[i] + 1)):
            assert torch.allclose(twice[3 * r + i], by_autograd(model, data, i, point), rtol=0, atol=1e-12)


def test_gradient_descent_with_full_gradients_draws_nothing():
    """Runs of two seeds on the same shards and graph, in which everything fires, are the same run."""
    model, dataset = MODELS["logistic"]()
    data, graph = uneven(dataset, [4, 20, 36]), generate("ring", 3, 0)
    start = [scattered(model, 3, 0)] * 2
    runs = [make_run("dgd", seed, data=data, graph=graph) for seed in (0, 1)]
    one, other = final(runs, model, iterations=10, batch=0, initial=start)
    assert torch.allclose(one, other, rtol=0, atol=1e-12)
