"""The non-convex theorem, its lemmas, and a problem that meets its assumptions."""

import itertools
import math

import numpy as np
import pytest

from dspodfl.errors import InputError
from dspodfl.theory.formulas import nonconvex as theory
from dspodfl.theory.formulas import orders
from dspodfl.theory.formulas.constants import Constants
from dspodfl.theory.formulas.nonconvex import Gammas

TINY = Constants(m=2, beta=1.0, rho_tilde=0.5, delta=1.0, zeta=0.5, sigma=1.0, d_min=0.5, alpha=0.1)
HAND = Gammas(2.0, 2.0, 2.0, 1.0, 2.0)
USUAL = Constants(m=5, beta=2.0, rho_tilde=0.5, delta=1.0, zeta=1.0, sigma=0.3, d_min=0.8, alpha=0.005)


# A smooth non-convex problem: F_i(θ) = Σ_j ln(1 + (θ_j − a_ij)²). F_i'' is in [−1/4, 2] in each coordinate, so β = 2;
# ‖∇F_i − ∇F_l‖ ≤ 2‖a_i − a_l‖, so ‖∇F_i‖ ≤ ‖∇F‖ + 2 max_i mean_l ‖a_i − a_l‖: ζ = 1. F ≥ 0.

M, N = 4, 3
RING = [(0, 1), (1, 2), (2, 3), (3, 0)]
R, B = 1 / 3, np.array([0.4, 0.7, 0.9, 0.5])
D = np.array([0.7, 0.9, 1.0, 0.8])
A = np.random.default_rng(0).normal(0, 0.3, (M, N))
DELTA = 2 * max(np.linalg.norm(A - A[i], axis=1).mean() for i in range(M))


def each(theta):  # (..., m, n) -> gradients of client i at its own model
    return 2 * (theta - A) / (1 + (theta - A) ** 2)


def whole(theta):  # (..., n) -> ∇F
    return each(theta[..., None, :]).mean(axis=-2)


def loss(theta):  # (..., n) -> F
    return np.log1p((theta[..., None, :] - A) ** 2).sum(axis=-1).mean(axis=-1)


def mix(fired):  # (links,) bool -> P
    p = np.eye(M)
    for (i, j), here in zip(RING, fired, strict=True):
        if here:
            p[i, i], p[j, j], p[i, j], p[j, i] = p[i, i] - R, p[j, j] - R, p[i, j] + R, p[j, i] + R
    return p


def draws(rates):
    """Every outcome of independent Bernoulli draws, with its probability."""
    for fired in itertools.product((0, 1), repeat=len(rates)):
        fired = np.array(fired)
        yield fired, float(np.prod(np.where(fired, rates, 1 - rates)))


RHO = float(np.linalg.eigvalsh(sum(q * mix(f) @ mix(f) for f, q in draws(B)) - 1 / M)[-1])


def constants(alpha, sigma=0.0):
    return Constants(
        m=M, beta=2.0, rho_tilde=RHO, delta=DELTA, zeta=1.0, sigma=sigma, d_min=D.min(), d_max=D.max(), alpha=alpha
    )


def spread(theta):
    return ((theta - theta.mean(axis=-2, keepdims=True)) ** 2).sum(axis=(-1, -2))


@pytest.fixture(params=range(6))
def state(request):
    """Models of all clients, near or far from each other and from the minimum."""
    rng = np.random.default_rng(request.param)
    return rng.normal(0, 3 ** rng.uniform(-2, 1), (1, N)) + rng.normal(0, 10 ** rng.uniform(-2, 0.5), (M, N))


def test_the_coefficients_are_those_computed_by_hand():
    f = theory.coefficients(TINY)
    assert (f.phi11, f.phi12, f.phi21) == pytest.approx((0.025, 0.03, 0.24), rel=1e-12)
    assert (f.phi22, f.psi1, f.psi2) == pytest.approx((0.99, 0.0625, 0.98), rel=1e-12)


def test_the_weights_are_those_computed_by_hand_and_differ_in_w2_alone():
    printed, proved = theory.weights(TINY, HAND, "printed"), theory.weights(TINY, HAND, "proved")
    assert (printed.w1, printed.w2, printed.w3) == pytest.approx((0.09375, 4.0, 98.0), rel=1e-12)
    assert (printed.w4, printed.w5) == pytest.approx((2.0, 0.25), rel=1e-12)
    assert proved.w2 == pytest.approx(8 / 3, rel=1e-12)
    assert (proved.w1, proved.w3, proved.w4, proved.w5) == (printed.w1, printed.w3, printed.w4, printed.w5)


