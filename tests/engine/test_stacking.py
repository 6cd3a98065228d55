"""A run is the same alone, in a stack, in blocks of any length, and whatever happens to the others."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worlds import ALGORITHMS, MODELS, advance, classified, erdos_renyi, final, make_run, scattered

from dspodfl.algorithms.learning_rate import Constant
from dspodfl.algorithms.rules import RULES
from dspodfl.algorithms.schedules import Sporadic, sporadic
from dspodfl.engine import Stack, loop
from dspodfl.engine.mixer import DENSE
from dspodfl.network import Part, generate
from dspodfl.network.delay import DELAYS
from dspodfl.network.laws import FixedValues
from dspodfl.network.rates import Rates
from dspodfl.network.topology import BernoulliLinks, Waypoint
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem

STEPS = 50


def five_runs(dataset, n=5, **more):
    return [make_run(algorithm, seed, n=n, data=dataset, **more) for seed, algorithm in enumerate(ALGORITHMS)]


def assert_same(one, two, dtype=torch.float64):
    """The same but for rounding: matrix libraries take other kernels for other numbers of matrices and threads."""
    close = 1e-12 if dtype == torch.float64 else 1e-6
    assert torch.allclose(one, two, rtol=0, atol=close), float((one - two).abs().max())


# --- alone or together ----------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(ALGORITHMS), st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=5))
def test_events_minibatches_and_delays_of_a_run_are_exactly_those_it_has_alone(drawn):
    model, dataset = MODELS["svm"]()
    runs = [make_run(algorithm, seed, n=n, data=dataset, refresh=9) for algorithm, seed, n in drawn]
    stack = Stack(runs)
    (together,) = stack.blocks(30, 30)
    rows = Problem(model, [(run.seed, run.data) for run in runs], batch_size=3).minibatches(np.arange(30))
    for r, run in enumerate(runs):
        (alone,) = Stack([run]).blocks(30, 30)
        assert np.array_equal(together.events(r).v, alone.events(0).v)
        assert np.array_equal(together.events(r).v_hat, alone.events(0).v_hat)
        assert torch.equal(together.active[:, stack.links[r]], alone.active)
        for name in (*DELAYS, "sgd_steps", "link_uses"):
            assert torch.equal(getattr(together.tally, name)[:, r], getattr(alone.tally, name)[:, 0])
        own = Problem(model, [(run.seed, run.data)], batch_size=3).minibatches(np.arange(30))
        assert torch.equal(rows[:, stack.rows[r]], own)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", MODELS)
def test_a_run_alone_and_in_a_stack_ends_with_the_same_models(name, dtype):
    model, dataset = MODELS[name]()
    steps = STEPS if name != "cnn" else 15
    runs = five_runs(dataset)
    together = final(runs, model, iterations=steps, dtype=dtype)
    for run, stacked in zip(runs, together, strict=True):
        (alone,) = final([run], model, iterations=steps, dtype=dtype)
        assert_same(alone, stacked, dtype)


@pytest.mark.parametrize("order", RULES)
def test_a_run_ends_with_the_same_models_beside_runs_of_any_size(order):
    model, dataset = MODELS["logistic"]()[0], classified(samples=100)
    sizes = [5, 2, DENSE + 3, 5, 1]
    runs = [make_run(seed=seed, n=n, data=dataset) for seed, n in enumerate(sizes)]
    together = final(runs, model, iterations=STEPS, rule=order)
    for run, stacked in zip(runs, together, strict=True):
        (alone,) = final([run], model, iterations=STEPS, rule=order)
        assert_same(alone, stacked)


def test_the_place_of_a_run_in_the_stack_does_not_matter():
    model, dataset = MODELS["mlp"]()
    runs = five_runs(dataset)
    there = final(runs, model, iterations=STEPS)
    back = final(runs[::-1], model, iterations=STEPS)[::-1]
    assert all(torch.equal(a, b) for a, b in zip(there, back, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_same_study_run_twice_is_the_same_bit_by_bit(dtype):
    model, dataset = MODELS["mlp"]()
    runs = five_runs(dataset)
    one, two = (final(runs, model, iterations=STEPS, dtype=dtype) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


# --- baselines are DSpodFL with its firing overridden ---------------------------------------------------------


def overridden(baseline):
    """DSpodFL on the baseline's own rates, told what fires."""
    if baseline == "dfedavg":
        period = int(np.ceil(np.mean(1 / OVERRIDDEN_RATES.sgd(np.zeros(1, dtype=int)))))

        def by_turns(k, rates):
            exchange = (k % (period + 1) == period).astype(float)[:, None]
            return np.repeat(1 - exchange, rates.graph.n, 1), np.repeat(exchange, rates.graph.links, 1)

        return Sporadic(by_turns)
    return sporadic(**{"dgd": {"sgd": 1, "link": 1}, "rg": {"sgd": 1}, "sporadic_sgd": {"link": 1}}[baseline])


