"""Runs end where their budget is spent, at exactly that iteration, however they are stacked, cut or resumed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worlds import ALGORITHMS, MODELS, advance, classified, erdos_renyi, make_run, scattered

from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Stack, plain_loop, shrunk
from dspodfl.engine.horizon import cap, expected, last_iterations
from dspodfl.network import Part
from dspodfl.network.budget import Budget
from dspodfl.network.delay import DelayMeter
from dspodfl.network.events import Events
from dspodfl.network.laws import FixedValues
from dspodfl.network.topology import BernoulliLinks

KINDS = {"delay": 30.0, "normalized_delay": 9.0, "bytes": 1500.0, "iterations": 11.0}
LINK_BYTES = 40


def limited(algorithm, seed, budget, **how):
    return replace(make_run(algorithm, seed, **how), budget=budget, link_bytes=LINK_BYTES)


@pytest.mark.parametrize("kind", ["delay", "normalized_delay"])
def test_the_plain_loop_and_the_expected_end_follow_what_a_use_of_a_link_carries(kind):
    model, data = MODELS["svm"]()
    found = {}
    for models in (1.0, 3.0):
        run = limited("dspodfl", 1, Budget(kind, KINDS[kind]), data=data)
        run = replace(run, link_models=models, cap=200)
        (end,) = last_iterations([run])
        steps = plain_loop(run, model, scattered(model, run.clients), iterations=200, batch_size=2)
        assert sum(1 for _ in steps) == end
        found[models] = end, expected(run, run.budget)
    (end, need), (sooner, less) = found[1.0], found[3.0]
    assert (sooner < end and less < need) if kind == "delay" else (sooner, less) == (end, need)


def spent_by_a_loop(run, iterations):
    """The cost after each iteration, in the unit of the budget, from events and `DelayMeter` alone, (iterations,)."""
    k, graph = np.arange(iterations), run.rates.graph
    events = run.schedule(k, Part.whole(graph, run.seed), run.rates)
    present, _, degree = run.topology.at(k)
    fired = events if present is None else Events(events.v, events.v_hat & present)
    delays = DelayMeter(graph.edges, graph.n).add(fired, run.rates.sgd(k), run.rates.link(k), degree)
    return {
        "delay": delays.total,
        "normalized_delay": delays.total_normalized,
        "bytes": LINK_BYTES * fired.v_hat.sum(axis=1).cumsum(),
        "iterations": k + 1,
    }[run.budget.kind]


def end_by_a_loop(run, iterations):
    """The smallest k at which row k's cost is at least the budget, or the cap."""
    over = np.flatnonzero(spent_by_a_loop(run, iterations) >= run.budget.value)
    return min(int(over[0]) + 1 if len(over) else iterations, run.cap or iterations)


def ends(runs, iterations, length):
    found = {}
    for block in Stack(runs).blocks(iterations, length):
        found |= block.ends
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("length", [1, 7, 60])
def test_a_run_ends_at_the_first_iteration_whose_cost_is_at_least_the_budget(kind, algorithm, length):
    data, graph = classified(samples=300), erdos_renyi(6, 1)
    budgets = [Budget(kind, KINDS[kind] * factor) for factor in (0.2, 1, 1e9)]
    runs = [limited(algorithm, seed, budget, data=data, graph=graph) for seed, budget in enumerate(budgets)]
    runs.append(limited(algorithm, 9, budgets[1], data=data, topology=BernoulliLinks(graph, 7, 0.5)))
    runs.append(replace(limited(algorithm, 3, budgets[1], data=data, graph=graph), cap=5))
    found = ends(runs, 60, length)
    assert found == {r: end_by_a_loop(run, 60) for r, run in enumerate(runs)}
    assert last_iterations([replace(run, cap=run.cap or 60) for run in runs]) == [found[r] for r in range(len(runs))]


