"""Methods with a kernel of their own: the compiled way is the plain way, in models and in what they carry."""

from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
import torch
from tests.worlds import MODELS, advance, erdos_renyi, final, make_run, scattered

from dspodfl._kernels.cpu import linear as compiled
from dspodfl.algorithms import Algorithm, Attack, fused_kernel, make
from dspodfl.algorithms.attacks import Noise
from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.algorithms.methods.gradient_tracking import Tracking
from dspodfl.engine import Shard, Split, Stack, simulate
from dspodfl.engine.steppers.base import choose
from dspodfl.engine.steppers.compiled_methods import CompiledMethod
from dspodfl.engine.steppers.plain import Plain
from dspodfl.engine.transport.base import LocalTransport
from dspodfl.network import Budget
from dspodfl.network.topology import BernoulliLinks
from dspodfl.problem.problem import Problem

pytestmark = pytest.mark.skipif(not compiled.available(), reason="needs Numba")

METHODS = {
    "diging": ("gradient_tracking", {}),
    "atc": ("gradient_tracking", {"form": "atc"}),
    "aug_dgm": ("gradient_tracking", {"form": "aug_dgm"}),
    "scaffnew": ("scaffnew", {"probability": 0.4}),
    "decentralized": ("decentralized_scaffnew", {"probability": 0.5, "s": 0.7}),
    "sporadic": ("sporadic_scaffnew", {}),
    "by ratio": ("sporadic_scaffnew", {"factor": "ratio", "s": 0.3}),
    "diffusion": ("exact_diffusion", {}),
}
LINEAR = ["svm", "logistic", "linear"]


def made(name):
    method, settings = METHODS[name]
    return make(Algorithm(method, schedule=method, rule=method, settings=settings))


def runs_of(name, data, **more):
    """Runs of several sizes and graphs, one of them without any link, one whose links come and go."""
    schedule, _ = made(name)
    rate = Diminishing(0.1, gamma=50.0)
    plain = [make_run("dspodfl", s, n=n, data=data, schedule=schedule, **more) for s, n in enumerate((5, 1, 9))]
    if name == "scaffnew":  # on the complete graph, whatever the graph is
        return plain
    moving = BernoulliLinks(erdos_renyi(6, 3), 3, 0.5)
    return [*plain, make_run("dspodfl", 3, data=data, topology=moving, schedule=schedule, learning_rate=rate)]


@pytest.fixture
def plain(monkeypatch):
    """Without a compiler."""
    return lambda: monkeypatch.setattr(compiled, "available", lambda: False)


def chosen(name, *, model="svm", split=None, attack=None, batch_size=4, rule=None, **more):
    model, data = MODELS[model]()
    runs = runs_of(name, data, attack=attack)[:1]
    stack = Stack(runs)
    problem = Problem(model, [(run.seed, run.data) for run in runs], batch_size=batch_size, **more)
    rule = rule or made(name)[1]
    split = split(stack) if split else Split.local(stack)
    return choose(split, problem, rule, problem.pack(scattered(model, split.shard.clients).to(problem.dtype)))


@pytest.mark.parametrize("name", METHODS)
def test_linear_models_are_compiled_and_everything_else_is_not(name):
    assert type(chosen(name)) is CompiledMethod
    assert type(chosen(name, model="mlp")) is Plain
    assert type(chosen(name, batch_size=0)) is Plain
    assert type(chosen(name, compute=torch.bfloat16)) is Plain


def test_under_attack_and_over_several_processes_rules_are_called():
    def half(stack):
        return Split(Shard.of(stack, [np.arange(run.clients) % 2 for run in stack.runs], 0, 2), LocalTransport())

    assert type(chosen("diging", attack=Attack((0,), Noise(1.0)))) is Plain
    model, data = MODELS["svm"]()
    stack = Stack(runs_of("diging", data)[:1])
    split = half(stack)
    problem = Problem(model, [(0, stack.runs[0].data)], batch_size=4)
    assert not CompiledMethod.available(split, problem, made("diging")[1])


