"""The ways to advance a stack on the CPU: compiled code and PyTorch's own operations, the same models."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from tests.worlds import ALGORITHMS, MODELS, advance, erdos_renyi, final, make_run, scattered

from dspodfl._kernels.cpu import linear as compiled
from dspodfl._kernels.cuda import conv_reference
from dspodfl.algorithms.learning_rate import Constant, Diminishing
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Stack
from dspodfl.engine.exchange import Split
from dspodfl.engine.steppers.base import choose
from dspodfl.engine.steppers.compiled import SINGLE, Compiled
from dspodfl.engine.steppers.plain import Plain
from dspodfl.network import generate
from dspodfl.network.topology import BernoulliLinks, Waypoint
from dspodfl.problem import problem as problems
from dspodfl.problem.data.dataset import Dataset
from dspodfl.problem.models.stacked.network import Stacked
from dspodfl.problem.problem import Problem

LINEAR = ["svm", "logistic", "linear"]


def five_runs(dataset, **more):
    return [make_run(algorithm, seed, data=dataset, **more) for seed, algorithm in enumerate(ALGORITHMS)]


def chosen(name, rule="simultaneous", **more):
    model, dataset = MODELS[name]()
    stack = Stack(five_runs(dataset))
    problem = Problem(model, [(run.seed, run.data) for run in stack.runs], batch_size=4, **more)
    return choose(
        Split.local(stack), problem, RULES[rule], problem.pack(scattered(model, stack.clients).to(problem.dtype))
    )


@pytest.fixture
def plain(monkeypatch):
    """Without a compiler."""
    return lambda: monkeypatch.setattr(compiled, "available", lambda: False)


@pytest.mark.skipif(not compiled.available(), reason="needs Numba")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("order", RULES)
def test_the_paper_s_update_of_linear_models_is_compiled_and_everything_else_is_not(name, order):
    expected = Compiled if name in LINEAR and order == "simultaneous" else Plain
    assert type(chosen(name, order)) is expected


def test_without_a_compiler_everything_goes_the_plain_way(plain):
    plain()
    assert type(chosen("svm")) is Plain


def test_gradients_in_another_precision_than_the_models_go_the_plain_way():
    assert type(chosen("svm", compute=torch.bfloat16)) is Plain


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("name", LINEAR)
def test_compiled_is_plain(name, dtype, close, plain):
    model, dataset = MODELS[name]()
    start = generate("geometric", 6, 1, radius=0.45, allow_disconnected=True)
    runs = [
        *five_runs(dataset),
        make_run("dspodfl", 6, n=1, data=dataset),
        make_run("dgd", 7, data=dataset, topology=BernoulliLinks(erdos_renyi(5, 1), 7, 0.5)),
        make_run("rg", 8, data=dataset, topology=Waypoint(start, 8, 0.45, 60, (0.02, 0.1))),
        make_run("sporadic_sgd", 9, data=dataset, refresh=9, learning_rate=Diminishing(0.3, gamma=10.0)),
    ]
    fast = advance(runs, model, iterations=60, every=13, dtype=dtype, at_delay=[20.0])
    plain()
    slow = advance(runs, model, iterations=60, every=13, dtype=dtype, at_delay=[20.0])
    for one, other in zip(fast, slow, strict=True):
        assert [look.iteration for look in one] == [look.iteration for look in other]
        for a, b in zip(one, other, strict=True):
            assert torch.allclose(a.theta, b.theta, rtol=0, atol=close)
            assert asdict(a.counters) == asdict(b.counters)


@pytest.mark.skipif(not compiled.available(), reason="needs Numba")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_compiled_models_do_not_depend_on_threads_or_company_to_the_last_bit(threads, monkeypatch):
    model, dataset = MODELS["svm"]()
    runs = five_runs(dataset)
    together = advance(runs, model, iterations=40, dtype=torch.float32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for run, looks in zip(runs, together, strict=True):
        (alone,) = advance([run], model, iterations=40, every=7, dtype=torch.float32)
        assert torch.equal(alone[-1].theta, looks[-1].theta)


def test_bytes_are_normalized_where_they_are_used(plain):
    """Stored bytes give the models that their normalized floats give."""
    model = MODELS["svm"]()[0]
    random = np.random.default_rng(0)
    raw, test = (random.integers(0, 256, (count, 6), dtype=np.uint8) for count in (60, 25))
    y, y_test = np.arange(60) % 3, np.arange(25) % 3
    stored = Dataset("bytes", raw, y, test, y_test, 3, scale=2 / 255, shift=-1.0)
    floats = Dataset("floats", stored.normalized(raw), y, stored.normalized(test), y_test, 3)
    for _ in range(2):
        one, other = (
            advance([make_run(data=data)], model, iterations=40, dtype=torch.float64)[0][-1].theta
            for data in (stored, floats)
        )
        assert torch.equal(one, other)
        plain()


@pytest.mark.parametrize("compiler", [True, False])
def test_a_frozen_run_stays_as_it_is_by_every_way(compiler, plain):
    if not compiler:
        plain()
    model, dataset = MODELS["linear"]()
    runs = five_runs(dataset)
    runs[2] = replace(runs[2], learning_rate=Constant(1e200))
    looks = advance(runs, model, iterations=60, every=10)
    first = next(n for n, look in enumerate(looks[2]) if look.diverged)
    for look in looks[2][first:]:
        assert torch.equal(look.theta.nan_to_num(), looks[2][first].theta.nan_to_num())
    assert all(not look.diverged for r in (0, 1, 3, 4) for look in looks[r])


def test_a_run_goes_on_alone_for_a_while_where_the_cores_are_busy(monkeypatch):
    way = chosen("svm")
    if type(way) is not Compiled:
        pytest.skip("needs Numba")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    _, dataset = MODELS["svm"]()
    (block,) = Stack(five_runs(dataset)).blocks(200, 200, "cpu", torch.float32)
    way.load(block)
    heard = []
    monkeypatch.setattr(compiled, "advance", lambda **how: heard.append(how["threads"]) or 10_000 * (len(heard) == 3))
    for t in range(40):
        way.advance(t, t + 1)
    assert heard == [2] * 3 + [1] * SINGLE + [2] * (40 - 3 - SINGLE)


def test_rounding_factors_to_tf32_alone_moves_a_small_cnn_as_far_as_the_kernels_are_allowed(monkeypatch):
    """In float64: after five steps most runs are within 1e-3, and one, where something flips, is beyond 1e-2."""

    def to_tf32(value, precision):
        bits = value.float().contiguous().view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(value.dtype)  # to nearest, 10 bits behind the point

    model, dataset = MODELS["cnn"]()
    runs = five_runs(dataset)
    initial = [scattered(model, run.clients, run.seed) for run in runs]
    plain = final(runs, model, iterations=5, initial=initial)
    monkeypatch.setattr(problems, "_stacked_network", lambda model, *_: Stacked.of(model, "tf32"))
    exact = final(runs, model, iterations=5, initial=initial)
    monkeypatch.setattr(conv_reference, "_rounded", to_tf32)
    rounded = final(runs, model, iterations=5, initial=initial)

    def away(found):
        return sorted(float((a - b).norm() / a.norm()) for a, b in zip(plain, found, strict=True))

    assert away(exact)[-1] < 1e-12
    assert away(rounded)[2] < 1e-3
    assert 1e-2 < away(rounded)[-1] < 3e-2