@pytest.mark.parametrize("length", [1, 7, 60])
def test_nothing_fires_and_nothing_is_counted_after_the_end(length):
    data, graph = classified(samples=300), erdos_renyi(6, 1)
    free = [make_run(a, seed, data=data, graph=graph) for seed, a in enumerate(ALGORITHMS)]
    bound = [replace(run, budget=Budget("delay", 15.0 + 9 * n)) for n, run in enumerate(free)]
    (whole,) = Stack(free).blocks(60, 60)
    blocks = list(Stack(bound).blocks(60, length))
    picks = (lambda b: b.v, lambda b: b.v_hat, lambda b: b.tally.total, lambda b: b.tally.sgd_steps)
    v, v_hat, total, steps = (torch.cat([pick(block) for block in blocks]) for pick in picks)
    for r, end in ends(bound, 60, length).items():
        rows, links = Stack(free).rows[r], Stack(free).links[r]
        assert torch.equal(v[:end, rows], whole.v[:end, rows])
        assert torch.equal(v_hat[:end, links], whole.v_hat[:end, links])
        assert not v[end:, rows].any() and not v_hat[end:, links].any()
        assert torch.equal(total[:end, r], whole.tally.total[:end, r])
        assert (total[end:, r] == total[end - 1, r]).all() and (steps[end:, r] == steps[end - 1, r]).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_the_last_models_are_those_of_the_plain_loop(name, rule):
    model, dataset = MODELS[name]()
    kinds = [*KINDS, "delay"]
    runs = [
        limited(a, seed, Budget(kinds[seed], KINDS[kinds[seed]]), n=5, data=dataset)
        for seed, a in enumerate(ALGORITHMS)
    ]
    initial = [scattered(model, one.clients, one.seed, dtype=torch.float64) for one in runs]
    found = advance(runs, model, iterations=40, initial=initial, rule=rule, every=None, points=3)
    for run, start, looks in zip(runs, initial, found, strict=True):
        models = list(plain_loop(run, model, start, iterations=40, batch_size=4, order=rule))
        assert looks[-1].iteration == len(models) == end_by_a_loop(run, 40)
        assert torch.allclose(looks[-1].theta, models[-1], rtol=0, atol=1e-10)


