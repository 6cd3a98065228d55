"""What runs on nodes, and why other things do not."""

from dataclasses import replace

import pytest
import torch
from tests.engine.clients import ITERATIONS, REFUSED, Everything, loop, world
from tests.worlds import BATCH, advance

from dspodfl.algorithms import Attack
from dspodfl.algorithms.attacks import SignFlip
from dspodfl.engine import all_clients, runs_on_nodes
from dspodfl.errors import InputError


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_run_on_nodes_is_named_with_its_reason(name):
    run, rule, model = world(name)
    reason = runs_on_nodes(rule, run)
    assert name in reason and REFUSED[name] in reason and "\n" not in reason
    with pytest.raises(InputError, match=REFUSED[name]):
        all_clients(run, rule, model, batch_size=BATCH, dtype=torch.float64)


def test_clipped_gossip_runs_with_a_number_for_tau():
    run, rule, model = world("clipped_gossip", tau=0.3)
    assert runs_on_nodes(rule, run) is None
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    assert torch.allclose(loop(run, rule, model)[-1], looks[-1].theta, rtol=0, atol=1e-10)


def test_runs_under_attack_are_refused():
    run, rule, _ = world("dspodfl")
    attack = Attack((0,), SignFlip())
    assert "attack" in runs_on_nodes(rule, replace(run, attack=attack))


class Gating:
    """A rule that gates."""

    gates = True

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        at.gate(theta)
        return theta, state


def test_a_rule_that_gates_is_refused_whether_it_says_so_or_not():
    run, _, _ = world("dspodfl")
    assert "gates" in runs_on_nodes(Gating(), run)
    assert "gates" in runs_on_nodes(type("Silent", (Gating,), {"gates": False})(), run)


class ForOneModel(Everything):
    """A rule that knows the number of parameters."""

    def step(self, theta, state, at):
        return super().step(theta + torch.zeros(21, dtype=theta.dtype), state, at)


def test_a_rule_for_one_model_runs():
    run, _, model = world("dspodfl")
    assert runs_on_nodes(ForOneModel(), run) is None
    assert len(loop(run, ForOneModel(), model, iterations=2)) == 2
