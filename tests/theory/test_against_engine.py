"""The engine's measured errors beside the bounds: one step and many, rates, exponents, and the other two families."""

import numpy as np
import pytest
from tests.theory.worlds import Place, RidgeWorld, WavesWorld, WellsWorld

from dspodfl.theory.formulas import convex, nonconvex, pl, spectral

SIGMAS = 4.0
"""Standard errors that a measured mean may lie above a bound: 10⁴ comparisons, one false alarm in some hundred runs."""

CASES = [
    # graph, heterogeneity, sporadicity (d, b), σ
    ("ring", 0.0, 1.0, 1.0, 0.3),
    ("ring", 0.3, 0.9, 0.5, 0.3),
    ("star", 0.1, 0.95, 0.7, 0.0),
    ("complete", 0.3, 1.0, 0.3, 1.0),
    ("path", 0.1, np.array([0.85, 1.0, 0.9, 0.95, 1.0]), 0.8, 0.3),
    ("complete", 0.0, 0.7, 0.9, 0.0),
]


def above(sample, bound):
    """Whether a mean over seeds passes a bound beyond Monte-Carlo error. Shapes: (seeds, ...), (...)."""
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    return (sample.mean(axis=0) - SIGMAS * error > bound * (1 + 1e-6) + 1e-12).any()


@pytest.mark.parametrize(("kind", "heterogeneity", "d", "b", "sigma"), CASES)
def test_measured_errors_of_ridge_regression_never_exceed_the_lemmas_in_one_step_or_in_many(
    kind, heterogeneity, d, b, sigma
):
    world = RidgeWorld.make(Place.of(kind, 5, d, b), heterogeneity, sigma)
    free = world.constants()
    c = free.at(0.7 * convex.largest_rate(free))
    system = convex.recursion(c)
    found = world.errors(c.step, iterations=40, seeds=60)  # (seeds, 41, 2)
    after = found[:, 1:] - found[:, :-1] @ system.phi.T  # one step: E[ν(k+1) − Φν(k)] ≤ Ψ
    assert not above(after, system.psi)
    assert not above(found, system.propagate(found[:, 0].mean(axis=0), 40))
    assert found[:, -1, 0].mean() < 0.9 * found[:, 0, 0].mean()  # there was something to bound


PURE_MIXING = {"kind": "step", "value": 0.1, "every": 10, "factor": 1e-30}
"""Ten steps that drive the models apart, and then mixing alone."""


@pytest.mark.parametrize(("kind", "b"), [("complete", 0.5), ("complete", 0.2), ("ring", 1.0), ("star", 1.0)])
def test_consensus_contracts_at_the_rate_rho_tilde_where_the_theory_says_so(kind, b):
    place = Place.of(kind, 5, 1.0, b)
    found = RidgeWorld.make(place, 0.5, 1.0).errors(PURE_MIXING, iterations=22, seeds=80)[:, 10:, 1]
    slope = np.polyfit(np.arange(4, 13), np.log(found.mean(axis=0)[4:]), 1)[0]
    assert np.exp(slope) == pytest.approx(place.rho_tilde, rel=0.005 if b == 1 else 0.12)


def test_elsewhere_consensus_contracts_faster_than_rho_tilde_says():
    place = Place.of("path", 5, 1.0, 0.5)
    exact = spectral.mean_square_rate(place.graph, place.r, place.b)
    found = RidgeWorld.make(place, 0.5, 1.0).errors(PURE_MIXING, iterations=50, seeds=150)[:, 10:, 1]
    slope = np.polyfit(np.arange(5, 41), np.log(found.mean(axis=0)[5:]), 1)[0]
    assert exact < place.rho_tilde - 0.003
    assert np.exp(slope) == pytest.approx(exact, rel=0.03)
    per_seed = found[:, 1:] - place.rho_tilde * found[:, :-1]
    assert not above(per_seed, np.zeros(40))


def exponent(x, y):
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def test_the_measured_gap_of_noisy_dgd_grows_with_the_rate_as_predicted():
    world = RidgeWorld.make(Place.of("complete", 4, 1.0, 1.0), 0.05, 1.0, n=2)
    free = world.constants()
    rates = convex.largest_rate(free) * np.array([0.2, 0.4, 0.8])
    gaps = []
    for rate in rates:
        burn = int(4 / (free.mu * rate))
        gaps.append(world.errors(float(rate), burn + 150, seeds=40, every=5)[:, burn // 5 :].mean(axis=(0, 1)))
    gaps = np.array(gaps)
    predicted = np.array([convex.recursion(free.at(float(rate))).gap for rate in rates])
    assert (gaps <= predicted).all()
    assert exponent(rates, gaps[:, 0]) == pytest.approx(1.0, abs=0.2)
    assert exponent(rates, gaps[:, 1]) == pytest.approx(2.0, abs=0.2)


def test_a_smooth_nonconvex_problem_stays_below_the_theorem_and_its_lemmas():
    place = Place.of("ring", 4, np.array([0.7, 0.9, 1.0, 0.8]), 0.6)
    world = WellsWorld.make(place, 0.3, 0.3)
    free = world.constants()
    c = free.at(0.8 * nonconvex.largest_rate(free))
    seen = world.states(c.step, iterations=60, seeds=50)  # (61, seeds, m, n)
    mean = seen.mean(axis=2)
    f, g = world.loss(mean).T, (world.gradient(mean) ** 2).sum(axis=-1).T  # (seeds, 61)
    omega = ((seen - mean[:, :, None]) ** 2).sum(axis=(2, 3)).T
    phi = nonconvex.coefficients(c)
    assert not above(f[:, 1:] - f[:, :-1] + phi.phi11 * g[:, :-1] - phi.phi12 * omega[:, :-1], np.full(60, phi.psi1))
    assert not above(omega[:, 1:] - phi.phi21 * g[:, :-1] - phi.phi22 * omega[:, :-1], np.full(60, phi.psi2))
    assert not above(omega, nonconvex.consensus(c, g.mean(axis=0)[:-1], 0.0))
    for last in (0, 10, 60):
        told = nonconvex.best(c, float(world.loss(world.start.astype(float))), 0.0, last)
        assert told.holds and not above(g[:, : last + 1].mean(axis=1), np.array(told.total))


def test_a_nonconvex_problem_with_the_pl_inequality_stays_below_its_recursion():
    world = WavesWorld.make(Place.of("complete", 4, np.array([0.995, 1.0, 1.0, 1.0]), 0.8), 0.1, 0.2)
    free = world.constants()
    assert 1 - 2 * world.wave.mean() < 0 < free.mu
    c = free.at(0.8 * pl.largest_rate(free))
    system = pl.recursion(c)
    seen = world.states(c.step, iterations=60, seeds=50)
    mean = seen.mean(axis=2)
    nu = np.stack([world.loss(mean).T, ((seen - mean[:, :, None]) ** 2).sum(axis=(2, 3)).T], axis=-1)  # (seeds, 61, 2)
    assert system.radius < 1
    assert not above(nu[:, 1:] - nu[:, :-1] @ system.phi.T, system.psi)
    assert not above(nu, system.propagate(nu[:, 0].mean(axis=0), 60))