@given(
    kind=st.sampled_from(list(KINDS)),
    points=st.integers(1, 12),
    algorithm=st.sampled_from(ALGORITHMS),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_runs_are_evaluated_where_their_cost_first_reaches_equal_parts_of_the_budget(kind, points, algorithm, seed):
    model, dataset = MODELS["svm"]()
    run = limited(algorithm, seed, Budget(kind, KINDS[kind]), n=4, data=dataset)
    (looks,) = advance([run], model, iterations=50, every=None, points=points)
    cost = spent_by_a_loop(run, 50)
    parts = [run.budget.value * n / points for n in range(1, points + 1)]
    wanted = {int(np.argmax(cost >= part)) + 1 for part in parts if cost[-1] >= part}
    end = end_by_a_loop(run, 50)
    assert [look.iteration for look in looks] == sorted({0, end} | {k for k in wanted if k <= end})


def test_a_run_with_a_budget_ends_where_it_is_found_to_have_diverged():
    model, dataset = MODELS["linear"]()
    from dspodfl.algorithms.learning_rate import Constant

    wild = limited("dgd", 0, Budget("delay", 400.0), n=4, data=dataset, learning_rate=Constant(1e30))
    tame = limited("dgd", 1, Budget("delay", 400.0), n=4, data=dataset)
    lost, sound = advance([wild, tame], model, iterations=400, every=5, dtype=torch.float32)
    assert [look.diverged for look in lost].count(True) == 1 and lost[-1].diverged
    assert sound[-1].iteration == end_by_a_loop(tame, 400) > lost[-1].iteration


# --- stacks that get smaller ----------------------------------------------------------------------------------


def test_a_stack_shrinks_where_half_of_its_clients_are_over():
    assert shrunk({}, [4, 4], 1000) == [0, 1]
    assert shrunk({0: 3}, [4, 4], 249) == [0, 1]
    assert shrunk({0: 3}, [4, 4], 250) == [1]
    assert shrunk({0: 3}, [4, 9], 5000) == [0, 1]  # a third
    assert shrunk({0: 3, 1: 250, 2: 600}, [4, 4, 4, 4], 600) == [2, 3]
    assert shrunk({0: 3, 1: 250, 2: 600}, [4, 4, 4, 4], 750) == [3]


# --- how long it takes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["dspodfl", "rg", "sporadic_sgd", "dgd", "dfedavg"])
@pytest.mark.parametrize("kind", ["delay", "normalized_delay", "bytes"])
def test_the_expected_need_is_the_mean_over_seeds_of_what_runs_take(algorithm, kind):
    data, graph = classified(samples=300), erdos_renyi(6, 1)
    rates = {"sgd": FixedValues([0.3, 0.5, 0.8, 0.6, 0.4, 1.0]), "link": FixedValues(0.5)}
    budget = Budget(kind, 8 * KINDS[kind])
    runs = [limited(algorithm, seed, budget, data=data, graph=graph, **rates) for seed in range(40)]
    found = last_iterations([replace(run, cap=10**5) for run in runs])
    assert np.mean(found) == pytest.approx(expected(runs[0], budget), rel=0.05, abs=1.5)


def test_a_cap_is_half_as_much_again_as_the_expected_need_and_at_most_a_million():
    run = limited("dgd", 0, None, n=4, data=classified(), sgd=FixedValues(0.5), link=FixedValues(0.5))  # 4 an iteration
    assert cap(run, Budget("delay", 400.0), None) == (150, 100)
    assert cap(run, Budget("delay", 401.0), None) == (152, 101)
    assert cap(run, Budget("delay", 1e12), None) == (10**6, 10**6)
    assert cap(run, Budget("delay", 400.0), 70) == (70, 70)
    assert cap(run, Budget("delay", 400.0), 10**5) == (10**5, 100)
    assert cap(run, Budget("iterations", 7), None) == (7, 7)
    assert cap(run, Budget("iterations", 7), 5) == (5, 5)


def test_a_run_that_never_spends_anything_has_the_largest_cap():
    from dspodfl.network import Graph

    alone = limited("dgd", 0, None, data=classified(), graph=Graph.from_edges(3, []))
    assert cap(alone, Budget("bytes", 1.0), None) == (10**6, 10**6)


def test_the_cap_of_a_custom_schedule_follows_what_it_does_at_first():
    def every_third(k, part, rates):
        fires = (k % 3 == 0)[:, None]
        return Events(np.repeat(fires, len(part.client), 1), np.zeros((len(k), len(part.link)), bool))

    run = limited(
        "mine", 0, None, n=4, data=classified(), sgd=FixedValues(0.5), schedule=every_third
    )  # 2 in three iterations
    assert expected(run, Budget("delay", 200.0)) == pytest.approx(300, rel=0.01)


def test_rates_that_are_redrawn_are_followed():
    run = limited("dspodfl", 0, None, n=6, data=classified(), refresh=10)
    budget = Budget("normalized_delay", 300.0)
    (found,) = last_iterations([replace(run, budget=budget, cap=10**5)])
    assert found == pytest.approx(expected(run, budget), rel=0.1)


def test_where_exchanges_are_rare_and_dear_a_run_is_expected_to_end_where_its_own_events_end_it():
    """The mean cost of an iteration would say 3: most iterations cost next to nothing."""

    def rare(k, part, rates):
        every = np.asarray(k) % 20 == 19
        return Events(np.ones((len(k), len(part.client)), bool), np.repeat(every[:, None], len(part.link), axis=1))

    data = classified()
    run = limited(
        "dspodfl", 0, Budget("delay", 300.0), data=data, schedule=rare, sgd=FixedValues(1.0), link=FixedValues(0.005)
    )
    (end,) = last_iterations([replace(run, cap=200)])
    assert end > 10 and expected(run, run.budget) == end
    assert cap(run, run.budget, None)[0] >= end
