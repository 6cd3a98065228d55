"""GradSkip: the lazy form is the literal one, it is exact, and easy clients compute fewer gradients a round."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DATA, L2, RING, N, X, error, models
from tests.algorithms.loops import COMPLETE, START, as_array, gradient, rates, start, zeros
from tests.algorithms.loops import RATE as FALLING
from tests.worlds import make_run

from dspodfl import InputError, rng
from dspodfl.algorithms import Algorithm, bytes_sent, make
from dspodfl.algorithms.common_draw import Skipping, fires, server, skipping
from dspodfl.algorithms.corrections import Together
from dspodfl.algorithms.methods.gradskip import GradSkip
from dspodfl.network import Part, Static, WeightedTopology
from dspodfl.rng import Stream

CONTRACT = {
    "settings": {"probability": 0.2, "q": 0.9},
    "moves_the_mean": True,  # a client that skips forgets its h, and the h of the others do not sum to 0
    "without_consensus": True,  # it averages everybody or nobody: links that fire by themselves are not its own
    "draws": True,
    "iterations": 3000,
}
KAPPA = ((X**2).sum(axis=1) + L2) / L2
Q = tuple((1 - 1 / KAPPA) / (1 - 1 / KAPPA.max()))
P = float(1 / np.sqrt(KAPPA.max()))
ALPHA = float((P**2 / (1 - np.array(Q) * (1 - P**2)) / (L2 * KAPPA)).min())
"""The authors' choice of q_i, ϖ and α."""


def ended(rule, iterations=700, seed=0, alpha=ALPHA):
    schedule = skipping(rule.probability, rule.q)
    return models(rule, schedule=schedule, graph=COMPLETE, alpha=alpha, iterations=iterations, seed=seed)


def test_it_ends_at_the_solution():
    assert max(error(ended(GradSkip(P, Q), seed=seed)) for seed in (0, 1)) < 1e-14


@dataclass(frozen=True)
class PlainAverage(GradSkip):
    """Averages θ̂ instead of θ̂ − (α/ϖ)ĥ: right for Scaffnew, whose h sum to 0."""

    def step(self, theta, h, at):
        gradient = at.gradient(theta)
        h = gradient.where((at.v > 0) & ~self._go_on(at), h)
        theta = theta - at.lr * at.v * (gradient - h)
        new = at.mix(theta).where(at.linked, theta)
        return new, (h + self.probability / at.lr * (new - theta)).where(at.linked, h)


def test_an_average_without_the_corrections_does_not_end_there():
    assert 0.01 < error(ended(PlainAverage(P, Q))) < 1
    assert error(ended(PlainAverage(P, 1.0))) < 1e-13  # nobody skips


def literal(rule, iterations, alphas):
    """Every gradient is computed, at every iteration."""
    theta, h = start(), zeros()
    exchange, weight = fires(np.arange(iterations), 0, rule.probability), rule.probability
    for k, alpha in enumerate(alphas):
        new = {i: gradient(i, theta[i]) for i in range(N)}
        eta = {i: int(rng.words(0, Stream.SGD, i, k=k)[0]) < int(np.floor(rule.q[i] * 2**32)) for i in range(N)}
        hat = {i: h[i] if eta[i] else new[i] for i in range(N)}
        half = {i: theta[i] - alpha * (new[i] - hat[i]) for i in range(N)}
        average = sum(half[i] - alpha / weight * hat[i] for i in range(N)) / N
        theta = {i: average.copy() for i in range(N)} if exchange[k] else half
        h = {i: hat[i] + weight / alpha * (theta[i] - half[i]) for i in range(N)}
    return as_array(theta)


@pytest.mark.parametrize("iterations", [3, 50, 120])
def test_the_lazy_form_in_the_engine_is_the_literal_one_as_a_loop(iterations):
    rule = GradSkip(0.2, tuple(np.linspace(0.4, 1, N)))
    schedule = skipping(rule.probability, rule.q)
    computed = schedule(np.arange(120), Part.whole(COMPLETE, 0), None).v
    assert 0.3 < computed.mean() < 0.9  # clients do skip
    how = {"graph": COMPLETE, "alpha": FALLING, "start": torch.from_numpy(START.copy())}
    found = models(rule, schedule=schedule, iterations=iterations, **how)
    assert np.abs(found.numpy() - literal(rule, iterations, rates(iterations=iterations))).max() < 1e-10


def test_where_nobody_skips_it_is_scaffnew():
    scaffnew = models(Together(1.0, 0.3), schedule=server(0.3), graph=COMPLETE, iterations=80)
    for q in (1.0, (1.0,) * N):
        assert (ended(GradSkip(0.3, q), iterations=80, alpha=0.05) - scaffnew).abs().max() < 1e-12


def test_gradients_a_round_are_as_the_authors_count_them():
    events = Skipping(P, Q)(np.arange(60_000), Part.whole(COMPLETE, 3), None)
    found = events.v.sum(axis=0) / events.v_hat[:, 0].sum()
    expected = 1 / (1 - np.array(Q) * (1 - P))
    assert np.abs(found / expected - 1).max() < 0.03
    assert expected.min() == pytest.approx(1.84, abs=0.005)


def test_a_use_sends_one_model():
    assert bytes_sent(GradSkip(), 10) == 4 * 10


@pytest.mark.parametrize(("key", "value"), [("q", 1.2), ("q", []), ("q", [0.5, "x"]), ("q", None), ("probability", 0)])
def test_settings_out_of_range_are_refused(key, value):
    with pytest.raises(InputError, match=rf"algorithms\.settings\.{key}"):
        make(Algorithm("a", schedule="gradskip", rule="gradskip", settings={key: value}))


def test_a_list_has_to_be_as_long_as_there_are_clients():
    topology, rates = WeightedTopology(Static(RING), "metropolis"), make_run(data=DATA, graph=RING).rates
    GradSkip(0.1, [0.5] * N).check(topology, rates)
    GradSkip(0.1, 0.5).check(topology, rates)
    with pytest.raises(InputError, match="one for each of the 8 clients"):
        GradSkip(0.1, [0.5] * 3).check(topology, rates)
