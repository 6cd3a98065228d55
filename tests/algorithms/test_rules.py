"""Rules: the update equations with dense matrices, and a rule with a state of its own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import advance, erdos_renyi, final, make_run

from dspodfl.algorithms.learning_rate import Constant
from dspodfl.algorithms.rules import RULES, AdaptThenCombine, CombineThenAdapt, Simultaneous
from dspodfl.network import generate
from dspodfl.network.weights import matrix, weights
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build


def equation(name, P, A, V, G, T):
    """The new models, from P, diag(α), diag(v), the gradient map and Θ."""
    return {
        "simultaneous": lambda: P @ T - A @ V @ G(T),
        "combine_then_adapt": lambda: P @ T - A @ V @ G(P @ T),
        "adapt_then_combine": lambda: P @ (T - A @ V @ G(T)),
    }[name]()


@given(st.sampled_from(sorted(RULES)), st.integers(2, 6), st.integers(0, 2**30))
def test_a_rule_is_its_equation(name, n, seed):
    random = np.random.default_rng(seed)
    graph = erdos_renyi(n, seed)
    fired = random.random(graph.links) < 0.5
    P = torch.from_numpy(matrix(n, graph.edges, weights("metropolis", n, graph.edges, graph.degree) * fired))
    theta, H = (torch.from_numpy(random.normal(size=shape)) for shape in ((n, 3), (3, 3)))
    v = torch.from_numpy((random.random(n) < 0.5).astype(float))
    lr = torch.from_numpy(random.random(n))
    before = theta.clone()

    def mix(x, minus=0.0):
        return P @ x - minus

    def gradient(at, scale=None):
        return (1.0 if scale is None else scale) * torch.tanh(at @ H)

    rule = RULES[name]
    at = SimpleNamespace(mix=mix, gradient=gradient, v=v[:, None], lr=lr[:, None])
    new, state = rule.step(theta, rule.init(theta, graph.links), at)
    expected = equation(name, P, torch.diag(lr), torch.diag(v), gradient, theta)
    assert torch.allclose(new, expected, rtol=0, atol=1e-14)
    assert state is None
    assert torch.equal(theta, before)


def test_the_three_rules_differ_and_have_the_names_of_the_configuration():
    assert {name: type(rule) for name, rule in RULES.items()} == {
        "simultaneous": Simultaneous,
        "combine_then_adapt": CombineThenAdapt,
        "adapt_then_combine": AdaptThenCombine,
    }
    theta, one = torch.tensor([[0.0], [1.0]]), torch.ones(2)

    def average(x, minus=0.0):
        return x.mean(dim=0).expand(2, 1) - minus

    def square(x, scale):
        return scale * x.square()

    at = SimpleNamespace(mix=average, gradient=square, v=one[:, None], lr=one[:, None] / 2)
    stepped = [rule.step(theta, None, at)[0].flatten().tolist() for rule in RULES.values()]
    # Θ̄ = ½; gradients 0 and 1 at Θ, ¼ at Θ̄
    assert stepped == [[0.5, 0.0], [0.375, 0.375], [0.25, 0.25]]


# --- a rule of a user's own: gradient tracking ----------------------------------------------------------------


class GradientTracking:
    """y ← Py + G(Θ) − G(Θ₋₁),  Θ ← PΘ − αy: y follows the average gradient, so Θ reaches the exact optimum."""

    def init(self, theta, links):
        return torch.zeros_like(theta), torch.zeros_like(theta)  # y, last gradient

    def step(self, theta, state, at):
        tracker, last = state
        now = at.gradient(theta)
        tracker = at.mix(tracker) + now - last
        return at.mix(theta) - at.lr * tracker, (tracker, now)


def quadratic(n=5, features=3, l2=0.2, seed=0):
    """Clients with one sample each, so that every minibatch gives the full gradient of ½(wᵀx − y)² + (l2/2)‖w‖²."""
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(n, features)).astype(np.float32), random.normal(size=n).astype(np.float32)
    data = Federation(Dataset.from_arrays(x, y, x, y), tuple(np.arange(n)[:, None]), {})
    x, y = x.astype(np.float64), y.astype(np.float64)
    optimum = np.linalg.solve(x.T @ x / n + l2 * np.eye(features), x.T @ y / n)
    return build("linear", (features,), 1, l2=l2), data, torch.from_numpy(optimum)


@pytest.mark.parametrize("graph", ["ring", "path"])
def test_gradient_tracking_runs_in_the_engine_and_reaches_the_exact_optimum_where_dgd_does_not(graph):
    model, data, optimum = quadratic()
    run = make_run("dgd", data=data, graph=generate(graph, 5, 0), learning_rate=Constant(0.05))
    (tracked,) = final([run], model, iterations=3000, rule=GradientTracking())
    (plain,) = final([run], model, iterations=3000)
    assert (tracked - optimum).abs().max() < 1e-9
    assert (plain - optimum).abs().max() > 1e-2


def test_the_state_of_a_rule_is_carried_from_block_to_block(monkeypatch):
    from dspodfl.engine import loop

    model, data, _ = quadratic()
    run = make_run("dgd", data=data, graph=generate("ring", 5, 0))
    whole = advance([run], model, iterations=20, every=1, rule=GradientTracking())[0]
    monkeypatch.setitem(loop._LONGEST_BLOCK, "cpu", 3)
    blocks = advance([run], model, iterations=20, every=1, rule=GradientTracking())[0]
    assert all(torch.equal(a.theta, b.theta) for a, b in zip(whole, blocks, strict=True))