def test_a_rule_with_another_step_is_called():
    @dataclass(frozen=True)
    class Other(Tracking):
        def step(self, theta, state, at):
            return theta, state

    assert fused_kernel(Tracking()) is not None and fused_kernel(Other()) is None
    assert type(chosen("diging", rule=Other())) is Plain


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 5e-5)])
@pytest.mark.parametrize("model", LINEAR)
@pytest.mark.parametrize("name", METHODS)
def test_compiled_is_plain(name, model, dtype, near, plain):
    model, data = MODELS[model]()
    runs, (_, rule) = runs_of(name, data), made(name)
    fast = advance(runs, model, iterations=40, every=13, dtype=dtype, rule=rule)
    plain()
    slow = advance(runs, model, iterations=40, every=13, dtype=dtype, rule=rule)
    for one, other in zip(fast, slow, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.allclose(a.theta, b.theta, rtol=near, atol=near)
            assert asdict(a.counters) == asdict(b.counters)
    assert not torch.equal(fast[0][0].theta, fast[0][-1].theta)


def carried(runs, model, rule, iterations=25):
    """What the rule carries in the end, by run."""
    problem = Problem(model, [(run.seed, run.data) for run in runs], batch_size=4, dtype=torch.float64)
    start = torch.cat([scattered(model, run.clients, run.seed) for run in runs]).double()
    for shot in simulate(Stack(runs), problem, rule, start, iterations=iterations, every=iterations):
        found = [{key: a.clone() for key, a in piece.clients.items()} for piece in shot.state.pieces()]
    return found


@pytest.mark.parametrize("name", METHODS)
def test_what_is_carried_has_the_form_that_the_rule_gives_it(name, plain):
    model, data = MODELS["svm"]()
    runs, (_, rule) = runs_of(name, data), made(name)
    fast = carried(runs, model, rule)
    plain()
    for one, other in zip(fast, carried(runs, model, rule), strict=True):
        assert one.keys() == other.keys() and any(key.startswith("rule.") for key in one)
        assert all(torch.allclose(one[key], other[key], rtol=1e-11, atol=1e-11) for key in one)


@pytest.mark.parametrize("name", ["diging", "aug_dgm", "sporadic"])
def test_a_run_that_is_over_rests_while_others_go_on(name, plain):
    model, data = MODELS["svm"]()
    runs, (_, rule) = runs_of(name, data), made(name)
    runs[0] = replace(runs[0], budget=Budget("delay", 30.0))
    together = final(runs, model, iterations=40, rule=rule)
    (alone,) = final(runs[:1], model, iterations=40, rule=rule)
    assert torch.equal(together[0], alone)
    plain()
    for one, other in zip(together, final(runs, model, iterations=40, rule=rule), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_threads_and_company_change_no_bit(name, threads, monkeypatch):
    model, data = MODELS["svm"]()
    runs, (_, rule) = runs_of(name, data), made(name)
    want = [final([run], model, iterations=20, rule=rule)[0] for run in runs]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for one, other in zip(final(runs, model, iterations=20, rule=rule), want, strict=True):
        assert torch.equal(one, other)


class GradientsOnly:
    """Asks for gradients and mixes in every way that a rule can."""

    def init(self, theta, links):
        return theta.new_zeros(theta.shape), theta.new_zeros(len(theta), 2)

    def step(self, theta, state, at):
        held, narrow = state
        whole, some = at.gradient(theta + held), at.gradient(theta, at.lr * at.v)
        columns = at.mix(theta.T.contiguous().T, minus=some.T.contiguous().T)
        narrow = at.mix(narrow + theta[:, :2])
        return at.mix(columns), (at.mix(held + 0.1 * whole, minus=0.5 * some), narrow)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
@pytest.mark.parametrize("model", LINEAR)
def test_gradients_and_mixing_of_rules_without_a_kernel_are_the_plain_ones(model, dtype, near, plain):
    model, data = MODELS[model]()
    runs = runs_of("diging", data)
    fast = final(runs, model, iterations=15, dtype=dtype, rule=GradientsOnly())
    plain()
    for one, other in zip(fast, final(runs, model, iterations=15, dtype=dtype, rule=GradientsOnly()), strict=True):
        assert torch.allclose(one, other, rtol=near, atol=near)
