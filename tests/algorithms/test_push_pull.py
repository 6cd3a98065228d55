"""Push–Pull: models by a row-stochastic matrix, trackers by a column-stochastic one, on the same arcs."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.algorithms import instance
from tests.algorithms.instance import DIGRAPH, D, Loop, N, error, models, worst
from tests.algorithms.listed import arc_events, states

from dspodfl.algorithms import bytes_sent
from dspodfl.algorithms.arcs import pulled_and_pushed, pushed
from dspodfl.algorithms.methods.gradient_tracking import Tracking
from dspodfl.algorithms.methods.push_pull import PushPull


@dataclass(frozen=True)
class SameMatrix(PushPull):
    """The wrong versions: R for the tracker too, or A for the models too."""

    rows: bool = True

    def step(self, theta, state, at):
        before, held = state
        new = at.gradient(theta).where(at.v > 0, held)
        y = before + (new - held)
        half = theta - at.lr * at.v * y
        if self.rows:
            theta, _ = pulled_and_pushed(at, half, y)
            before, _ = pulled_and_pushed(at, y, y)
        else:
            theta, before = pushed(at, half, y)
        return theta, (before, new)


def test_it_is_exact_on_a_digraph_and_where_arcs_and_clients_are_sporadic():
    assert worst(PushPull(), schedule="dgd", graph=DIGRAPH, iterations=4000, below=1e-14) < 1e-14
    assert worst(PushPull(), graph=DIGRAPH, d=D.tolist(), b=0.5, iterations=5000, below=1e-14) < 1e-14


@pytest.mark.parametrize("alpha", [0.05, 0.02])
def test_one_matrix_for_both_ends_elsewhere_whatever_the_step(alpha):
    how = {"schedule": "dgd", "graph": DIGRAPH, "iterations": 1500, "alpha": alpha}
    by_rows, by_columns = (error(models(SameMatrix(rows=rows), **how)) for rows in (True, False))
    assert by_rows == pytest.approx(0.278, abs=0.001)
    assert by_columns == pytest.approx(0.102, abs=0.001)


def test_on_an_undirected_graph_it_is_tracking_adapt_then_combine():
    how = {"d": D.tolist(), "b": instance.B.tolist(), "iterations": 300}
    pulled, mixed = (models(rule, **how) for rule in (PushPull(), Tracking(form="atc")))
    assert (pulled - mixed).abs().max() < 1e-12


def test_it_is_the_plain_loop_over_clients_and_arcs():
    events = arc_events(50, seed=7)
    found = states(PushPull(), *events, graph=DIGRAPH)
    loop = Loop(events)
    theta = dict(enumerate(found[0][0].numpy()))
    y, held = ({i: np.zeros(3) for i in range(N)} for _ in range(2))
    for k in range(len(loop)):
        for i in range(N):
            if loop.steps(k, i):
                new = instance.gradient(i, theta[i])
                y[i], held[i] = y[i] + new - held[i], new
        half = {i: theta[i] - 0.05 * y[i] if loop.steps(k, i) else theta[i] for i in range(N)}
        theta, y = loop.pulled(k, half), loop.pushed(k, y)
    assert np.abs(found[-1][0].numpy() - np.stack([theta[i] for i in range(N)])).max() < 1e-10
    of_trackers, of_gradients = (found[-1][1][f"rule.{n}"].sum(dim=0) for n in (0, 1))
    assert (of_trackers - of_gradients).abs().max() < 1e-12


def test_two_models_are_sent():
    assert bytes_sent(PushPull(), 7) == 2 * 4 * 7
