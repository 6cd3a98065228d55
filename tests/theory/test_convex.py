"""proposition:spectral_radius and theorem:constant: what is printed, what holds, and by how much they differ."""

from dataclasses import replace

import numpy as np
import pytest
from tests.theory.quadratics import World, draws

from dspodfl.network import Graph
from dspodfl.network import weights as mixing
from dspodfl.theory.formulas import convex
from dspodfl.theory.formulas.constants import Constants
from dspodfl.theory.formulas.recursion import Recursion

SCARCE = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.5)
GENTLE = Constants(m=10, mu=1.0, beta=1.0, zeta=0.2, rho_tilde=0.5, d_min=0.97, delta=0.7, sigma=0.3)


def test_the_printed_condition_lets_the_spectral_radius_pass_one():
    rate = convex.printed_rate(SCARCE)
    assert rate == pytest.approx(0.01498, abs=5e-6)
    assert convex.recursion(SCARCE.at(0.99 * rate)).radius == pytest.approx(1.059, abs=5e-4)
    failing = {h.name for h in convex.hypotheses(SCARCE.at(0.99 * rate)) if not h.holds}
    assert "enough SGD: s = 2β²(1 − d_min)/μ² < 1" in failing and "φ₁₁ < 1" in failing
    assert "printed learning-rate condition" not in failing
    assert convex.largest_rate(SCARCE) == convex.corrected_rate(SCARCE) == 0.0


def test_the_printed_condition_fails_without_sporadic_sgd_too():
    c = Constants(m=10, mu=0.01, beta=1.0, zeta=1.0, rho_tilde=0.5, d_min=1.0)
    at = c.at(0.99 * convex.printed_rate(c))
    assert convex.recursion(at).radius > 1.13
    failing = {h.name for h in convex.hypotheses(at) if not h.holds}
    assert failing == {"φ₁₂φ₂₁ < (1 − φ₁₁)(1 − φ₂₂)", "Constraint 2: s₀Γ₂* < 1 − x²/(1 + x)"}
    assert convex.printed_rate(c) > 20 * convex.largest_rate(c)


