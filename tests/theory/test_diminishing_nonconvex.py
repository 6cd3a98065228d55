"""Diminishing rates, non-convex losses: the theorem printed and corrected, and measured gradients below it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.theory.test_nonconvex import DELTA, RHO, B, D, M, N, each, loss, mix, spread, whole

from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.theory.formulas import diminishing, nonconvex
from dspodfl.theory.formulas import diminishing_nonconvex as theory
from dspodfl.theory.formulas.constants import Constants
from dspodfl.theory.formulas.nonconvex import Gammas

SMOOTH = Constants(
    m=2,
    beta=1.0,
    rho_tilde=0.5,
    delta=1.0,
    zeta=0.5,
    sigma=1.0,
    d_min=0.5,
    d_max=0.8,
    alpha=Diminishing(0.01, gamma=10.0),
)
HAND = Gammas(math.inf, 2.0, 2.0, 1.0, 2.0)


def test_the_nonconvex_coefficients_are_the_constant_ones_at_every_iterations_rate_and_probability():
    idle = diminishing.etas(SMOOTH)[0]
    for k in (0, 5, 1000):
        alpha = float(SMOOTH.alpha(np.array(k)))
        then = nonconvex.coefficients(replace(SMOOTH, d_min=1 - idle * alpha, d_max=1.0, alpha=alpha))
        assert vars(theory.coefficients(SMOOTH, k)) == pytest.approx(vars(then), rel=1e-12)


def test_the_printed_nonconvex_coefficients_lose_an_alpha_and_take_the_wrong_eta():
    printed = theory.coefficients(SMOOTH, 0, "printed")
    eta = 0.2 / 0.01
    assert printed.phi11 == pytest.approx(0.01 * (0.5 - (0.25 * eta + 1 + 0.5 * eta) * 0.01), rel=1e-12)
    assert printed.psi1 == pytest.approx((eta * 1.02 + 0.25) * 1e-4, rel=1e-12)
    fast = SMOOTH.at(Diminishing(5.0, gamma=10.0))  # α > 1: dropping the α is no longer on the safe side
    equal = replace(fast, d_min=0.8, d_max=0.8)
    assert theory.coefficients(equal, 0, "printed").phi11 > theory.coefficients(equal, 0).phi11


def test_the_nonconvex_weights_and_bound_are_those_computed_by_hand():
    c = replace(SMOOTH, zeta=0.1)
    w = theory.weights(c, HAND)
    assert (w.w1, w.w2, w.w3, w.w4) == pytest.approx((0.1875, 8 / 3, 98.0, 50 * 2 + 0.25), rel=1e-12)
    assert theory.weights(c, HAND, "printed").w4 == pytest.approx(20 * 2 + 0.25, rel=1e-12)
    found = theory.bound(c, HAND, gap=1.0, spread=2.0, last=2)
    a = [0.01 / math.sqrt(1 + k / 10) for k in range(3)]
    top = 1 + 0.01 * (8 / 3) * 2 + (8 / 3) * 98 * (a[0] ** 3 + a[1] ** 3) + 100.25 * sum(x**2 for x in a)
    assert found.holds and found.total == pytest.approx(top / (0.1875 * sum(a)), rel=1e-12)
    printed = theory.bound(c, HAND, gap=1.0, spread=2.0, last=2, form="printed")
    top = 1 + 0.01 * (8 / 3) * 2 + (8 / 3) * 98 * 1e-6 * 21 + 40.25 * 1e-4 * (1 + 10 * math.log(1.2))
    assert printed.total == pytest.approx(top / (0.1875 * 2 * 0.01 * (math.sqrt(1.2) - 1)), rel=1e-12)


def test_the_nonconvex_conditions_carry_the_limits_computed_by_hand():
    found = theory.conditions(SMOOTH, HAND)
    mixing = 0.5 / math.sqrt(1.5)
    gamma2 = 0.25 / (0.25 * 50 + 1 + 2 * 0.25 * 0.5)
    gamma4 = math.sqrt(0.75 * 0.5) * mixing / (4 * 2 * 0.5) / 2
    assert [h.right for h in found[:4]] == pytest.approx([0.5, mixing / 8, gamma2, gamma4], rel=1e-12)
    printed = theory.conditions(SMOOTH, HAND, "printed")
    assert printed[2].right == pytest.approx(0.25 / (0.25 * 20 + 1 + 2 * 0.25 * 20), rel=1e-12)


def test_the_corrected_rate_of_gamma2_implies_the_demand_on_d_min_and_the_printed_one_does_not():
    c = replace(SMOOTH, zeta=1.0, d_min=0.3, d_max=1.0, alpha=Diminishing(1e-3, gamma=10.0))
    failed = {form: theory.best(c, 1.0, 1.0, 100, form) for form in ("printed", "corrected")}
    assert [h.name for h in failed["printed"].conditions if not h.holds] == ["ζ²(1 − d_min(0)) < ½"]
    assert failed["corrected"].gammas is None and failed["corrected"].total == math.inf
    assert next(h.name for h in failed["corrected"].conditions if not h.holds) == "α⁰ < the rate of Γ₂ = 1"


@pytest.mark.parametrize("form", ["printed", "corrected"])
def test_the_optimized_gammas_are_never_worse_than_ones_chosen_by_hand(form):
    c = replace(SMOOTH, zeta=0.1)
    best = theory.best(c, 1.0, 2.0, 500, form)
    assert best.holds and best.total <= theory.bound(c, HAND, 1.0, 2.0, 500, form).total
    compared = 0
    for slack in np.random.default_rng(0).uniform(0, 0.9, (200, 4)):
        g = theory.gammas(c, slack, form)
        if g is not None:
            compared += 1
            assert best.total <= theory.bound(c, g, 1.0, 2.0, 500, form).total
    assert compared > 50


def test_the_nonconvex_bound_vanishes_like_log_K_over_root_K_where_the_printed_display_does_not():
    c = replace(SMOOTH, zeta=0.1)
    totals = [theory.best(c, 1.0, 2.0, k) for k in (10**3, 10**4, 10**5, 10**6)]
    assert [t.total for t in totals] == sorted((t.total for t in totals), reverse=True)
    expected = 0.1 * math.log(1e5) / math.log(1e3)
    assert totals[3].noise / totals[1].noise == pytest.approx(expected, rel=0.1)
    assert totals[3].start / totals[1].start == pytest.approx(0.1, rel=0.05)
    assert totals[3].limit == 0.0
    w = theory.weights(c, totals[3].gammas)
    assert totals[3].printed_limit == pytest.approx(w.w4 * 0.01 / (2 * w.w1), rel=1e-12)
    assert totals[3].printed_limit > totals[3].total


def test_the_nonconvex_bound_falls_in_d_min_and_at_one_loses_its_sporadic_part():
    c = replace(SMOOTH, zeta=0.1, d_max=1.0)
    found = [theory.best(replace(c, d_min=d), 1.0, 2.0, 500) for d in (0.3, 0.6, 0.9, 1.0)]
    assert [b.total for b in found] == sorted((b.total for b in found), reverse=True)
    assert theory.weights(replace(c, d_min=1.0), HAND).w4 == 0.25


def test_the_printed_display_can_fall_below_what_is_proved():
    small = replace(SMOOTH, zeta=0.1, d_max=1.0, alpha=Diminishing(0.01, gamma=0.05))
    printed, corrected = (theory.best(small, 1.0, 2.0, 500, form) for form in ("printed", "corrected"))
    assert printed.total < corrected.total


def test_measured_weighted_gradients_never_exceed_the_corrected_bound():
    rate, sigma, seeds, last = Diminishing(0.004, gamma=30.0), 0.5, 50, 500
    c = Constants(
        m=M, beta=2.0, rho_tilde=RHO, delta=DELTA, zeta=1.0, sigma=sigma, d_min=D.min(), d_max=D.max(), alpha=rate
    )
    rng = np.random.default_rng(11)
    start = np.array([2.0, -2.0, 1.0]) + rng.normal(0, 0.5, (M, N))
    theta = np.broadcast_to(start, (seeds, M, N)).copy()
    alphas, norms, values = rate(np.arange(last + 1)), [], []
    for alpha in alphas:
        values.append(loss(theta.mean(axis=1)).mean())
        norms.append((whole(theta.mean(axis=1)) ** 2).sum(axis=1).mean())
        p = np.stack([mix(fired) for fired in rng.random((seeds, len(B))) < B])
        v = rng.random((seeds, M)) < 1 - (1 - D) / rate.value * alpha
        noise = rng.normal(0, sigma / math.sqrt(N), theta.shape)
        theta = p @ theta - alpha * v[..., None] * (each(theta) + noise)
    for k in (1, 50, last):
        promised = theory.best(c, float(loss(start.mean(axis=0))), float(spread(start)), k)
        measured = np.average(norms[: k + 1], weights=alphas[: k + 1])
        assert promised.holds and measured <= promised.total
    told = theory.explicit(c, promised.gammas, np.array(norms), values[0], float(spread(start)))
    assert (np.array(values[1:]) <= told[:-1]).all()