def test_the_bound_is_the_one_computed_by_hand():
    found = theory.bound(TINY.at(0.01), HAND, gap=1.0, spread=2.0, last=99)
    assert found.holds
    by_hand = (1 + 2 * (8 / 3) / 100 + 1e-4 * (8 / 3) * 98 + 0.5 * 2 + 0.01 * 0.25) / 0.09375
    assert found.total == pytest.approx(by_hand, rel=1e-12)
    assert found.limit == pytest.approx((1e-4 * (8 / 3) * 98 + 0.5 * 2 + 0.01 * 0.25) / 0.09375, rel=1e-12)


def test_each_condition_carries_the_limit_computed_by_hand():
    found = {c.name: c for c in theory.conditions(TINY.at(0.01), HAND)}
    limits = [c.right for name, c in found.items() if name.startswith("α")]
    mixing = 0.5 / math.sqrt(1.5)
    assert limits == pytest.approx([0.5, mixing / 8, 0.5 / 6, math.sqrt(0.1875) * mixing / 8], rel=1e-12)
    assert all(c.holds for c in found.values())
    late = theory.conditions(TINY.at(0.03), HAND)
    assert [c.name for c in late if not c.holds] == ["α < the rate of Γ₄"]


def test_the_printed_conditions_imply_the_proved_ones():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        c = Constants(5, 2.0, rng.uniform(0, 0.95), None, 1.0, rng.uniform(0, 1.5), 0.5, rng.uniform(0, 0.7), 0.8)
        g = Gammas(*(1 + rng.exponential(1.0, 3)), rng.exponential(0.3), 1 + rng.exponential())
        c = c.at(10 ** rng.uniform(-4, -1))
        if all(each.holds for each in theory.conditions(c, g, "printed")):
            assert all(each.holds for each in theory.conditions(c, g, "proved"))
            assert theory.weights(c, g, "printed").w2 >= theory.weights(c, g, "proved").w2


@pytest.mark.parametrize("form", ["printed", "proved"])
def test_the_optimized_gammas_are_never_worse_than_ones_chosen_by_hand(form):
    rng = np.random.default_rng(1)
    best = theory.best(USUAL, 3.0, 1.0, 1000, form)
    assert best.holds
    compared = 0
    for slack in rng.uniform(0, 0.9, (300, 5)):
        g = theory.gammas(USUAL, slack, form)
        if g is not None:
            compared += 1
            other = theory.bound(USUAL, g, 3.0, 1.0, 1000, form)
            assert other.holds and best.total <= other.total
    assert compared > 100
    by_hand = theory.bound(TINY.at(0.01), HAND, 1.0, 2.0, 99, form)
    assert theory.best(TINY.at(0.01), 1.0, 2.0, 99, form).total <= by_hand.total


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("zeta", [0.0, 0.6, 1.0])
def test_the_optimized_bound_is_the_one_without_gammas(share, zeta):
    c = Constants(m=5, beta=2.0, rho_tilde=0.6, delta=1.0, zeta=zeta, sigma=0.3, d_min=0.8, d_max=0.9)
    c = c.at(share * theory.largest_rate(c))
    f, best = theory.coefficients(c), theory.best(c, 3.0, 1.0, 1000)
    w1 = (f.phi11 - f.phi12 * f.phi21 / (1 - f.phi22)) / c.step
    w2 = f.phi12 / (c.step * (1 - f.phi22))
    exact = (3.0 / (c.step * 1001) + w2 / 1001 + w2 * f.psi2 + f.psi1 / c.step) / w1
    assert best.total == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("form", ["printed", "proved"])
@pytest.mark.parametrize("zeta", [0.0, 0.3, 1.0])
def test_gammas_exist_up_to_the_largest_rate_and_not_past_it(form, zeta):
    c = Constants(m=5, beta=2.0, rho_tilde=0.6, delta=1.0, zeta=zeta, sigma=0.3, d_min=0.8, d_max=0.9)
    top = theory.largest_rate(c, form)
    assert theory.best(c.at(0.999 * top), 1.0, 1.0, 10, form).holds
    late = theory.best(c.at(1.001 * top), 1.0, 1.0, 10, form)
    assert not late.holds and late.total == math.inf and late.gammas is None