OVERRIDDEN_RATES = make_run(seed=4, data=classified()).rates


@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_baselines_are_dspodfl_with_its_firing_overridden_to_the_last_bit(name):
    model, dataset = MODELS[name]()
    baselines = [a for a in ALGORITHMS if a != "dspodfl"]
    named_runs = [make_run(a, 4, data=dataset) for a in baselines]
    told = [make_run("dspodfl", 4, data=dataset, schedule=overridden(a)) for a in baselines]
    looks = advance(named_runs + told, model, iterations=STEPS, every=10)
    for one, other in zip(looks[:4], looks[4:], strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a.theta, b.theta)
            assert asdict(a.counters) == asdict(b.counters)
    finals = [looks[r][-1].theta for r in range(4)]
    assert all(not torch.equal(a, b) for n, a in enumerate(finals) for b in finals[:n])


def test_baselines_are_dspodfl_on_devices_that_can_do_what_they_ask():
    """DGD and the others never wait for a rate: DSpodFL with rates of one takes the same path."""
    model, dataset = MODELS["svm"]()
    one = FixedValues(1.0)
    for baseline, sgd, link in (("dgd", one, one), ("rg", one, None), ("sporadic_sgd", None, one)):
        run = make_run(baseline, 4, data=dataset)
        able = make_run("dspodfl", 4, data=dataset, sgd=sgd, link=link)
        asked, had = final([run, able], model, iterations=STEPS)
        assert torch.equal(asked, had)


# --- divergence -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", ["logistic", "mlp", "linear"])
def test_a_run_that_diverges_is_frozen_and_reported_and_the_others_go_on_as_without_it(name, dtype):
    model, dataset = MODELS[name]()
    runs = five_runs(dataset)
    runs[1] = replace(runs[1], learning_rate=Constant(1e200 if dtype == torch.float64 else 1e30))
    looks = advance(runs, model, iterations=60, every=10, dtype=dtype)
    lost = looks[1]
    first = next(n for n, look in enumerate(lost) if look.diverged)
    assert 0 < first < 6
    assert torch.isfinite(lost[first - 1].theta).all() and not torch.isfinite(lost[first].theta).all()
    for look in lost[first:]:
        assert look.diverged
        assert torch.equal(look.theta.nan_to_num(), lost[first].theta.nan_to_num())
    assert lost[-1].counters.sgd_steps == 60 * 5  # what it would have cost is still counted
    others = [run for r, run in enumerate(runs) if r != 1]
    without = advance(others, model, iterations=60, every=10, dtype=dtype)
    for one, other in zip([looks[r] for r in (0, 2, 3, 4)], without, strict=True):
        assert not any(look.diverged for look in one)
        for a, b in zip(one, other, strict=True):
            assert_same(a.theta, b.theta, dtype)
            assert asdict(a.counters) == asdict(b.counters)


def test_a_run_that_diverges_in_one_client_is_reported():
    model, dataset = MODELS["linear"]()
    run = make_run("dgd", data=dataset, graph=generate("ring", 5, 0))
    initial = scattered(model, 5)
    initial[3] = torch.inf
    (looks,) = advance([run], model, iterations=3, every=1, initial=[initial])
    assert [look.diverged for look in looks] == [True] * 4
    assert all(torch.equal(look.theta[:3], initial[:3].double()) for look in looks)


# --- where to look --------------------------------------------------------------------------------------------


