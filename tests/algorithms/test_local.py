"""Transformations of gradients: each is what its name says, client by client, and moves only where clients compute."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.listed import random_events, states
from tests.algorithms.loops import beginning

from dspodfl.algorithms import local, local_table, with_local
from dspodfl.algorithms.rules import RULES
from dspodfl.errors import InputError

ALPHA, STEPS = 0.05, 100
OPTIMIZERS = {
    "momentum": (local.momentum(0.9), lambda p: torch.optim.SGD(p, ALPHA, momentum=0.9)),
    "nesterov": (local.nesterov(0.8), lambda p: torch.optim.SGD(p, ALPHA, momentum=0.8, nesterov=True)),
    "adam": (local.adam(), lambda p: torch.optim.Adam(p, ALPHA)),
    "other numbers": (
        local.adam(0.8, 0.99, 1e-3),
        lambda p: torch.optim.Adam(p, ALPHA, betas=(0.8, 0.99), eps=1e-3),
    ),
    "adamw": (
        local.chain(local.adam(), local.decay(0.3)),
        lambda p: torch.optim.AdamW(p, ALPHA, weight_decay=0.3),
    ),
}


def loss(i, theta):
    """F_i of the instance."""
    x, y = torch.from_numpy(instance.X[i]), float(instance.Y[i])
    return 0.5 * (x @ theta - y) ** 2 + instance.L2 / 2 * theta.square().sum()


def by_torch(optimizer, start, v):
    """The models of clients on their own, of which each steps where its v is 1. Shape: (iterations, clients, p)."""
    models = [start[i].clone().requires_grad_() for i in range(len(start))]
    optimizers = [optimizer([model]) for model in models]
    found = []
    for fires in v:
        for i in np.flatnonzero(fires):
            optimizers[i].zero_grad()
            loss(i, models[i]).backward()
            optimizers[i].step()
        found.append(torch.stack([model.detach().clone() for model in models]))
    return torch.stack(found)


def apart(transformation, optimizer):
    """How far isolated clients are from torch.optim, at most, over 100 iterations with random v."""
    v, v_hat = random_events(STEPS)
    start = beginning()
    rule = with_local(RULES["simultaneous"], transformation)
    found = states(rule, v, np.zeros_like(v_hat), start=start, alpha=ALPHA)
    ours = torch.stack([after.theta for after in found[1:]])
    return float((ours - by_torch(optimizer, start, v)).abs().max())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_isolated_client_is_an_optimizer_of_torch_that_steps_where_v_is_1(name):
    assert apart(*OPTIMIZERS[name]) < 1e-12


@dataclass(frozen=True)
class CorrectedByIteration(local.Adam):
    """The plausible wrong version: bias correction by the iteration, not by the client's own steps."""

    def update(self, g, state, theta, v):
        _, (m, s, _) = super().update(g, state, theta, v)
        t = state[2] + 1
        return m / (1 - self.beta1**t) / ((s / (1 - self.beta2**t)).sqrt() + self.epsilon), (m, s, t)


@dataclass(frozen=True)
class AlwaysAccumulates(local.Momentum):
    """The plausible wrong version: a client that does not compute adds its gradient all the same."""

    def update(self, g, state, theta, v):
        m = self.beta * state + g
        return m, m


@dataclass(frozen=True)
class Coupled:
    """The plausible wrong version: decay goes through the means of Adam."""

    strength: float

    def init(self, theta):
        return None

    def update(self, g, state, theta, v):
        return g + self.strength * theta, state


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (CorrectedByIteration(), "adam"),
        (AlwaysAccumulates(0.9), "momentum"),
        (local.chain(Coupled(0.3), local.adam()), "adamw"),
    ],
    ids=["by the iteration", "always", "coupled"],
)
def test_plausible_wrong_versions_are_no_optimizers_of_torch(wrong, name):
    assert apart(wrong, OPTIMIZERS[name][1]) > 1e-3


def test_bias_correction_is_accurate_in_single_precision():
    g = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    direction, _ = local.adam().update(g, local.adam().init(g), g, torch.ones(4, 1))
    assert (direction - g.sign()).abs().max() < 1e-6


def test_clipping_limits_the_norm_of_each_client_alone():
    g = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    found, state = local.clip(1.0).update(g, None, g, torch.ones(3, 1))
    assert torch.allclose(found, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])) and state is None
    assert torch.equal(found[1:], g[1:])