def test_too_much_sporadicity_for_its_diversity_is_named_as_the_hypothesis_that_fails():
    c = Constants(m=5, beta=2.0, rho_tilde=0.5, delta=1.0, zeta=1.0, d_min=0.5, alpha=1e-6)
    assert theory.largest_rate(c) == 0.0
    found = theory.best(c, 1.0, 1.0, 10)
    assert found.total == math.inf
    failed = [each.name for each in found.conditions if not each.holds]
    assert failed[0] == "ζ²(1 − d_min) < ½, dropped by the theorem"
    unsaid = theory.conditions(c, Gammas(1e9, 2.0, 2.0, 1.0, 2.0), "printed")
    assert [each.name for each in unsaid if not each.holds] == ["ζ²(1 − d_min) < 1/(2Γ₀), dropped by the theorem"]


def test_without_the_dropped_hypothesis_the_theorem_is_false():
    # F_1 = 3x²/2, F_2 = −x²/2: F = x²/2, β = 3, δ = 0, ζ = 3. Client 1 computes seldom, so the models climb F_2.
    alpha, last = 0.002, 4000
    c = Constants(m=2, beta=3.0, rho_tilde=0.0, zeta=3.0, d_min=0.1, alpha=alpha)
    g = Gammas(1e9, 2.0, 2.0, 1.0, 1.5)
    unmet = [each.name for each in theory.conditions(c, g, "printed") if not each.holds]
    assert unmet == ["ζ²(1 − d_min) < 1/(2Γ₀), dropped by the theorem"]
    promised = 0.5 / (alpha * (last + 1)) / theory.weights(c, g, "printed").w1
    rng, x, total = np.random.default_rng(0), np.ones(2), 0.0
    for _ in range(last + 1):
        total += x.mean() ** 2
        x = x.mean() - alpha * np.array([3.0, -1.0]) * (rng.random(2) < [0.1, 1.0]) * x
    assert total / (last + 1) > 10 * promised


def test_every_client_computing_always_recovers_the_bound_without_sporadic_sgd():
    c = Constants(m=5, beta=2.0, rho_tilde=0.5, delta=1.0, zeta=1.0, sigma=0.3, alpha=0.005)
    found = theory.best(c, 3.0, 1.0, 1000)
    assert found.sporadic == 0.0 and found.gammas.g0 > 1e8
    ends = [theory.best(c.at(a), 0.0, 0.0, 0).limit for a in (1e-7, 1e-8)]
    assert ends[1] / ends[0] == pytest.approx(0.1, rel=0.05)  # O(α) + O(α²): the gap vanishes with α


def test_with_sporadic_sgd_a_gap_stays_however_small_the_rate():
    c = Constants(m=5, beta=2.0, rho_tilde=0.5, delta=1.0, zeta=0.8, d_min=0.7)
    found = theory.best(c.at(1e-9), 0.0, 0.0, 0)
    assert found.limit == pytest.approx(0.3 / (0.5 - 0.64 * 0.3), rel=1e-5)


@pytest.mark.parametrize("form", ["printed", "proved"])
def test_the_bound_falls_in_K_towards_its_limit_and_in_d_min(form):
    in_k = [theory.best(USUAL, 3.0, 1.0, k, form) for k in (10, 100, 1000, 10**7)]
    totals = [b.total for b in in_k]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == pytest.approx(in_k[-1].limit, rel=0.01)
    c = Constants(m=5, beta=2.0, rho_tilde=0.5, delta=1.0, zeta=1.0, sigma=0.3, alpha=0.003)
    in_d = [
        theory.best(Constants(**{**vars(c), "d_min": d}), 3.0, 1.0, 1000, form).total for d in (0.6, 0.7, 0.8, 0.9, 1.0)
    ]
    assert in_d == sorted(in_d, reverse=True) and in_d[0] < math.inf


