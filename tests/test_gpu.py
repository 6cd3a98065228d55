"""On a CUDA device: the same events, minibatches and delays, and the same parameters, by every way there is."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from tests.study.test_budgets import study
from tests.worlds import ALGORITHMS, MODELS, advance, classified, erdos_renyi, federation, final, make_run, scattered

from dspodfl import Config, run
from dspodfl._kernels import triton_support as _triton
from dspodfl.algorithms import local_table, with_local
from dspodfl.algorithms.learning_rate import Constant
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Stack, simulate
from dspodfl.engine.steppers import base as steppers
from dspodfl.engine.steppers import cuda_base
from dspodfl.network import generate
from dspodfl.network.budget import Budget
from dspodfl.network.laws import Beta
from dspodfl.network.topology import BernoulliLinks, Waypoint
from dspodfl.problem.problem import Problem
from dspodfl.study.builder import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXACT = ["iteration", "sgd_steps", "link_uses", "bytes"]
CLOSE = {"fp32": 2e-5, "tf32": 3e-2, "bf16": 5e-2}
"""How far models may be from those of the plain way after a few steps, by the precision of the products.

tf32 is wide for one case: one run of the small cnn is 0.013 to 0.017 away after five steps. That is what rounding the
factors does by itself, in float64 on a CPU as well: tests/engine/test_steppers.py shows it.
"""
PRECISION = {
    "fp32": {},
    "tf32": {"tf32": True},
    "bf16": {"compute": torch.bfloat16},
}


def config(**changes):
    tables = {
        "seeds": 2,
        "data": {"name": "synthetic", "partition": {"kind": "labels", "per_client": 2}},
        "train": {"iterations": 120, "precision": "fp64"},
        "eval": {"every": 40, "at_delay": [50.0]},
    }
    return Config(**{**tables, **changes})


def five_runs(dataset, n=5, **more):
    return [make_run(algorithm, seed, n=n, data=dataset, **more) for seed, algorithm in enumerate(ALGORITHMS)]


def on_gpu(runs, model, **more):
    return advance(runs, model, dtype=torch.float32, device="cuda", **more)


@pytest.mark.parametrize("model", [{"name": "svm"}, {"name": "logistic", "l2": 0.1}, {"name": "mlp"}])
def test_a_study_on_cuda_is_the_study_on_the_cpu(model):
    on_cpu, on_cuda = (run(config(model=model), device=device) for device in ("cpu", "cuda"))
    assert on_cpu.metrics[EXACT].equals(on_cuda.metrics[EXACT])
    delays = [column for column in on_cpu.metrics if column.startswith("delay")]
    assert on_cpu.metrics[delays].equals(on_cuda.metrics[delays])
    for algorithm in on_cpu.config["algorithms"]:
        for ours, theirs in zip(on_cpu.models(algorithm, 1), on_cuda.models(algorithm, 1), strict=True):
            assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-9) for name in ours)


def test_minibatches_on_cuda_are_those_of_the_cpu():
    _, study = build(config())
    runs = [(r.seed, r.data) for r in study.runs]
    on_cpu, on_cuda = (Problem(study.model, runs, batch_size=16, device=device) for device in ("cpu", "cuda"))
    k = np.arange(5, 25)
    assert torch.equal(on_cpu.minibatches(k), on_cuda.minibatches(k).cpu())


def test_events_and_delays_drawn_on_cuda_are_those_of_the_cpu_to_the_last_bit():
    data = classified(samples=300)
    start = generate("geometric", 6, 1, radius=0.45, allow_disconnected=True)
    runs = [
        *five_runs(data, refresh=7, two_sided=True),
        *five_runs(data, n=3),
        make_run(data=data, graph=erdos_renyi(80, 3, p=0.3)),  # more links than are added in one row
        make_run(seed=8, data=data, topology=BernoulliLinks(erdos_renyi(5, 1), 7, 0.5)),
        make_run(seed=9, data=data, topology=Waypoint(start, 1, 0.45, 60, (0.02, 0.1))),
    ]
    stack = Stack(runs)
    for here, there in zip(stack.blocks(60, 25, "cpu"), stack.blocks(60, 25, "cuda"), strict=True):
        for name in ("v", "v_hat", "active", "lr"):
            assert torch.equal(getattr(here, name), getattr(there, name).cpu()), name
        for name, value in vars(here.tally).items():
            if name != "spent":
                assert torch.equal(value, getattr(there.tally, name).cpu()), name
        last = len(here.k)
        for ours, theirs in zip(here.tally.spent(last), there.tally.spent(last), strict=True):
            assert torch.equal(ours.cpu(), theirs.cpu())


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16", "fp64"])
@pytest.mark.parametrize("model", ["svm", "mlp"])
def test_the_same_study_twice_gives_the_same_metrics_on_cuda(model, precision):
    train = {"iterations": 60, "precision": precision}
    twice = [run(config(model={"name": model}, train=train), device="cuda") for _ in range(2)]
    assert twice[0].metrics.equals(twice[1].metrics)


def test_precision_auto_is_tf32_on_cuda_and_leaves_the_global_setting_alone():
    before = torch.get_float32_matmul_precision()
    result = run(config(train={"iterations": 5}), device="cuda")
    assert result.summary["study"]["precision"] == "tf32"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("precision", PRECISION)
@pytest.mark.parametrize("name", MODELS)
def test_the_fast_ways_are_the_plain_one_on_the_cpu(name, precision):
    """Fused kernels, compacted gradients and CUDA graphs against float64 by PyTorch's own operations."""
    model, dataset = MODELS[name]()
    runs = five_runs(dataset)
    initial = [scattered(model, run.clients, run.seed) for run in runs]
    theirs = final(runs, model, iterations=5, initial=initial)
    fast = on_gpu(runs, model, iterations=5, initial=initial, **PRECISION[precision])
    for one, looks in zip(theirs, fast, strict=True):
        away = (one - looks[-1].theta).norm() / one.norm()
        assert away < CLOSE[precision], float(away)


