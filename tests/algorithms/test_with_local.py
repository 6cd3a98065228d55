"""Rules whose clients step along transformed gradients: everywhere that rules run, and against plain loops."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import EDGES, N
from tests.algorithms.listed import random_events, states
from tests.algorithms.loops import beginning, gradient, mixed
from tests.engine.test_sharded import assert_the_same, split_up
from tests.engine.test_state import assert_any_state_is_gone_on_from
from tests.engine.test_step import Gossip
from tests.worlds import MODELS, final, make_run

from dspodfl.algorithms import (
    ALGORITHMS,
    Algorithm,
    bytes_sent,
    declared_mixes,
    evaluated_models,
    evaluates_other_models,
    fused_kernel,
    local,
    local_table,
    make,
    rests_without_events,
    with_local,
)
from dspodfl.algorithms.rules import RULES
from dspodfl.errors import InputError
from dspodfl.study.rule_check import check_rule

TABLE = {"clip": 2.0, "proximal": 0.3, "momentum": 0.7, "decay": 0.05}
WHOLE = local_table.from_table(TABLE)
ORDERS = {**RULES, "by messages": Gossip()}


def plain_loop(order, start, v, v_hat, alpha):
    """The models after every iteration, client by client and link by link."""
    theta = {i: start[i] for i in range(N)}
    anchor, m = dict(theta), {i: np.zeros(3) for i in range(N)}
    found = []
    for k in range(len(v)):
        fired = [edge for e, edge in enumerate(EDGES) if v_hat[k, e]]
        touched = {i for edge in fired for i in edge}
        at = mixed(theta, fired) if order == "combine_then_adapt" else theta
        if order == "combine_then_adapt":
            anchor |= {i: at[i] for i in touched}
        step = {}
        for i in range(N):
            step[i] = np.zeros(3)
            if v[k, i]:
                g = gradient(i, at[i])
                g = g * min(1, TABLE["clip"] / np.linalg.norm(g)) + TABLE["proximal"] * (at[i] - anchor[i])
                m[i] = TABLE["momentum"] * m[i] + g
                step[i] = alpha * (m[i] + TABLE["decay"] * at[i])
        if order == "adapt_then_combine":
            theta = mixed({i: theta[i] - step[i] for i in range(N)}, fired)
        else:
            theta = {i: model - step[i] for i, model in mixed(theta, fired).items()}
        if order != "combine_then_adapt":
            anchor |= {i: theta[i] for i in touched}
        found.append(np.stack([theta[i] for i in range(N)]))
    return np.stack(found)


@pytest.mark.parametrize("order", ORDERS)
def test_a_rule_with_transformations_is_its_plain_loop(order):
    v, v_hat = random_events(50)
    start = beginning()
    found = states(with_local(ORDERS[order], WHOLE), v, v_hat, start=start, alpha=0.1)
    ours = np.stack([after.theta.numpy() for after in found[1:]])
    assert np.abs(ours - plain_loop(order, start.numpy(), v, v_hat, 0.1)).max() < 1e-10


@pytest.mark.parametrize("order", ORDERS)
def test_momentum_of_0_is_the_rule_itself(order):
    v, v_hat = random_events(30)
    plain, ours = (
        states(rule, v, v_hat)[-1][0] for rule in (ORDERS[order], with_local(ORDERS[order], local.momentum(0.0)))
    )
    assert (plain - ours).abs().max() < 1e-12


def ends(transformation, alpha):
    rule = RULES["adapt_then_combine"]
    rule = rule if transformation is None else with_local(rule, transformation)
    return instance.error(instance.models(rule, schedule="dgd", alpha=alpha, iterations=4000))


def test_momentum_ends_where_plain_steps_of_the_step_size_over_1_minus_beta_do():
    plain = ends(None, 0.02)
    assert abs(plain - 0.105) < 5e-4
    for accelerated in (local.momentum(0.9), local.nesterov(0.9)):
        assert abs(ends(accelerated, 0.002) - plain) < 1e-10
    assert abs(ends(local.momentum(0.9), 0.02) - 0.516) < 5e-4


def test_without_events_nothing_changes_and_only_touched_clients_do():
    rule = with_local(RULES["adapt_then_combine"], local_table.from_table(TABLE | {"momentum": None, "adam": True}))
    v, v_hat = random_events(12, share=0.25)
    v[8:], v_hat[8:] = False, False
    found = states(rule, v, v_hat)
    assert len(found[0][1]) == 4
    for k, (before, after) in enumerate(pairwise(found)):
        touched = v[k].copy()
        touched[np.array(EDGES)[v_hat[k]].ravel()] = True
        still = torch.from_numpy(~touched)
        assert torch.equal(before[0][still], after[0][still])
        assert all(torch.equal(a[still], b[still]) for a, b in zip(before[1].values(), after[1].values(), strict=True))


LOCALS = {"sgd": WHOLE, "adam": local_table.from_table({"adam": True, "proximal": 0.1, "decay": 0.1})}


def runs_of(n=7):
    _, data = MODELS["svm"]()
    return [make_run(name, seed, n=n, data=data) for seed, name in enumerate(("dspodfl", "dgd"))]


@pytest.mark.parametrize("name", LOCALS)
@pytest.mark.parametrize("order", ORDERS)
def test_stacked_is_alone_and_split_is_whole_and_resumed_is_in_one_go(name, order):
    model, _ = MODELS["svm"]()
    runs, rule = runs_of(), with_local(ORDERS[order], LOCALS[name])
    for run, found in zip(runs, final(runs, model, iterations=20, rule=rule), strict=True):
        (alone,) = final([run], model, iterations=20, rule=rule)
        assert torch.equal(alone, found)
    looks, _, _ = split_up(runs, model, 3, rule=rule)
    assert_the_same(runs, model, looks, rule=rule, close=1e-9)
    assert_any_state_is_gone_on_from(runs, model, rule=rule)


@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if entry.takes_local])
def test_every_method_that_takes_local_asks_for_its_gradients_as_it_must(name):
    entry = ALGORITHMS[name]
    rule = make(Algorithm(name, schedule=name, rule=name if entry.rule else None, local={"clip": 1.0}))[1]
    check_rule(name, rule, 10)
    assert fused_kernel(rule) is None


@dataclass(frozen=True)
class Halved:
    """A rule with everything that rules may have."""

    mixes = 1
    needs_probability = True

    def init(self, theta, links):
        return torch.full_like(theta, 0.5)

    def model(self, theta, state):
        return theta * state

    def sent(self, p):
        return 7 * p

    def check(self, topology, rates):
        return "checked"

    def step(self, theta, state, at):
        return at.mix(theta, minus=at.gradient(theta, at.lr * at.v)), state


def test_what_a_rule_declares_sends_and_evaluates_stays():
    rule, plain = with_local(Halved(), local.momentum()), with_local(RULES["simultaneous"], local.momentum())
    theta = torch.ones(3, 2)
    assert evaluates_other_models(rule) and not evaluates_other_models(plain)
    assert torch.equal(evaluated_models(rule, theta, rule.init(theta, 2)), theta / 2)
    assert (bytes_sent(rule, 10), bytes_sent(plain, 10)) == (70, 40)
    assert (declared_mixes(rule), declared_mixes(plain), declared_mixes(with_local(Gossip(), WHOLE))) == (1, 1, None)
    assert rule.needs_probability and rule.check(None, None) == "checked" and not hasattr(plain, "check")
    assert (rests_without_events(rule), rests_without_events(plain)) == (False, True)
    assert plain == with_local(RULES["simultaneous"], local.momentum()) != with_local(RULES["simultaneous"], WHOLE)


def rule_of(step):
    return type("Mine", (), {"init": lambda self, theta, links: None, "step": lambda self, *a: (step(*a), None)})()


BAD = {
    "twice": rule_of(lambda theta, s, at: theta - at.gradient(theta, at.lr * at.v) - at.gradient(theta, at.lr * at.v)),
    "unscaled": rule_of(lambda theta, s, at: theta - at.lr * at.v * at.gradient(theta)),
    "other scale": rule_of(lambda theta, s, at: theta - at.lr * at.gradient(theta, at.v)),
    "all step": rule_of(lambda theta, s, at: theta - at.gradient(theta, at.lr)),
    "never": rule_of(lambda theta, s, at: at.mix(theta)),
}


@pytest.mark.parametrize("name", BAD)
def test_rules_that_ask_otherwise_are_refused_before_a_run(name):
    check_rule("mine", BAD[name], 5)
    with pytest.raises(
        InputError, match=r"algorithms\.local = .*with Mine of 'mine'.*: must be left out: the rule does"
    ):
        check_rule("mine", with_local(BAD[name], local.clip(1.0)), 5)


@pytest.mark.parametrize("name", ["twice", "unscaled", "never"])
def test_rules_that_ask_otherwise_later_on_are_refused_then(name):
    with pytest.raises(InputError, match="left out: the rule does not ask for gradients once"):
        states(with_local(BAD[name], local.clip(1.0)), *random_events(2))
