"""The problem: minibatches by address, gradients of a stack, and evaluation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import MODELS, classified, federation, regression, scattered
from torch import nn

from dspodfl import rng
from dspodfl.problem import evaluation, sampling
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import Model, build, hinge
from dspodfl.problem.problem import Problem
from dspodfl.rng import Stream

K = np.arange(6)


def problem_of(name, clients=4, seed=0, batch=5, **more):
    model, dataset = MODELS[name]()
    return Problem(model, [(seed, federation(dataset, clients, seed))], batch_size=batch, **more)


# --- minibatches ----------------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1), st.integers(1, 6), st.integers(1, 9), st.integers(0, 10**9))
def test_minibatches_are_those_of_the_address_within_the_shard(seed, clients, batch, first):
    data = federation(classified(), clients, seed % 1000)
    problem = Problem(build("svm", (6,), 3), [(seed, data)], batch_size=batch)
    k = np.arange(first, first + 3)
    rows = problem.minibatches(k)
    assert rows.shape == (3, clients, batch)
    for t, at in enumerate(k.tolist()):
        for i, shard in enumerate(data.shards):
            words = [int(rng.words(seed, Stream.BATCH, i, k=at, slots=batch)[n]) for n in range(batch)]
            assert rows[t, i].tolist() == [int(shard[word * len(shard) >> 32]) for word in words]


def test_minibatches_are_drawn_uniformly_with_replacement():
    dataset = classified(samples=8)
    data = Federation(dataset, (np.array([1, 4, 6, 2, 7]), np.array([0, 3, 5])), {})
    rows = Problem(build("svm", (6,), 3), [(3, data)], batch_size=8).minibatches(np.arange(5000)).numpy()
    for client, shard in enumerate(data.shards):
        drawn = rows[:, client]
        assert set(np.unique(drawn)) == set(shard.tolist())
        p = 1 / len(shard)
        share = np.array([(drawn == sample).mean() for sample in shard])
        assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / drawn.size)).all()
        repeated = np.mean([len(set(batch)) < 8 for batch in drawn.tolist()])
        assert repeated == 1.0  # eight draws from at most five samples


def test_runs_of_several_datasets_find_their_own_samples():
    one, two = classified(seed=1, samples=20), classified(seed=2, samples=30)
    runs = [(7, federation(one, 3, 1)), (8, federation(two, 4, 2)), (9, federation(one, 2, 3))]
    problem = Problem(build("svm", (6,), 3), runs, batch_size=6)
    rows = problem.minibatches(K)
    alone = [Problem(build("svm", (6,), 3), [run], batch_size=6) for run in runs]
    x = torch.cat([p.x[p.minibatches(K)] for p in alone], dim=1)
    y = torch.cat([p.y[p.minibatches(K)] for p in alone], dim=1)
    assert torch.equal(problem.x[rows], x) and torch.equal(problem.y[rows], y)
    assert len(problem.x) == 50  # a dataset is held once, however many runs use it
    assert problem.dataset_of_run == [0, 1, 0]


def test_runs_that_share_seed_and_federation_share_their_minibatches():
    data = federation(classified(), 3, 1)
    rows = Problem(build("svm", (6,), 3), [(7, data), (7, data), (8, data)], batch_size=6).minibatches(K)
    assert torch.equal(rows[:, :3], rows[:, 3:6])
    assert not torch.equal(rows[:, :3], rows[:, 6:])


# --- gradients ------------------------------------------------------------------------------------------------


def gradients(problem, theta, scale=None, t=2):
    """Gradients of the models as they are, at the t-th of the iterations K."""
    x, y = problem.batches(K)[t]
    return problem.unpack(problem.gradient(problem.pack(theta), x, y, scale))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_the_gradients_of_a_stack_are_those_of_each_client_by_autograd(name, dtype, close):
    problem = problem_of(name, dtype=dtype)
    theta = scattered(problem.model, 4, dtype=dtype)
    rows = problem.minibatches(K)[2]
    got = gradients(problem, theta)
    assert got.shape == theta.shape and got.dtype == dtype
    dataset = problem.datasets[0]
    inputs = torch.from_numpy(dataset.normalized(dataset.x_train)).to(dtype)
    target = torch.from_numpy(dataset.y_train)
    target = target.to(dtype) if target.is_floating_point() else target
    for i in range(4):
        point = theta[i].clone().requires_grad_()
        problem.model.objective(point, inputs[rows[i]], target[rows[i]]).backward()
        assert point.grad.abs().max() > 1e-3
        assert torch.allclose(got[i], point.grad, rtol=0, atol=close)
    scale = torch.tensor([-0.5, 0.0, 2.0, 1.0], dtype=dtype)
    assert torch.allclose(gradients(problem, theta, scale), scale[:, None] * got, rtol=0, atol=close)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_packed_for_the_gradients_and_unpacked_again(name):
    problem = problem_of(name)
    theta = torch.arange(4.0 * problem.model.parameters).reshape(4, -1)
    packed = problem.pack(theta)
    assert torch.equal(problem.unpack(packed), theta)
    assert torch.equal(packed.sort(dim=1).values, theta)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("numbers", [1, 500, 1_000_000])
def test_inputs_and_targets_are_those_of_the_minibatches_however_many_are_gathered_at_a_time(
    name, numbers, monkeypatch
):
    problem = problem_of(name, dtype=torch.float64)
    rows = problem.minibatches(K)
    monkeypatch.setattr(sampling, "_MAX_INPUTS_PER_CHUNK", numbers)
    batches = problem.batches(K)
    for t in (0, 1, 2, 3, 4, 5, 2, 0):
        x, y = batches[t]
        assert torch.equal(x, problem.inputs(rows[t]))
        assert torch.equal(x.flatten(2)[..., :6], problem.x[rows[t]].flatten(2)[..., :6].double())
        assert torch.equal(y, problem.y[rows[t]].to(y.dtype))


@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_gradients_may_be_computed_in_another_precision_than_the_parameters_are_kept(name):
    plain = problem_of(name, dtype=torch.float32)
    exact = problem_of(name, dtype=torch.float32, compute=torch.float64)
    coarse = problem_of(name, dtype=torch.float32, compute=torch.bfloat16)
    theta = scattered(plain.model, 4)
    reference = gradients(problem_of(name, dtype=torch.float64), theta.double())
    assert gradients(exact, theta).dtype == gradients(coarse, theta).dtype == torch.float32
    assert torch.equal(gradients(exact, theta), reference.float())
    assert 1e-5 < (gradients(coarse, theta) - reference).abs().max() < 0.05


def test_the_hinge_gradient_is_zero_where_every_margin_is_kept():
    dataset = Dataset.from_arrays(np.eye(3, dtype=np.float32), [0, 1, 2], np.eye(3, dtype=np.float32), [0, 1, 2])
    data = Federation(dataset, (np.array([0]), np.array([1, 2])), {})
    problem = Problem(build("svm", (3,), 3), [(0, data)], batch_size=4)
    kept = torch.cat([2 * torch.eye(3).flatten(), torch.zeros(3)])
    broken = torch.zeros(12)
    got = gradients(problem, torch.stack([kept, broken]))
    assert not got[0].any()
    assert got[1].any()


# --- evaluation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["svm", "logistic", "mlp", "cnn", "custom"])
def test_evaluation_of_a_classifier_is_the_plain_computation(name):
    problem = problem_of(name, dtype=torch.float64)
    dataset, theta = problem.datasets[0], scattered(problem.model, 4, dtype=torch.float64)
    got = problem.evaluate(theta, 0)
    inputs = torch.from_numpy(dataset.normalized(dataset.x_test)).double()
    for i in range(4):
        right, loss = 0, 0.0
        for x, y in zip(inputs, dataset.y_test.tolist(), strict=True):
            s = problem.model.scores(theta[i], x[None])[0]
            right += int(s.argmax()) == y
            if name == "svm":
                loss += float(hinge(s, torch.tensor(y)))
            else:
                loss += float(torch.logsumexp(s, 0) - s[y])
        assert float(got.accuracy[i]) == right / len(dataset.y_test)
        assert float(got.loss[i]) == pytest.approx(loss / len(dataset.y_test), rel=1e-12)
    assert got.accuracy.dtype == got.loss.dtype == torch.float64


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_evaluation_of_a_regression_has_a_loss_and_no_accuracy(name):
    dataset = regression()
    model = build(name, (6,), 1)
    problem = Problem(model, [(0, federation(dataset, 3))], batch_size=2, dtype=torch.float64)
    theta = scattered(model, 3, dtype=torch.float64)
    got = problem.evaluate(theta, 0)
    assert got.accuracy is None
    for i in range(3):
        error = model.scores(theta[i], torch.from_numpy(dataset.x_test).double())[:, 0] - torch.from_numpy(
            dataset.y_test
        )
        assert float(got.loss[i]) == pytest.approx(float(error.square().mean() / 2), rel=1e-12)


def test_the_loss_of_an_evaluation_leaves_the_penalty_out():
    dataset = classified()
    theta = scattered(build("logistic", (6,), 3), 2)
    losses = [
        Problem(build("logistic", (6,), 3, l2=l2), [(0, federation(dataset, 2))], batch_size=2).evaluate(theta, 0).loss
        for l2 in (0.0, 1.0)
    ]
    assert torch.equal(*losses)


def test_only_the_scores_of_the_data_s_classes_count_for_accuracy_and_all_of_them_for_the_loss():
    """As with the 1000-way head of VGG11: here, 9 scores for 3 classes, the last ones always the largest."""
    dataset = classified()
    wide = nn.Linear(6, 9)
    with torch.no_grad():
        wide.bias[3:] = 100.0
    model = Model("wide", nn.Sequential(wide), "cross_entropy", (6,), 3)
    problem = Problem(model, [(0, federation(dataset, 2))], batch_size=2)
    theta = model.initial(0)[None]
    scores = model.scores(theta[0], torch.from_numpy(dataset.x_test)).detach()
    y = torch.from_numpy(dataset.y_test)
    got = problem.evaluate(theta, 0)
    assert float(got.accuracy[0]) == float((scores[:, :3].argmax(dim=1) == y).double().mean()) > 0
    assert float(got.loss[0]) == pytest.approx(float(nn.functional.cross_entropy(scores, y)), rel=1e-6)
    assert float(got.loss[0]) > 50


def test_every_run_is_evaluated_on_the_test_set_of_its_own_data():
    one, two = classified(seed=1), classified(seed=2, test_samples=31)
    model = build("svm", (6,), 3)
    problem = Problem(model, [(0, federation(one, 2)), (0, federation(two, 2))], batch_size=2)
    theta = scattered(model, 3)
    for run, dataset in enumerate((one, two)):
        alone = Problem(model, [(0, federation(dataset, 2))], batch_size=2).evaluate(theta, 0)
        got = problem.evaluate(theta, run)
        assert torch.equal(got.accuracy, alone.accuracy) and torch.equal(got.loss, alone.loss)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("samples", "models"), [(1, 5), (25, 1), (7, 2)])
def test_evaluation_in_chunks_is_the_same_as_in_one_piece(name, samples, models, monkeypatch):
    problem = problem_of(name, dtype=torch.float64)
    theta = scattered(problem.model, 5, dtype=torch.float64)
    monkeypatch.setattr(problem._evaluator, "_chunks", lambda count: (count, 5))
    whole = problem.evaluate(theta, 0)
    monkeypatch.setattr(problem._evaluator, "_chunks", lambda count: (samples, models))
    chunked = problem.evaluate(theta, 0)
    assert torch.allclose(chunked.loss, whole.loss, rtol=1e-13, atol=0)
    assert (chunked.accuracy is None and whole.accuracy is None) or torch.equal(chunked.accuracy, whole.accuracy)


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_takes_fewer_models_at_a_time_where_less_may_be_held(name, monkeypatch):
    problem = problem_of(name)
    least, most, plain = [], [], problem._evaluator._scores
    for sizes, at_once in ((least, 1), (most, 10**9)):
        monkeypatch.setitem(evaluation._MAX_SCORES_PER_BATCH, "cpu", at_once)
        monkeypatch.setattr(evaluation, "_MAX_INPUTS_PER_BATCH", 8 * at_once)
        monkeypatch.setattr(problem._evaluator, "_scores", lambda t, n, x, s=sizes: s.append(n) or plain(t, n, x))
        problem.evaluate(scattered(problem.model, 5), 0)
    assert set(least) == {1} and set(most) == {5}


@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_a_test_set_evaluated_in_pieces_is_evaluated_whole(name):
    """Networks take 256 samples at a time, linear models 500; here the last piece has all the right answers."""
    model = build(name, (6,), 3)
    theta = scattered(model, 1)
    x = np.random.default_rng(1).normal(size=(600, 6)).astype(np.float32)
    guess = model.scores(theta[0], torch.from_numpy(x)).argmax(dim=1).numpy()
    y = np.where(np.arange(600) < 512, (guess + 1) % 3, guess)
    dataset = Dataset("pieces", x, y, x, y, 3)
    got = Problem(model, [(0, federation(dataset, 2))], batch_size=2).evaluate(theta, 0)
    assert float(got.accuracy[0]) == 88 / 600


def test_evaluation_leaves_no_graph_behind():
    problem = problem_of("mlp")
    theta = scattered(problem.model, 2).requires_grad_()
    got = problem.evaluate(theta, 0)
    assert not got.loss.requires_grad and not got.accuracy.requires_grad


@pytest.mark.parametrize("scaled", [False, True])
def test_convolutions_one_client_at_a_time_give_the_gradients_of_the_batched_way(scaled):
    problem = problem_of("cnn", dtype=torch.float64)
    theta, (x, y) = scattered(problem.model, 4, dtype=torch.float64), problem.batches(K)[1]
    scale = torch.tensor([0.5, 0.0, 2.0, 0.0], dtype=torch.float64) if scaled else None
    assert problem._gradients.looped and problem._evaluator.looped
    looped, evaluated = problem.gradient(theta, x, y, scale), problem.evaluate(theta, 0)
    problem._gradients.looped = problem._evaluator.looped = False
    assert torch.allclose(looped, problem.gradient(theta, x, y, scale), rtol=0, atol=1e-13)
    assert torch.allclose(evaluated.loss, problem.evaluate(theta, 0).loss, rtol=1e-13, atol=0)