def first_crossing(run, value, iterations):
    """The first number of updates after which the cumulative raw total delay has reached a value, or None."""
    total, k, part = 0.0, np.arange(iterations), Part.whole(run.rates.graph, run.seed)
    events = run.schedule(k, part, run.rates)
    graph, m = run.rates.graph, run.clients
    d, b = run.rates.sgd(k)[0], run.rates.link(k)[0]
    for t in range(iterations):
        total += float((events.v[t] / d).sum()) / m
        for e, (i, j) in enumerate(graph.edges.tolist()):
            total += events.v_hat[t, e] / b[e] * (1 / graph.degree[i] + 1 / graph.degree[j]) / m
        if total >= value:
            return t + 1
    return None


VALUES = [0.1, 5.0, 17.3, 33.3, 80.0, 1e9]


@pytest.mark.parametrize("longest", [1, 2, 7, 250])
def test_a_run_is_looked_at_exactly_where_its_delay_first_reaches_a_value(longest, monkeypatch):
    monkeypatch.setitem(loop._LONGEST_BLOCK, "cpu", longest)
    model, dataset = MODELS["svm"]()
    runs = five_runs(dataset)
    looks = advance(runs, model, iterations=STEPS, every=20, at_delay=VALUES)
    every = advance(runs, model, iterations=STEPS, every=1)
    different = set()
    for run, mine, all_of_it in zip(runs, looks, every, strict=True):
        crossings = {first_crossing(run, value, STEPS) for value in VALUES} - {None}
        assert [look.iteration for look in mine] == sorted({0, 20, 40, STEPS} | crossings)
        different.add(frozenset(crossings))
        for look in mine:
            other = all_of_it[look.iteration]
            assert torch.equal(look.theta, other.theta)
            assert asdict(look.counters) == asdict(other.counters)
    assert len(different) > 2  # every run crosses at its own iterations


@pytest.mark.parametrize("longest", [1, 250])
def test_a_value_that_is_reached_and_not_exceeded_is_crossed_there_and_only_there(longest, monkeypatch):
    monkeypatch.setitem(loop._LONGEST_BLOCK, "cpu", longest)
    model, dataset = MODELS["svm"]()
    run = make_run(seed=2, data=dataset)
    (looks,) = advance([run], model, iterations=STEPS, every=1, at_delay=[])
    totals = [look.counters.delay_processing + look.counters.delay_transmission for look in looks]
    assert totals == sorted(totals)
    value = totals[20]
    first = totals.index(value)
    (crossed,) = advance([run], model, iterations=STEPS, every=1000, at_delay=[value, value])
    assert [look.iteration for look in crossed] == [0, first, STEPS]


def test_values_reached_in_the_same_iteration_give_one_look():
    model, dataset = MODELS["svm"]()
    run = make_run("dgd", data=dataset, sgd=FixedValues(0.5), link=FixedValues(0.5))  # 2 + 2 an iteration
    (looks,) = advance([run], model, iterations=10, every=6, at_delay=[4.1, 7.9, 8.0, 8.1, 24.0])
    assert [look.iteration for look in looks] == [0, 2, 3, 6, 10]


@given(st.integers(1, 25), st.integers(1, 30))
def test_snapshots_come_at_zero_every_multiple_and_always_at_the_end(iterations, every):
    model, dataset = MODELS["svm"]()
    runs = [make_run(seed=seed, n=2, data=dataset) for seed in (0, 1)]
    for looks in advance(runs, model, iterations=iterations, every=every):
        assert [look.iteration for look in looks] == sorted({*range(0, iterations, every), iterations})


def test_snapshot_zero_is_the_initial_model_with_nothing_counted():
    model, dataset = MODELS["svm"]()
    runs = five_runs(dataset)
    initial = [scattered(model, run.clients, run.seed) for run in runs]
    for theta, looks in zip(initial, advance(runs, model, iterations=3, initial=initial), strict=True):
        assert looks[0].iteration == 0 and not looks[0].diverged
        assert torch.equal(looks[0].theta, theta.double())
        assert set(asdict(looks[0].counters).values()) == {0}


