"""Push-DIGing: gradient tracking by push-sum."""

import numpy as np
from tests.algorithms import instance
from tests.algorithms.instance import DIGRAPH, D, Loop, N, error, models, worst
from tests.algorithms.listed import arc_events, states

from dspodfl.algorithms import bytes_sent
from dspodfl.algorithms.methods.gradient_tracking import Tracking
from dspodfl.algorithms.methods.push_diging import PushDiging

CONTRACT = {"pushes": True}


class ZeroNotHeld(PushDiging):
    """The wrong version that counts a silent client's gradient as 0."""

    def step(self, theta, state, at):
        w, before, held = state
        return PushDiging.step(self, theta, (w, before, held), _Zero(at))


class _Zero:
    def __init__(self, at):
        self._at, self.exchange, self.v, self.lr = at, at.exchange, at.v, at.lr
        self.v = _Always(at.v)

    def gradient(self, x, scale=None):
        return self._at.gradient(x, self._at.v)


class _Always:
    """v, except that every gradient is taken as new."""

    def __init__(self, v):
        self._v = v

    def __gt__(self, other):
        return self._v > -1

    def __rmul__(self, other):
        return other * self._v


def test_it_is_exact_on_a_digraph_and_where_arcs_and_clients_are_sporadic():
    assert worst(PushDiging(), schedule="dgd", graph=DIGRAPH, iterations=4000, below=1e-14) < 1e-14
    assert worst(PushDiging(), graph=DIGRAPH, d=D.tolist(), b=0.5, iterations=10000, below=1e-12) < 1e-12


def test_counting_silent_clients_as_zero_is_not():
    assert error(models(ZeroNotHeld(), graph=DIGRAPH, d=D.tolist(), b=0.5, iterations=4000, alpha=0.02)) > 0.05


def test_on_an_undirected_graph_it_is_tracking_adapt_then_combine():
    how = {"d": D.tolist(), "b": instance.B.tolist(), "iterations": 300}
    pushed, mixed = (models(rule, **how) for rule in (PushDiging(), Tracking(form="atc")))
    assert (pushed - mixed).abs().max() < 1e-12


def test_it_is_the_plain_loop_over_clients_and_arcs():
    events = arc_events(50, seed=5)
    found = states(PushDiging(), *events, graph=DIGRAPH)
    loop = Loop(events)
    u, w = (dict(enumerate(rows)) for rows in (found[0][0].numpy(), np.ones(N)))
    y, held = ({i: np.zeros(3) for i in range(N)} for _ in range(2))
    for k in range(len(loop)):
        for i in range(N):
            if loop.steps(k, i):
                new = instance.gradient(i, u[i] / w[i])
                y[i], held[i] = y[i] + new - held[i], new
        half = {i: u[i] - 0.05 * y[i] if loop.steps(k, i) else u[i] for i in range(N)}
        u, w, y = loop.pushed(k, half), loop.pushed(k, w), loop.pushed(k, y)
    assert np.abs(found[-1].models.numpy() - np.stack([u[i] / w[i] for i in range(N)])).max() < 1e-10
    of_trackers, of_gradients = (found[-1][1][f"rule.{n}"].sum(dim=0) for n in (1, 2))
    assert (of_trackers - of_gradients).abs().max() < 1e-12


def test_two_models_and_a_number_are_sent():
    assert bytes_sent(PushDiging(), 7) == 2 * 4 * 7 + 4
