"""A loop that is started from another's state goes on as if it were that one, to the last bit."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.worlds import ALGORITHMS, MODELS, erdos_renyi, make_run, scattered

from dspodfl._kernels.cpu import linear as compiled
from dspodfl.algorithms.learning_rate import Constant, Diminishing
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Stack, State, simulate, state
from dspodfl.engine.steppers import cuda_base
from dspodfl.errors import InputError
from dspodfl.network import generate
from dspodfl.network.topology import BernoulliLinks, Markov, Waypoint
from dspodfl.problem.problem import Problem

LENGTH = 17
"""Iterations of a run: two blocks and a half."""


class Momentum:
    """A rule with a state of its own: Θ ← PΘ − M, M ← ½ M + αVG."""

    def init(self, theta, links):
        return {"m": torch.zeros_like(theta), "more": (theta.new_zeros(len(theta)), None)}

    def step(self, theta, carried, at):
        steps, _ = carried["more"]
        m = 0.5 * carried["m"] + at.gradient(theta, at.lr * at.v)
        return at.mix(theta) - m, {"m": m, "more": (steps + at.v[:, 0], None)}


def settled(found):
    """A state in memory of its own."""
    tables = ("clients", "links", "whole", "ends")
    pieces = [
        replace(piece, **{table: {k: v.clone() for k, v in getattr(piece, table).items()} for table in tables})
        for piece in found.pieces()
    ]
    return State(found.iteration, lambda: iter(pieces))


def go(runs, model, start=None, *, rule="simultaneous", device="cpu", dtype=torch.float32, reach=None, **how):
    """What a loop yields: where, what was counted, and the models, all as bytes; and its states."""
    stack = Stack(runs)
    problem = Problem(model, [(r.seed, r.data) for r in runs], batch_size=4, device=device, dtype=dtype, **how)
    start = start or torch.cat([scattered(model, run.clients, run.seed, dtype) for run in runs])
    rule = RULES[rule] if isinstance(rule, str) else rule
    grid = {"iterations": LENGTH, "every": 5, "at_delay": [6.0, 21.0], "longest": 7}
    for shot in simulate(stack, problem, rule, start, reach=reach, **grid):
        counted = [tuple(vars(counters).values()) for counters in shot.counters]
        seen = (shot.iteration, shot.runs, counted, shot.diverged, shot.theta.cpu().numpy().tobytes())
        yield seen, settled(shot.state) if reach else None


def assert_any_state_is_gone_on_from(runs, model, **how):
    whole = [seen for seen, _ in go(runs, model, **how)]
    paused = list(go(runs, model, reach=lambda k: k + 1, **how))
    assert [seen for seen, _ in paused if seen[1]] == whole
    assert [seen[0] for seen, _ in paused] == list(range(LENGTH + 1))
    for _, found in paused:
        rest = [seen for seen, _ in go(runs, model, found, **how)]
        assert rest == [seen for seen in whole if seen[0] > found.iteration]


def five_runs(dataset, **more):
    return [make_run(algorithm, seed, data=dataset, **more) for seed, algorithm in enumerate(ALGORITHMS)]


ANY_RULE = {**RULES, "momentum": Momentum()}
SHORT = [*((name, "simultaneous") for name in MODELS), *(("svm", rule) for rule in ANY_RULE), ("mlp", "momentum")]
PAIRS = [(name, rule) for name in MODELS for rule in ANY_RULE]


@pytest.mark.parametrize(
    ("name", "rule"), [pair if pair in SHORT else pytest.param(*pair, marks=pytest.mark.long) for pair in PAIRS]
)
def test_a_loop_goes_on_from_its_state_at_every_iteration_to_the_last_bit(name, rule):
    model, dataset = MODELS[name]()
    assert_any_state_is_gone_on_from(five_runs(dataset), model, rule=ANY_RULE[rule])


@pytest.mark.parametrize("name", ["svm", "linear"])
def test_it_does_without_a_compiler_as_well(name, monkeypatch):
    monkeypatch.setattr(compiled, "available", lambda: False)
    model, dataset = MODELS[name]()
    assert_any_state_is_gone_on_from(five_runs(dataset), model)


def test_it_does_in_other_precisions():
    model, dataset = MODELS["mlp"]()
    assert_any_state_is_gone_on_from(five_runs(dataset), model, dtype=torch.float64)
    assert_any_state_is_gone_on_from(five_runs(dataset), model, compute=torch.bfloat16)


def test_it_does_where_sizes_graphs_rates_and_learning_rates_change():
    model, dataset = MODELS["svm"]()
    start = generate("geometric", 6, 1, radius=0.45, allow_disconnected=True)
    runs = [
        make_run("dspodfl", 1, n=1, data=dataset),
        make_run("dgd", 2, data=dataset, topology=BernoulliLinks(erdos_renyi(5, 1), 2, 0.5)),
        make_run("rg", 3, data=dataset, topology=Waypoint(start, 3, 0.45, LENGTH, (0.02, 0.1))),
        make_run("sporadic_sgd", 4, data=dataset, refresh=6, learning_rate=Diminishing(0.3, gamma=10.0)),
        make_run("dfedavg", 5, n=7, data=dataset, refresh=4),
        make_run("dspodfl", 6, data=dataset, topology=Markov(erdos_renyi(5, 6), 6, 0.3, 0.2)),
    ]
    assert_any_state_is_gone_on_from(runs, model)


@pytest.mark.parametrize("compiler", [True, False])
def test_a_run_that_is_frozen_stays_so_and_one_that_is_to_be_found_out_is(compiler, monkeypatch):
    if not compiler:
        monkeypatch.setattr(compiled, "available", lambda: False)
    model, dataset = MODELS["linear"]()
    runs = five_runs(dataset)
    runs[1] = replace(runs[1], learning_rate=Constant(1e30))
    last = [seen for seen, _ in go(runs, model)][-1]
    assert last[3] == [False, True, False, False, False]
    assert_any_state_is_gone_on_from(runs, model)


def test_pieces_are_cut_by_clients_and_found_together_again(monkeypatch):
    model, dataset = MODELS["svm"]()
    monkeypatch.setattr(state, "MAX_ELEMENTS_PER_PIECE", 2 * model.parameters)
    runs = five_runs(dataset)
    assert_any_state_is_gone_on_from(runs, model)
    *_, (_, found) = go(runs, model, reach=lambda k: k + 1)
    pieces = list(found.pieces())
    assert [(piece.run, piece.client.tolist()) for piece in pieces[:4]] == [
        (0, [0, 1]),
        (0, [2, 3]),
        (0, [4]),
        (1, [0, 1]),
    ]
    assert [len(piece.link) for piece in pieces[:3]] == [runs[0].rates.graph.links, 0, 0]


def test_a_state_can_be_taken_up_by_another_stack_of_the_same_runs():
    """Models to rounding; events and delays exactly: how runs are stacked is no part of them."""
    model, dataset = MODELS["svm"]()
    runs = five_runs(dataset)
    whole = [seen for seen, _ in go(runs, model)]
    found = dict(found for found in ((f.iteration, f) for _, f in go(runs, model, reach=lambda k: k + 1)))[8]
    for n, run in enumerate(runs):
        mine = [replace(piece, run=0) for piece in found.pieces() if piece.run == n]
        rest = [seen for seen, _ in go([run], model, State(8, lambda mine=mine: iter(mine)))]
        expected = {seen[0]: seen[2][seen[1].index(n)] for seen in whole if n in seen[1] and seen[0] > 8}
        assert {seen[0]: seen[2][0] for seen in rest} == expected


def test_pauses_are_where_they_are_asked_for_and_change_nothing():
    model, dataset = MODELS["svm"]()
    runs = five_runs(dataset)
    whole = [seen for seen, _ in go(runs, model)]
    for step in (1, 3, 100):
        asked = []
        shots = [
            seen for seen, _ in go(runs, model, reach=lambda k, step=step, asked=asked: asked.append(k) or k + step)
        ]
        places = [seen[0] for seen in shots]
        assert asked == places[:-1]  # it is asked wherever it stands, and stands nowhere else
        expected = {7, 14, *(seen[0] for seen in whole)}  # ends of blocks, and where it looks
        assert max(b - a for a, b in pairwise(places)) <= step if step < 100 else set(places) == expected
        assert [seen for seen in shots if seen[1]] == whole


def test_a_state_that_the_loop_has_left_is_refused():
    model, dataset = MODELS["svm"]()
    runs = five_runs(dataset)
    problem = Problem(model, [(r.seed, r.data) for r in runs], batch_size=4)
    start = scattered(model, 25)
    loop = simulate(Stack(runs), problem, RULES["simultaneous"], start, iterations=9, every=3)
    first = next(loop)
    assert len(list(first.state.pieces())) == 5
    second = next(loop)
    with pytest.raises(RuntimeError, match="past iteration 0"):
        first.state.pieces()
    loop.close()
    with pytest.raises(RuntimeError, match="past iteration 3"):
        second.state.pieces()


@pytest.mark.parametrize("carried", [3, torch.zeros(4, 2), [torch.zeros(5), "x"]])
def test_a_rule_whose_state_cannot_be_put_away_is_refused(carried):
    with pytest.raises(InputError, match="the state of the rule"):
        state.leaves(carried, 5)


# --- on a GPU -------------------------------------------------------------------------------------------------

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("tf32", [True, False])
class TestOnAGpu:
    """By CUDA graphs and without: kernels are those of the run in one go wherever it is taken up."""

    pytestmark = on_gpu

    def test_a_loop_goes_on_from_its_state_at_every_iteration_to_the_last_bit(self, name, graphs, tf32, monkeypatch):
        monkeypatch.setattr(cuda_base, "GRAPHS", graphs)
        model, dataset = MODELS[name]()
        assert_any_state_is_gone_on_from(five_runs(dataset), model, device="cuda", tf32=tf32)

    def test_it_does_where_a_run_is_frozen(self, name, graphs, tf32, monkeypatch):
        monkeypatch.setattr(cuda_base, "GRAPHS", graphs)
        model, dataset = MODELS[name]()
        runs = five_runs(dataset)
        runs[1] = replace(runs[1], learning_rate=Constant(1e30))
        assert_any_state_is_gone_on_from(runs, model, device="cuda", tf32=tf32)


@pytest.mark.parametrize("rule", [*RULES, Momentum()], ids=[*RULES, "momentum"])
class TestRulesOnAGpu:
    """Iteration by iteration."""

    pytestmark = on_gpu

    def test_a_loop_goes_on_from_its_state_at_every_iteration_to_the_last_bit(self, rule):
        model, dataset = MODELS["mlp"]()
        assert_any_state_is_gone_on_from(five_runs(dataset), model, rule=rule, device="cuda")
        assert_any_state_is_gone_on_from(five_runs(dataset), model, rule=rule, device="cuda", dtype=torch.float64)


class TestAcrossDevices:
    """Models are put away in the order of named_parameters, whatever the device likes best."""

    pytestmark = on_gpu

    def test_a_state_of_the_cpu_is_taken_up_on_a_gpu(self):
        model, dataset = MODELS["cnn"]()
        runs = five_runs(dataset)
        whole = {seen[0]: seen for seen, _ in go(runs, model)}
        found = next(f for _, f in go(runs, model, reach=lambda k: k + 1) if f.iteration == 8)
        for seen, _ in go(runs, model, found, device="cuda"):
            assert seen[1:4] == whole[seen[0]][1:4]  # who, what was counted, who is lost
            ours, theirs = (torch.frombuffer(bytearray(s[4]), dtype=torch.float32) for s in (seen, whole[seen[0]]))
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-4)
