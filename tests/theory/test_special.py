"""DGD, the bounds the paper sets beside its own, and the inequalities between constants."""

from dataclasses import replace

import numpy as np
import pytest
from tests.theory.quadratics import random_world

from dspodfl.errors import InputError
from dspodfl.theory.formulas import convex, orders, special
from dspodfl.theory.formulas.constants import Constants

C = Constants(m=8, mu=0.5, beta=1.0, zeta=0.3, rho_tilde=0.6, d_min=0.7, d_max=0.9, delta=1.1, sigma=0.4, alpha=0.02)


def test_sgd_in_every_iteration_and_like_data_recover_dgd():
    c = replace(special.dgd(C), zeta=0.0)
    found, expected = convex.recursion(c), special.dgd_recursion(c)
    np.testing.assert_allclose(found.phi, expected.phi, rtol=1e-12)
    np.testing.assert_allclose(found.psi, expected.psi, rtol=1e-12)
    assert found.phi[1, 0] == 0.0
    assert found.radius == pytest.approx(max(found.phi[0, 0], found.phi[1, 1]))
    assert convex.recursion(special.dgd(C)).phi[1, 0] > 0  # d_min = 1 alone is not enough: ζ feeds it


def test_the_gap_of_dgd_is_proportional_to_the_rate():
    gaps = [convex.recursion(special.dgd(replace(C, zeta=0.0)).at(a)).gap[0] / a for a in (1e-4, 1e-5, 1e-6)]
    assert gaps[2] == pytest.approx(C.sigma**2 / (C.m * C.mu), rel=0.01)
    assert abs(gaps[1] - gaps[2]) < abs(gaps[0] - gaps[1])
    sporadic = [convex.recursion(replace(C, d_min=0.9, d_max=1.0).at(a)).gap[0] for a in (1e-5, 1e-6)]
    assert sporadic[1] == pytest.approx(sporadic[0], rel=0.05) and sporadic[1] > 0.1  # and with d_min < 1 it stays


@pytest.mark.parametrize(
    ("bound", "orders"),
    [
        (lambda c: special.koloskova(c, 0.0, 0), orders.POWERS["koloskova"]),
        (lambda c: special.compared(special.dgd(c), 0.0, 0.0, 0), orders.POWERS["dspodfl, d_min = 1"]),
        (lambda c: special.compared(c, 0.0, 0.0, 0), orders.POWERS["dspodfl"]),
    ],
)
def test_bounds_have_the_orders_in_the_rate_that_the_paper_compares(bound, orders):
    rates = np.linspace(0.1, 1, 4)
    powers = np.polynomial.polynomial.polyfit(rates, [bound(C.at(float(a))) for a in rates], 3)
    assert tuple(np.flatnonzero(np.abs(powers) > 1e-9).tolist()) == orders


def test_the_start_decays_as_one_over_alpha_k_in_both():
    for bound, factor in ((special.koloskova, 2.0), (lambda c, e, k: special.compared(c, e, 0.0, k), 1.0)):
        rise = bound(C, 3.0, 99) - bound(C, 0.0, 99)
        assert rise == pytest.approx(factor * 3.0 / (100 * C.step))
    with pytest.raises(InputError):
        special.compared(C, 1.0, 0.0, 10, gamma1=1.0)


@pytest.mark.parametrize("seed", range(20))
def test_diversity_never_exceeds_twice_the_smoothness(seed):
    c = random_world(seed).constants(0.1)
    assert 0 <= c.zeta <= special.largest_zeta(c.beta, c.beta)


@pytest.mark.parametrize("seed", range(20))
def test_nonconvex_diversity_implies_the_convex_one(seed):
    world = random_world(seed)
    rng = np.random.default_rng(seed)
    star = world.optimum
    points = star + rng.standard_normal((400, 2)) * 10 ** rng.uniform(-3, 3, (400, 1))
    local = np.stack(
        [np.stack([h @ (p - q) for h, q in zip(world.hessian, world.centre, strict=True)]) for p in points]
    )
    whole = np.linalg.norm(local.mean(axis=1), axis=1)
    delta = np.linalg.norm([h @ (star - q) for h, q in zip(world.hessian, world.centre, strict=True)], axis=1).max()
    zeta = max(0.0, ((np.linalg.norm(local, axis=2).max(axis=1) - delta) / whole).max())
    beta = float(np.linalg.eigvalsh(world.hessian).max())
    stated = special.convex_zeta(Constants(m=3, beta=beta, rho_tilde=0.5, zeta=float(zeta)))
    apart = np.linalg.norm(local - local.mean(axis=1, keepdims=True), axis=2).max(axis=1)
    assert (apart <= delta + stated * np.linalg.norm(points - star, axis=1) + 1e-9).all()


def test_convex_diversity_alone_does_not_imply_the_nonconvex_one():
    # F_1 = ½x² + ½y², F_2 = ½x² − ½y²: along y, ∇F = 0 while ‖∇F_1‖ grows; convex diversity holds with δ = 0, ζ = 1
    y = np.array([1.0, 10.0, 100.0])
    whole, first = (y - y) / 2, y
    assert (whole == 0).all() and first.max() > 50
    assert (np.abs(whole - first) <= 1.0 * y).all()


@pytest.mark.parametrize("seed", range(20))
def test_with_strong_convexity_convex_diversity_does_imply_the_nonconvex_one(seed):
    world = random_world(seed)
    c = world.constants(0.1)
    rng = np.random.default_rng(seed)
    for point in world.optimum + rng.standard_normal((200, 2)) * 10 ** rng.uniform(-3, 3, (200, 1)):
        local = world.gradients(np.broadcast_to(point, (3, 2)))
        bound = c.delta + special.nonconvex_zeta(c) * np.linalg.norm(local.mean(axis=0))
        assert np.linalg.norm(local, axis=1).max() <= bound * (1 + 1e-9)