@pytest.mark.parametrize("longest", [4, 250])
def test_counters_are_sums_over_the_events_before(longest, monkeypatch):
    monkeypatch.setitem(loop._LONGEST_BLOCK, "cpu", longest)
    model, dataset = MODELS["svm"]()
    graph = erdos_renyi(5, 1)
    start = generate("geometric", 5, 1, radius=0.4, allow_disconnected=True)
    runs = [
        *five_runs(dataset),
        make_run("dspodfl", 7, data=dataset, topology=BernoulliLinks(graph, 7, 0.5)),
        make_run("dgd", 8, data=dataset, topology=Waypoint(start, 8, 0.4, 30, (0.05, 0.1))),
    ]
    blocks = []
    looks = advance(runs, model, iterations=30, every=7, on_block=blocks.append)
    assert [block.k.tolist() for block in blocks] == [
        list(range(first, min(first + longest, 30))) for first in range(0, 30, longest)
    ]
    for r, mine in enumerate(looks):
        v, v_hat = (np.concatenate([getattr(block.events(r), what) for block in blocks]) for what in ("v", "v_hat"))
        (block,) = Stack([runs[r]]).blocks(30, 30)
        for look in mine[1:]:
            assert look.counters.sgd_steps == v[: look.iteration].sum()
            assert look.counters.link_uses == v_hat[: look.iteration].sum()
            for name in DELAYS:
                expected = float(getattr(block.tally, name)[look.iteration - 1, 0])
                assert getattr(look.counters, f"delay_{name}") == expected


# --- blocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("longest", [1, 3, 16])
@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_the_length_of_blocks_changes_nothing(name, longest, monkeypatch):
    model, dataset = MODELS[name]()
    runs = [
        *five_runs(dataset, refresh=6),
        make_run(seed=9, n=3, data=dataset),
        make_run(seed=8, data=dataset, topology=BernoulliLinks(erdos_renyi(5, 1), 7, 0.5)),
    ]
    how = {"iterations": 40, "every": 5, "at_delay": [10.0, 40.0]}
    whole = advance(runs, model, **how)
    monkeypatch.setitem(loop._LONGEST_BLOCK, "cpu", longest)
    for one, other in zip(whole, advance(runs, model, **how), strict=True):
        assert [look.iteration for look in one] == [look.iteration for look in other]
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a.theta, b.theta)
            assert asdict(a.counters) == asdict(b.counters)


def test_a_stack_too_large_for_long_blocks_takes_short_ones(monkeypatch):
    model, dataset = MODELS["svm"]()
    run = make_run(data=dataset)
    per_iteration = run.clients * (4 + 1) + run.rates.graph.links
    monkeypatch.setitem(loop._MAX_WORDS_PER_BLOCK, "cpu", 3 * per_iteration)
    blocks = []
    advance([run], model, iterations=10, on_block=blocks.append)
    assert [len(block.k) for block in blocks] == [3, 3, 3, 1]


def test_every_iteration_ticks_once():
    model, dataset = MODELS["svm"]()
    heard = []
    advance([make_run(data=dataset)], model, iterations=12, every=5, tick=heard.append)
    assert heard == list(range(1, 13))


def test_the_initial_models_are_left_as_they_were():
    model = build("svm", (6,), 3)
    initial = scattered(model, 5).double()
    before = initial.clone()
    problem_run = make_run(data=classified())
    problem = Problem(model, [(0, problem_run.data)], batch_size=4, dtype=torch.float64)
    for _ in loop.simulate(Stack([problem_run]), problem, RULES["simultaneous"], initial, iterations=5, every=5):
        pass
    assert torch.equal(initial, before)


def test_rates_overridden_or_not_delays_use_the_rates_themselves():
    dataset = classified()
    run = make_run("dgd", 4, data=dataset)
    (block,) = Stack([run]).blocks(3, 3)
    rates = Rates(run.rates.graph, 4, run.rates.sgd_law, run.rates.link_law)
    per_iteration = np.mean(1 / rates.sgd(np.zeros(1, dtype=int))[0])
    assert np.allclose(block.tally.processing[:, 0], per_iteration * np.arange(1, 4), rtol=1e-14)