@pytest.mark.parametrize("ratio", [1.0, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("d_min", [0.5, 0.8, 0.95, 0.999, 1.0])
def test_the_printed_condition_fails_wherever_sgd_is_scarce_for_the_condition_number(ratio, d_min):
    c = Constants(m=10, mu=1 / ratio, beta=1.0, zeta=0.1, rho_tilde=0.5, d_min=d_min)
    radius = convex.recursion(c.at(0.99 * convex.printed_rate(c))).radius
    scarce = d_min <= 1 - 1 / (2 * ratio**2)
    assert convex.printed_rate(c) > 0 and (convex.largest_rate(c) == 0) == scarce
    assert radius >= 1 if scarce else radius < 1 or convex.printed_rate(c) > convex.largest_rate(c)


def test_the_printed_step_two_factors_the_quadratic_with_wrong_roots():
    s = 0.3
    roots = np.sort(np.roots([1.0, s, s - 1.0]))
    np.testing.assert_allclose(roots, [-1.0, 1.0 - s])  # printed: s − 1 and 1


@pytest.mark.parametrize("c", draws(200))
def test_the_largest_rate_is_where_the_radius_meets_one(c):
    largest, corrected = convex.largest_rate(c), convex.corrected_rate(c)
    assert corrected <= largest < 2 / (c.mu + c.beta)
    if largest > 0:
        assert convex.recursion(c.at(0.99 * largest)).radius < 1 <= convex.recursion(c.at(1.01 * largest)).radius
        assert all(convex.recursion(c.at(f * corrected)).radius < 1 for f in (0.01, 0.5, 0.99))
    else:
        assert convex.scarcity(c) >= 1
        assert all(convex.recursion(c.at(rate)).radius >= 1 for rate in np.geomspace(1e-6, 1, 13))


@pytest.mark.parametrize("c", draws(50, seed=1))
def test_the_closed_form_is_the_radius_of_its_simplified_matrix(c):
    c = c.at(convex.printed_rate(c) / 3)
    form, alpha = convex.closed_form(c), c.step
    phi22 = convex.recursion(c).phi[1, 1]
    product = form.c * alpha**3 / 4
    simple = Recursion(np.array([[1 - 2 * form.a * alpha, product], [1.0, phi22]]), np.zeros(2))
    assert convex.printed_radius(c) == pytest.approx(simple.radius, rel=1e-12)
    gamma0 = 1.5
    a = c.beta**2 / c.mu * (convex.gamma2(c, gamma0) - 1) * (1 - 1 / gamma0)
    assert form.a == pytest.approx(a, rel=1e-12)


def test_the_closed_form_bounds_the_radius_from_above_where_its_hypotheses_hold_and_never_equals_it():
    held = 0
    for c in draws(4000, seed=2):
        at = c.at(max(convex.corrected_rate(c), 1e-6) / 2)
        if all(h.holds for h in convex.hypotheses(at)):
            held += 1
            assert convex.printed_radius(at) > convex.recursion(at).radius
    assert held >= 30  # they seldom hold: Constraint 2 asks for ζ small beside μ


def test_outside_its_hypotheses_the_closed_form_is_not_even_a_bound():
    c = Constants(m=10, mu=0.01, beta=1.0, zeta=1.0, rho_tilde=0.5, d_min=1.0).at(1e-4)
    assert convex.printed_radius(c) < convex.recursion(c).radius < 1


@pytest.mark.parametrize("c", draws(50, seed=3))
def test_one_minus_the_radius_is_at_most_twice_a_alpha_against_the_printed_sign(c):
    c = c.at(convex.printed_rate(c) / 2)
    assert 1 - convex.printed_radius(c) <= 2 * convex.closed_form(c).a * c.step + 1e-15


def test_radius_and_gap_fall_with_more_sgd_and_better_mixing():
    alpha = convex.corrected_rate(replace(GENTLE, d_min=0.9, rho_tilde=0.9)) * 0.9
    for field, values in (("d_min", np.linspace(0.9, 1, 12)), ("rho_tilde", np.linspace(0.9, 0, 12))):
        found = [convex.recursion(replace(GENTLE, **{field: float(v)}).at(alpha)) for v in values]
        assert (np.diff([f.radius for f in found]) <= 0).all()
        assert (np.diff([f.gap for f in found], axis=0) <= 0).all()


def test_the_gap_grows_with_the_rate_but_the_radius_has_its_least_value_inside():
    rates = np.linspace(0.01, 0.999, 60) * convex.largest_rate(GENTLE)
    found = [convex.recursion(GENTLE.at(float(rate))) for rate in rates]
    assert (np.diff([f.gap for f in found], axis=0) > 0).all()
    best = int(np.argmin([f.radius for f in found]))
    assert 0 < best < len(rates) - 1


def test_the_printed_gap_moves_the_wrong_way_with_more_sgd_and_with_diversity():
    alpha = 0.01
    noisy = replace(GENTLE, delta=0.01, sigma=1.0, zeta=0.05)
    less, more = (convex.printed_gap(replace(noisy, d_min=d).at(alpha)) for d in (0.9, 0.99))
    assert (more > less).all()
    mild, diverse = (convex.printed_gap(replace(GENTLE, zeta=z).at(alpha)) for z in (0.1, 1.0))
    assert (diverse < mild).all()
    exact = [convex.recursion(replace(GENTLE, zeta=z).at(alpha)).gap for z in (0.1, 1.0)]
    assert (exact[1] > exact[0]).all()
    assert np.isinf(convex.printed_gap(replace(GENTLE, zeta=0.0, d_min=1.0).at(alpha))).all()


def test_the_printed_gap_is_refuted_by_dgd_with_every_hypothesis_met():
    graph = Graph.from_edges(3, [(0, 1), (1, 2)])
    hessian, centre = np.array([1.0, 0.9, 1.0]).reshape(3, 1, 1), np.array([[0.0], [3.0], [-2.0]])
    world = World(graph, hessian, centre, np.ones(3), np.ones(2), sigma=0.0)
    free = world.constants(1.0)
    c = free.at(0.9 * min(convex.printed_rate(free), convex.corrected_rate(free)))
    assert all(h.holds for h in convex.hypotheses(c))
    p, theta = mixing.matrix(3, graph.edges, world.r), np.tile(world.optimum, (3, 1))
    for _ in range(2000):
        theta = p @ theta - c.step * world.gradients(theta)
    mean = theta.mean(axis=0)
    measured = np.array([((mean - world.optimum) ** 2).sum(), ((theta - mean) ** 2).sum()])
    assert measured[0] > 1e-5 > convex.printed_gap(c)[0] == 0.0
    assert (measured <= convex.recursion(c).gap).all()


def test_the_exact_recursion_bounds_a_long_measured_run():
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    hessian = np.array([1.0, 0.95, 1.0, 0.9]).reshape(4, 1, 1)
    world = World(graph, hessian, rng.standard_normal((4, 1)), np.full(4, 0.9), np.full(4, 0.8), sigma=0.5)
    free = world.constants(1.0)
    c = free.at(0.8 * convex.largest_rate(free))
    runs, start = 400, np.full((4, 1), 2.0)
    theta = np.broadcast_to(start, (runs, 4, 1))
    errors = []
    for _ in range(300):
        mean = theta.mean(axis=1, keepdims=True)
        errors.append(
            [((mean - world.optimum) ** 2).sum(axis=(1, 2)).mean(), ((theta - mean) ** 2).sum(axis=(1, 2)).mean()]
        )
        v = rng.random((runs, 4, 1)) < world.d[:, None]
        p = mixing.matrix(4, graph.edges, world.r * (rng.random((runs, 4)) < world.b))
        noise = world.sigma * rng.choice([-1.0, 1.0], (runs, 4, 1))
        gradient = hessian[None, :, :, 0] * (theta - world.centre)
        theta = p @ theta - c.step * v * (gradient + noise)
    bound = convex.recursion(c).propagate(np.array(errors[0]), 299)
    assert (np.array(errors) <= bound * (1 + 1e-12)).all()