@pytest.mark.parametrize("sizes", [[5, 5], [3, 8, 1], [70], [4, 90]])
@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_the_fast_ways_are_the_plain_one_for_runs_of_any_size(name, sizes):
    model = MODELS[name]()[0]
    dataset = classified(samples=300)
    runs = [make_run(seed=seed, n=n, data=dataset) for seed, n in enumerate(sizes)]
    theirs = final(runs, model, iterations=30)
    for one, looks in zip(theirs, on_gpu(runs, model, iterations=30), strict=True):
        assert torch.allclose(one.float(), looks[-1].theta, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["svm", "mlp", "cnn"])
def test_the_ways_chosen_on_cuda_are_the_fast_ones(name, monkeypatch):
    chosen = []
    real = steppers.choose
    monkeypatch.setattr("dspodfl.engine.loop.choose", lambda *a: chosen.append(real(*a)) or chosen[-1])
    model, dataset = MODELS[name]()
    on_gpu(five_runs(dataset), model, iterations=60)
    assert [type(way).__name__ for way in chosen] == ["CudaLinear" if name == "svm" else "CudaNetwork"]
    assert any(graph is not None for graph in chosen[0]._graphs.values())


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_launching_early_changes_nothing(name, monkeypatch):
    model, dataset = MODELS[name]()
    runs = five_runs(dataset)
    plain = on_gpu(runs, model, iterations=40, every=7, tf32=True)
    monkeypatch.setattr(_triton, "EARLY", False)
    late = on_gpu(runs, model, iterations=40, every=7, tf32=True)
    for one, other in zip(plain, late, strict=True):
        assert all(torch.equal(a.theta, b.theta) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_iterations_in_which_all_rest_change_nothing(name):
    """A run whose clients and links hardly ever fire, and one that rests after some delay."""
    model, dataset = MODELS[name]()
    rare = make_run(data=dataset, sgd=Beta(0.2, 4.0), link=Beta(0.2, 4.0))
    for one in (rare, replace(make_run(data=dataset), budget=Budget("delay", 15.0))):
        (block,) = Stack([one]).blocks(60, 60)
        assert not (block.v.any(dim=1) | block.v_hat.any(dim=1)).all()
        (expected,), (looks,) = final([one], model, iterations=60), on_gpu([one], model, iterations=60)
        assert torch.allclose(expected.float(), looks[-1].theta, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_cuda_graphs_change_nothing(name, monkeypatch):
    model, dataset = MODELS[name]()
    runs = five_runs(dataset)
    with_graphs = on_gpu(runs, model, iterations=40, every=7, tf32=True)
    monkeypatch.setattr(cuda_base, "GRAPHS", False)
    without = on_gpu(runs, model, iterations=40, every=7, tf32=True)
    for one, other in zip(with_graphs, without, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a.theta, b.theta)
            assert asdict(a.counters) == asdict(b.counters)


@pytest.mark.parametrize("name", ["mlp", "cnn", "custom"])
def test_gradients_of_the_active_clients_alone_are_those_of_all_of_them(name):
    model, dataset = MODELS[name]()
    data = federation(dataset, 6)
    problem = Problem(model, [(0, data)], batch_size=4, device="cuda")
    theta = problem.pack(scattered(model, 6).cuda())
    rows = problem.minibatches(np.arange(1))[0]
    everyone = problem.gradient(theta, problem.inputs(rows), problem.targets(rows))
    who = torch.tensor([4, 0, 5], device="cuda")
    some = torch.zeros(3, problem.width, device="cuda")
    problem.gradients(theta, who, problem.inputs(rows[who]), problem.targets(rows[who]), some)
    assert torch.allclose(some, everyone[who], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_full_gradients_are_those_of_the_cpu(name):
    model, dataset = MODELS[name]()
    runs = five_runs(dataset)
    on_cuda = [looks[-1].theta for looks in on_gpu(runs, model, iterations=8, batch=0)]
    for found, expected in zip(on_cuda, final(runs, model, iterations=8, batch=0, dtype=torch.float32), strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["mlp", "cnn", "custom"])
def test_minibatches_of_the_active_clients_are_those_of_their_numbers(name):
    model, dataset = MODELS[name]()
    data = federation(dataset, 6)
    problem = Problem(model, [(0, data), (0, data)], batch_size=4, device="cuda")  # two runs share their minibatches
    rows = problem.minibatches(np.arange(3))
    order, row_index = (torch.stack([torch.randperm(12) for _ in range(3)]).cuda() for _ in range(2))
    for t in range(3):
        drawn, at = problem.draws(np.arange(3)), torch.tensor([t], device="cuda")
        who, model_row, x, y = problem.minibatch(order, drawn, row_index, at, 5)
        assert torch.equal(who, order[t, :5])
        assert torch.equal(model_row, row_index[t, who])
        assert torch.equal(y, problem.targets(rows[t, who]))
        assert torch.allclose(x, problem.inputs(rows[t, who]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_looking_at_models_at_every_iteration_changes_nothing(name):
    """Models are brought together to be looked at; those that do not mix stay where they are."""
    model, dataset = MODELS[name]()
    runs = [*five_runs(dataset), replace(five_runs(dataset)[-1], budget=Budget("delay", 30.0))]
    seldom, often = (on_gpu(runs, model, iterations=40, every=every) for every in (40, 1))
    for one, other in zip(seldom, often, strict=True):
        assert torch.equal(one[-1].theta, other[-1].theta)
    for one, other in zip(final(runs, model, iterations=40), seldom, strict=True):
        assert torch.allclose(one.float(), other[-1].theta, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_runs_end_at_the_same_iterations_as_on_the_cpu(name):
    """Whether or not runs that are over leave the stack on the way."""
    settings = study(value=1500.0, model={"name": name}, evaluation={"points": 5})
    here, there = (run(settings, device=device).metrics for device in ("cpu", "cuda"))
    exact = [*EXACT, *(column for column in here if column.startswith("delay"))]
    assert here[exact].equals(there[exact])
    assert np.allclose(here["loss"], there["loss"], rtol=1e-2)


@pytest.mark.parametrize("order", RULES)
@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_every_rule_on_cuda_is_that_on_the_cpu(name, order):
    model, dataset = MODELS[name]()
    runs = five_runs(dataset)
    theirs = final(runs, model, iterations=20, rule=order)
    for one, looks in zip(theirs, on_gpu(runs, model, iterations=20, rule=order), strict=True):
        assert torch.allclose(one.float(), looks[-1].theta, rtol=0, atol=1e-4)


@pytest.mark.parametrize("fast", ["momentum", "adam"])
@pytest.mark.parametrize("name", ["svm", "mlp", "cnn"])
def test_transformed_gradients_on_cuda_are_those_on_the_cpu(name, fast):
    model, dataset = MODELS[name]()
    table = {"clip": 0.5, "proximal": 0.1, fast: 0.9 if fast == "momentum" else {"epsilon": 1e-3}, "decay": 0.1}
    runs, rule = five_runs(dataset), with_local(RULES["simultaneous"], local_table.from_table(table))
    theirs = final(runs, model, iterations=20, rule=rule)
    for one, looks in zip(theirs, on_gpu(runs, model, iterations=20, rule=rule), strict=True):
        assert torch.allclose(one.float(), looks[-1].theta, rtol=0, atol=1e-3)


def test_a_large_run_twice_is_the_same_bit_by_bit():
    """No additions in an order that is left to probability."""
    dataset = classified(samples=2000)
    for name in ("svm", "mlp"):
        model = MODELS[name]()[0]
        large = make_run(data=dataset, graph=erdos_renyi(500, 0, p=0.02))
        for order in RULES:
            one, two = (on_gpu([large], model, iterations=20, rule=order)[0][-1].theta for _ in range(2))
            assert torch.equal(one, two)


@pytest.mark.parametrize("name", ["logistic", "mlp", "linear"])
def test_a_run_that_diverges_on_cuda_is_frozen_and_the_others_go_on(name):
    model, dataset = MODELS[name]()
    runs = five_runs(dataset)
    runs[1] = replace(runs[1], learning_rate=Constant(1e30))
    looks = on_gpu(runs, model, iterations=60, every=10)
    lost = looks[1]
    first = next(n for n, look in enumerate(lost) if look.diverged)
    for look in lost[first:]:
        assert torch.equal(look.theta.nan_to_num(), lost[first].theta.nan_to_num())
    without = on_gpu([run for r, run in enumerate(runs) if r != 1], model, iterations=60, every=10)
    for one, other in zip([looks[r] for r in (0, 2, 3, 4)], without, strict=True):
        assert torch.allclose(one[-1].theta, other[-1].theta, rtol=0, atol=1e-5)


GATED = ["dgd", {"name": "ef_hc", "settings": {"r": 0.1}}]


@pytest.mark.parametrize("model", [{"name": "svm"}, {"name": "mlp"}])
def test_where_models_decide_which_links_fire_a_study_on_cuda_is_that_on_the_cpu(model):
    budget = {"iterations": 120, "precision": "fp64", "until": {"delay": 900.0}}
    changes = {"model": model, "algorithms": GATED, "train": budget}
    on_cpu, on_cuda = (run(config(**changes), device=device, record_events=True) for device in ("cpu", "cuda"))
    assert on_cpu.metrics[EXACT].equals(on_cuda.metrics[EXACT])
    assert on_cpu.metrics["delay_total"].equals(on_cuda.metrics["delay_total"])
    for key, (events, _) in on_cpu.events.items():
        assert np.array_equal(events.v_hat, on_cuda.events[key][0].v_hat)
    uses = on_cpu.metrics.groupby("algorithm")["link_uses"].max()
    assert 0 < uses["ef_hc"] < uses["dgd"]


def test_where_models_decide_which_links_fire_nothing_is_read_between_evaluations():
    from dspodfl.algorithms.methods.ef_hc import EventTriggered

    model, dataset = MODELS["svm"]()
    runs = [make_run("dgd", seed, data=dataset) for seed in range(3)]
    seen = []

    def quiet(k):
        if k == 10:  # kernels are compiled by then
            torch.cuda.set_sync_debug_mode("error")
        if k == 59:
            torch.cuda.set_sync_debug_mode("default")
            seen.append(k)

    try:
        stack, start = Stack(runs), [scattered(model, run.clients, run.seed) for run in runs]
        problem = Problem(model, [(one.seed, one.data) for one in runs], batch_size=4, device="cuda")
        rule = Watched(EventTriggered(0.5), quiet)
        for _ in simulate(stack, problem, rule, torch.cat(start), iterations=60, every=60):
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert seen == [59]


class Watched:
    """A rule that says which iteration it is in."""

    gates = True

    def __init__(self, rule, heard):
        self._rule, self._heard, self.init = rule, heard, rule.init

    def step(self, theta, state, at):
        self._heard(at.k)
        return self._rule.step(theta, state, at)
