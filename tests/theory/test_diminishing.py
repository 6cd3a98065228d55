"""Diminishing rates: sums and the convex recursion; printed and corrected."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import digamma, zeta
from tests.theory.test_nonconvex import RHO, B, M, mix, spread

from dspodfl.algorithms.learning_rate import Constant, Diminishing
from dspodfl.errors import InputError
from dspodfl.theory import estimation
from dspodfl.theory.formulas import convex
from dspodfl.theory.formulas import diminishing as theory
from dspodfl.theory.formulas.constants import Constants
from dspodfl.theory.formulas.recursion import radius

RATE = Diminishing(0.05, gamma=20.0)
CONVEX = Constants(
    m=4, beta=1.2, rho_tilde=0.4, mu=1.0, delta=0.5, zeta=0.3, sigma=0.2, d_min=0.8, d_max=0.95, alpha=RATE
)


@pytest.mark.parametrize("gamma", [0.3, 1.0, 50.0])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1000), (7, 300), (0, 1 << 21)])
def test_sums_over_the_schedule_are_exact(gamma, first, last):
    rate = Diminishing(0.5, gamma=gamma)
    square = 0.25 * gamma * (digamma(gamma + last + 1) - digamma(gamma + first))
    cube = 0.125 * gamma**1.5 * (zeta(1.5, gamma + first) - zeta(1.5, gamma + last + 1))
    assert theory.power_sum(rate, 2, last, first) == pytest.approx(square, rel=1e-11)
    assert theory.power_sum(rate, 3, last, first) == pytest.approx(cube, rel=1e-9)
    if last <= 1000:
        by_hand = math.fsum(0.5 / math.sqrt(1 + k / gamma) for k in range(first, last + 1))
        assert theory.power_sum(rate, 1, last, first) == pytest.approx(by_hand, rel=1e-14)


def test_the_squares_have_no_finite_sum_but_grow_like_a_logarithm():
    rate = Diminishing(0.5, gamma=10.0)
    early, late = (theory.power_sum(rate, 2, 10**power) for power in (4, 6))
    assert late - early == pytest.approx(0.25 * 10.0 * math.log(100), rel=1e-2)


@pytest.mark.parametrize("gamma", [0.01, 0.5, 1.0, 3.0, 100.0])
@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 1000), (5, 30), (9, 9)])
def test_the_sum_of_rates_has_the_corrected_floor_and_the_sums_of_powers_their_ceilings(gamma, first, last):
    rate = Diminishing(0.5, gamma=gamma)
    assert theory.power_sum(rate, 1, last, first) >= theory.sum_floor(rate, last, first)
    assert theory.power_sum(rate, 2, last, first) <= theory.power_ceiling(rate, 2, last)
    assert theory.power_sum(rate, 3, last, first) <= theory.power_ceiling(rate, 3, last)


def test_the_printed_floor_lost_a_factor_gamma_and_is_false_for_small_gamma():
    assert theory.sum_floor(RATE, 99) == pytest.approx(20 * theory.sum_floor(RATE, 99, form="printed"), rel=1e-12)
    small = Diminishing(0.5, gamma=0.01)
    assert theory.power_sum(small, 1, 10) < theory.sum_floor(small, 10, form="printed")


def test_a_product_of_contractions_is_below_one_over_their_sum():
    rng = np.random.default_rng(0)
    for n in (1, 5, 100):
        for p in (1.0, 2.5):
            rates = rng.uniform(0, 1, n)
            assert np.prod((1 - rates) ** p) <= theory.product_ceiling(rates, p)


def test_only_a_diminishing_rate_will_do():
    with pytest.raises(InputError, match="alpha"):
        theory.policy(CONVEX.at(Constant(0.1)))


def test_the_client_that_computes_least_has_the_largest_eta():
    d = np.array([0.8, 0.9, 0.95])
    alpha = RATE(np.arange(50))
    over_time = 1 - (1 - d) / 0.05 * alpha[:, None]  # (iterations, clients)
    idle, busy = theory.etas(CONVEX)
    assert np.allclose(1 - over_time.min(axis=1), idle * alpha)
    assert np.allclose(over_time.max(axis=1), 1 - busy * alpha)
    assert theory.etas(CONVEX, "printed") == (busy, idle)


def test_the_system_is_the_constant_one_at_every_iterations_rate_and_probabilities():
    phi, psi = theory.system(CONVEX, 40)
    idle, busy = theory.etas(CONVEX)
    for k in (0, 7, 40):
        alpha = float(RATE(np.array(k)))
        then = convex.recursion(replace(CONVEX, d_min=1 - idle * alpha, d_max=1 - busy * alpha, alpha=alpha))
        assert np.allclose(phi[k], then.phi, rtol=1e-12) and np.allclose(psi[k], then.psi, rtol=1e-12)
    assert np.allclose(radius(phi), np.abs(np.linalg.eigvals(phi)).max(axis=-1))


def test_with_equal_probabilities_printed_and_corrected_systems_are_one():
    equal = replace(CONVEX, d_min=0.9, d_max=0.9)
    for a, b in zip(theory.system(equal, 20, "printed"), theory.system(equal, 20), strict=True):
        assert np.array_equal(a, b)


def test_the_convex_error_falls_to_zero_like_one_over_root_K():
    nu = theory.bound(CONVEX, np.array([4.0, 1.0]), 400_000)
    assert theory.conditions(CONVEX, theory.best_gamma1(CONVEX), 100)[-1].holds
    late, later = nu[100_000], nu[400_000]
    assert later[0] / late[0] == pytest.approx(0.5, rel=0.02)  # 1/√K
    assert later[1] / late[1] == pytest.approx(0.25, rel=0.02)  # 1/K


def test_the_convex_bound_falls_in_d_min_and_every_client_computing_always_is_its_least():
    ends = [
        theory.bound(replace(CONVEX, d_min=d, d_max=1.0), np.array([4.0, 1.0]), 5000)[-1] for d in (0.7, 0.8, 0.9, 1.0)
    ]
    assert (np.diff(ends, axis=0) < 0).all()
    always = replace(CONVEX, d_min=1.0, d_max=1.0)
    phi, psi = theory.system(always, 3)
    assert np.allclose(phi[:, 0, 0], (1 + RATE(np.arange(4))) * (1 - RATE(np.arange(4))) ** 2)
    assert np.allclose(psi[:, 0], RATE(np.arange(4)) ** 2 * 0.04 / 4)


def test_h_is_one_minus_the_radius_of_the_matrix_it_stands_for():
    s, alpha, rho = theory.spectrum(CONVEX, 0.3), np.array([1e-3, 1e-2, 5e-2]), 0.4
    for a, h in zip(alpha, s.h(alpha), strict=True):
        off = math.sqrt(s.c * a**3 / 4)
        matrix = np.array([[1 - 2 * s.a * a, off], [off, (1 + rho) / 2 + 2 * s.b * a**2]])
        assert h == pytest.approx(1 - np.abs(np.linalg.eigvals(matrix)).max(), abs=1e-12)


def test_the_printed_floor_of_h_is_false_and_the_corrected_one_is_not():
    for gamma1 in (0.05, 0.3):
        s = theory.spectrum(CONVEX, gamma1)
        alpha = np.geomspace(1e-5, 1, 200)
        alpha = alpha[s.a * alpha + s.b * alpha**2 <= (1 - s.rho_tilde) / 4]
        assert len(alpha) > 50
        assert (s.h(alpha) < s.floor(alpha, "printed")).all()
        assert (s.h(alpha) >= s.floor(alpha)).all()


def test_gamma2_is_where_the_two_rates_it_balances_meet():
    gamma1, form = 0.2, "printed"
    s, eta = theory.spectrum(CONVEX, gamma1, form), theory.etas(CONVEX, form)[0]
    mu, beta, rho = 1.0, 1.2, 0.4
    mixed = CONVEX.zeta**2 + 2 * eta * gamma1 * beta**2 / mu
    first = mu * (1 + rho) / (4 * eta * gamma1 * (1 + gamma1) * (s.gamma2 - 1) * beta**2)
    second = math.sqrt(eta * gamma1 * (s.gamma2 - 1) * (1 - rho) ** 2 / (6 * (1 + rho) * mixed))
    assert first == pytest.approx(second, rel=1e-12)
    assert first == pytest.approx(theory.rate_limits(CONVEX, gamma1, form)[2], rel=1e-12)


def test_the_optimized_gamma1_allows_the_largest_first_rate():
    for form in ("printed", "corrected"):
        best = min(theory.rate_limits(CONVEX, theory.best_gamma1(CONVEX, form), form))
        top = theory.gamma1_limit(CONVEX, form)
        for gamma1 in np.linspace(1e-3, 1 - 1e-3, 100) * top:
            assert best >= min(theory.rate_limits(CONVEX, float(gamma1), form)) * (1 - 1e-6)


@pytest.mark.parametrize(
    "c",
    [
        # one client always computes: η_min = 0, and the printed condition asks nothing of the others
        Constants(m=10, beta=2.0, rho_tilde=0.8, mu=1.0, zeta=0.5, d_min=0.2, d_max=1.0),
        # all alike, but μ < 1: Γ₁'s limit has lost a factor μ
        Constants(m=10, beta=0.2, rho_tilde=0.1, mu=0.1, zeta=0.05, d_min=0.5, d_max=0.5),
    ],
    ids=["eta_min", "small mu"],
)
def test_the_printed_condition_on_the_first_rate_does_not_ensure_a_contraction(c):
    for alpha in np.geomspace(1e-3, 10, 60):
        tried = c.at(Diminishing(float(alpha), gamma=10.0))
        *printed, _, contraction = theory.conditions(tried, theory.best_gamma1(tried), 100)
        if all(each.holds for each in printed):
            break
    assert all(each.holds for each in printed) and not contraction.holds and contraction.left > 1


def test_the_printed_closed_form_is_not_a_bound_entry_by_entry():
    quiet = replace(CONVEX, delta=0.0, sigma=0.0)
    start = np.array([0.0, 1.0])
    exact = theory.bound(quiet, start, 10)[-1]
    printed = theory.printed(quiet, start, 10, theory.best_gamma1(quiet))
    assert printed[0] == 0.0 < exact[0]


def test_the_printed_closed_form_is_the_product_and_sum_written_out():
    start, last, gamma1 = np.array([4.0, 1.0]), 6, 0.3
    alpha, rho = RATE(np.arange(last + 1)), 1 - theory.spectrum(CONVEX, gamma1).h(RATE(np.arange(last + 1)))
    u = np.array([2 * 1.05 * 0.05 / 0.05 * 0.25 + 0.04 / 4, 4 * (3 * 1.4 / 0.6 * 0.25 + 0.04)])
    out = np.prod(rho) * start + alpha[last] ** 2 * u
    for r in range(1, last + 1):
        out = out + np.prod(rho[r:]) * alpha[r - 1] ** 2 * u
    assert theory.printed(CONVEX, start, last, gamma1) == pytest.approx(out, rel=1e-12)


def test_the_printed_rates_have_the_printed_order():
    first, second = zip(*(theory.printed_rates(CONVEX, k, 0.3) for k in (10**8, 10**10)), strict=True)
    assert first[1] / first[0] == pytest.approx(0.1, rel=1e-2)
    assert second[1] / second[0] == pytest.approx(0.1 * math.log(10**10) / math.log(10**8), rel=0.05)


def test_the_printed_bound_on_the_convolved_squares_is_false_for_small_gamma_and_holds_for_large():
    for gamma, holds in ((0.05, False), (10.0, True)):
        c = CONVEX.at(Diminishing(0.001, gamma=gamma))
        for k in (3, 100, 3000):
            alpha = c.alpha(np.arange(k + 1))
            tails = np.cumsum(theory.spectrum(c, 0.3).h(alpha)[::-1])[::-1]
            assert ((alpha[:-1] ** 2 / tails[1:]).sum() <= theory.printed_rates(c, k, 0.3)[1]) == holds


def test_measured_errors_of_ridge_regression_never_exceed_the_corrected_recursion():
    rng, m, n, sigma, last, seeds = np.random.default_rng(5), M, 2, 0.3, 600, 200
    shards = []
    for _ in range(m):
        x, _ = np.linalg.qr(rng.normal(size=(20, n)))
        x *= math.sqrt(20) * rng.uniform(0.97, 1.03, n)
        shards.append((x, x @ rng.normal(1, 0.3, n)))
    problem = estimation.ridge(shards, 0.1)
    rate, d0 = Diminishing(0.04, gamma=15.0), np.array([0.85, 0.9, 1.0, 0.95])
    c = problem.constants(RHO, sigma, d_min=float(d0.min()), d_max=float(d0.max()), alpha=rate)
    start = rng.normal(0, 2, (m, n))
    nu = np.array([((start.mean(axis=0) - problem.theta) ** 2).sum(), spread(start)])
    promised = theory.bound(c, nu, last)
    assert radius(theory.system(c, last)[0]).max() < 1
    theta = np.broadcast_to(start, (seeds, m, n)).copy()
    hessians = np.stack([x.T @ x / len(x) + 0.1 * np.eye(n) for x, _ in shards])
    pulls = np.stack([x.T @ y / len(x) for x, y in shards])
    for k in range(last + 1):
        error = ((theta.mean(axis=1) - problem.theta) ** 2).sum(axis=1).mean(), spread(theta).mean()
        assert (np.array(error) <= promised[k] * (1 + 1e-9)).all()
        alpha = float(rate(np.array(k)))
        p = np.stack([mix(fired) for fired in rng.random((seeds, len(B))) < B])
        v = rng.random((seeds, m)) < 1 - (1 - d0) / rate.value * alpha
        g = np.einsum("ijk,sik->sij", hessians, theta) - pulls + rng.normal(0, sigma / math.sqrt(n), theta.shape)
        theta = p @ theta - alpha * v[..., None] * g