def test_each_term_has_the_order_it_is_said_to_have():
    slow = Constants(m=5, beta=2.0, rho_tilde=0.5, delta=1.0, zeta=0.1, sigma=0.3, d_min=0.9, alpha=1e-4)
    fast, later = slow.at(1e-5), 10**6
    a, b = theory.best(slow, 3.0, 1.0, later), theory.best(fast, 3.0, 1.0, later)
    powers = {"start": -1, "spread": 0, "drift": 2, "sporadic": 0, "noise": 1}
    assert set(powers) == set(orders.NONCONVEX)
    for name, power in powers.items():
        assert getattr(b, name) / getattr(a, name) == pytest.approx(0.1**power, rel=0.02)
    much_later = theory.best(slow, 3.0, 1.0, 10 * later)
    assert much_later.start / a.start == pytest.approx(0.1, rel=1e-3)
    assert much_later.limit == pytest.approx(a.limit, rel=1e-6)


def test_negative_gaps_are_refused():
    with pytest.raises(InputError, match="gap"):
        theory.bound(TINY, HAND, -1.0, 0.0, 1)


def test_the_gradient_lemmas_hold_exactly_at_any_state(state):
    c, mean = constants(0.01), state.mean(axis=0)
    g, omega = float((whole(mean) ** 2).sum()), float(spread(state))
    a = b = norm = deviation = 0.0
    for v, q in draws(D):
        step = v[:, None] * each(state)
        drift = step.mean(axis=0)
        a += q * ((whole(mean) - drift) ** 2).sum()
        b -= q * whole(mean) @ drift
        norm += q * (drift**2).sum() / 2
        deviation += q * spread(step)
    bounds = theory.gradient_bounds(c, g, omega)
    assert a <= bounds[0] and b <= bounds[1] and norm <= bounds[2]
    assert deviation <= theory.gradient_deviation(c, g, omega)


@pytest.mark.parametrize("alpha", [0.001, 0.02, 0.2, 1.0])
def test_the_two_main_lemmas_hold_exactly_at_any_state_and_rate(state, alpha):
    c, mean = constants(alpha), state.mean(axis=0)
    f, g, omega = theory.coefficients(c), float((whole(mean) ** 2).sum()), float(spread(state))
    after = apart = 0.0
    for v, q in draws(D):
        step = alpha * v[:, None] * each(state)
        after += q * loss(mean - step.mean(axis=0))
        apart += sum(q * p * spread(mix(fired) @ state - step) for fired, p in draws(B))
    assert after <= loss(mean) - f.phi11 * g + f.phi12 * omega + f.psi1
    assert apart <= f.phi21 * g + f.phi22 * omega + f.psi2


@pytest.mark.parametrize(("share", "sigma"), [(0.9, 0.0), (0.5, 0.5), (0.1, 2.0)])
def test_measured_gradients_and_consensus_never_exceed_their_bounds(share, sigma):
    alpha = share * theory.largest_rate(constants(1.0))
    c, seeds, last = constants(alpha, sigma), 60, 400
    rng = np.random.default_rng(7)
    start = np.array([2.0, -2.0, 1.0]) + rng.normal(0, 0.5, (M, N))
    theta = np.broadcast_to(start, (seeds, M, N)).copy()
    norms, omegas, values = [], [], []
    for _ in range(last + 1):
        values.append(loss(theta.mean(axis=1)).mean())
        norms.append((whole(theta.mean(axis=1)) ** 2).sum(axis=1))
        omegas.append(spread(theta))
        p = np.stack([mix(fired) for fired in rng.random((seeds, len(B))) < B])
        v = rng.random((seeds, M)) < D
        noise = rng.normal(0, sigma / math.sqrt(N), theta.shape)
        theta = p @ theta - alpha * v[..., None] * (each(theta) + noise)
    norms, omegas = np.array(norms), np.array(omegas)  # (iterations, seeds)
    for form in ("printed", "proved"):
        for k in (1, 10, 100, last):
            promised = theory.best(c, float(loss(start.mean(axis=0))), float(spread(start)), k, form)
            assert promised.holds and norms[: k + 1].mean() <= promised.total
    assert (
        norms.mean(axis=0) <= theory.best(c, float(loss(start.mean(axis=0))), float(spread(start)), last).total
    ).all()
    recursion = theory.consensus(c, norms.mean(axis=1), float(spread(start)))[:-1]
    assert (omegas.mean(axis=1) <= recursion * (1 + 1e-12)).all()
    told = theory.explicit(c, promised.gammas, norms.mean(axis=1), values[0], float(spread(start)))
    assert (np.array(values[1:]) <= told[:-1]).all()