def test_the_proximal_term_pulls_to_the_model_after_the_last_exchange():
    prox, theta = local.proximal(0.5), torch.tensor([[1.0], [2.0]])
    state = prox.init(theta)
    assert torch.equal(prox.update(torch.zeros(2, 1), state, theta + 1, torch.ones(2, 1))[0], torch.full((2, 1), 0.5))
    state = prox.exchanged(state, theta + 2, torch.tensor([[True], [False]]))
    assert state.tolist() == [[3.0], [2.0]]
    assert prox.update(torch.zeros(2, 1), state, theta, torch.ones(2, 1))[0].tolist() == [[-1.0], [0.0]]


EVERYTHING = {"clip": 1.0, "proximal": 0.1, "decay": 0.2}


@pytest.mark.parametrize(
    "fast", [{"momentum": 0.9}, {"nesterov": 0.9}, {"adam": True}], ids=lambda fast: next(iter(fast))
)
def test_clients_that_do_not_compute_keep_their_state(fast):
    whole = local_table.from_table(EVERYTHING | fast)
    random = torch.Generator().manual_seed(0)
    theta, g, h = (torch.randn(3, 4, generator=random) for _ in range(3))
    _, state = whole.update(g, whole.init(theta), theta, torch.ones(3, 1))
    _, new = whole.update(h, state, theta, torch.tensor([[1.0], [0.0], [1.0]]))
    changed = 0
    for before, after in zip(_leaves(state), _leaves(new), strict=True):
        assert torch.equal(before[1], after[1])
        changed += not torch.equal(before, after)
    assert changed


def _leaves(state):
    return (
        [leaf for part in state for leaf in _leaves(part)]
        if isinstance(state, tuple)
        else [state] * (state is not None)
    )


def test_keys_apply_in_one_order_whatever_theirs_in_the_table():
    table = EVERYTHING | {"adam": {"beta2": 0.99}}
    wanted = local.chain(local.clip(1.0), local.proximal(0.1), local.adam(beta2=0.99), local.decay(0.2))
    assert local_table.from_table(table) == wanted == local_table.from_table(dict(reversed(table.items())))
    assert local_table.from_table({}) is None is local_table.from_table({"clip": None})


@pytest.mark.parametrize(
    "given",
    [
        local.clip(2.0),
        local.chain(local.clip(2.0), local.nesterov(0.5)),
        local.chain(local.proximal(1), local.momentum(0.5), local.decay(0.1)),
        local.chain(local.adam(0.5, 0.6, 0.7)),
    ],
)
def test_what_a_table_can_say_is_written_as_a_table(given):
    table = local_table.as_table(given)
    assert local_table.from_table(table) in (given, local.Chain((given,)))


@dataclass(frozen=True)
class Mine:
    """Half of the gradient."""

    def init(self, theta):
        return None

    def update(self, g, state, theta, v):
        return 0.5 * g, state


@pytest.mark.parametrize(
    "given",
    [
        local.chain(),
        Mine(),
        local.chain(local.clip(1.0), Mine()),
        local.chain(local.momentum(0.9), local.clip(1.0)),
        local.chain(local.clip(1.0), local.clip(2.0)),
        local.chain(local.momentum(0.9), local.adam()),
    ],
)
def test_what_no_table_can_say_has_none(given):
    assert local_table.as_table(given) is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"clip": 0}, r"algorithms\.local\.clip = 0: must be a number greater than 0"),
        ({"clip": float("inf")}, "greater than 0"),
        ({"clip": True}, "greater than 0"),
        ({"proximal": -1}, r"algorithms\.local\.proximal = -1: must be a number of at least 0"),
        ({"momentum": 1.0}, r"algorithms\.local\.momentum = 1\.0: must be a number of at least 0 and less than 1"),
        ({"nesterov": "x"}, r"algorithms\.local\.nesterov"),
        ({"adam": False}, r"algorithms\.local\.adam = False: must be true, or a table with beta1, beta2 or epsilon"),
        ({"adam": {"beta1": 2}}, r"algorithms\.local\.adam\.beta1 = 2: must be a number of at least 0"),
        ({"adam": {"epsilon": 0}}, r"algorithms\.local\.adam\.epsilon = 0"),
        ({"adam": {"eps": 0.1}}, r"algorithms\.local\.adam\.eps = 0\.1: must be left out: allowed are beta1"),
        ({"decay": None, "momentun": 0.9}, "left out: allowed are clip.* did you mean 'momentum'"),
        ({"momentum": 0.9, "adam": True}, r"algorithms\.local\.adam = True: must be left out: there is momentum"),
        ({"nesterov": 0.9, "momentum": 0.5}, "left out: there is momentum"),
    ],
)
def test_what_is_no_transformation_is_refused(table, message):
    with pytest.raises(InputError, match=message):
        local_table.from_table(table)


def test_a_chain_is_of_transformations():
    with pytest.raises(InputError, match=r"'a float': must be a Local, with init\(theta\)"):
        local.chain(local.clip(1.0), 0.9)
