"""proposition:nonconvex_pl and theorem:nonconvex_pl: what is printed, what holds, and by how much they differ."""

from dataclasses import replace

import numpy as np
import pytest
from tests.theory.quadratics import World, draws

from dspodfl.network import Graph
from dspodfl.network import weights as mixing
from dspodfl.theory.formulas import pl
from dspodfl.theory.formulas.constants import Constants

GENTLE = Constants(m=10, mu=1.0, beta=1.0, zeta=0.2, rho_tilde=0.5, d_min=0.9, delta=0.7, sigma=0.3)


@pytest.mark.parametrize("c", draws(200, seed=4))
def test_the_printed_condition_is_sufficient_and_empty_without_enough_sgd(c):
    printed, largest = pl.printed_rate(c), pl.largest_rate(c)
    assert printed <= largest and pl.corrected_rate(c) <= largest
    assert pl.printed_rate(c, initial=True) <= printed
    if largest > 0:
        assert pl.recursion(c.at(0.99 * largest)).radius < 1 <= pl.recursion(c.at(1.01 * largest)).radius + 1e-12
        at = c.at(0.99 * printed)
        assert all(h.holds for h in pl.hypotheses(at))
        assert pl.recursion(at).radius <= pl.printed_radius(at) + 1e-14 < 1
    else:
        assert printed == 0.0 and pl.scarcity(c) >= 1


def test_too_little_sgd_is_named_as_the_failing_hypothesis():
    c = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.5, alpha=1e-3)
    failing = [h.name for h in pl.hypotheses(c) if not h.holds]
    assert "enough SGD: s = 2β²(1 − d_min)/μ² < 1" in failing and "φ₁₁ < 1" in failing
    assert pl.recursion(c).radius > 1


def test_the_printed_condition_vanishes_with_diversity_and_the_corrected_one_does_not():
    rates = [pl.printed_rate(replace(GENTLE, zeta=z)) for z in (1e-1, 1e-3, 1e-5, 0.0)]
    assert rates[1] / rates[2] == pytest.approx(100, rel=1e-3) and rates[3] == 0.0
    none = replace(GENTLE, zeta=0.0)
    assert pl.corrected_rate(none) > 0.01
    assert pl.recursion(none.at(0.99 * pl.corrected_rate(none))).radius < 1
    assert pl.printed_rate(replace(none, d_min=1.0)) > 0  # it is 1 − d_min that brings 1/ζ in


def test_radius_and_gap_fall_with_more_sgd_and_better_mixing_and_the_gap_grows_with_the_rate():
    worst = replace(GENTLE, d_min=0.8, rho_tilde=0.9)
    alpha = pl.corrected_rate(worst)
    for field, values in (("d_min", np.linspace(0.8, 1, 12)), ("rho_tilde", np.linspace(0.9, 0, 12))):
        found = [pl.recursion(replace(GENTLE, **{field: float(v)}).at(alpha)) for v in values]
        assert (np.diff([f.radius for f in found]) <= 0).all()
        assert (np.diff([f.gap for f in found], axis=0) <= 0).all()
    found = [pl.recursion(GENTLE.at(float(f) * pl.largest_rate(GENTLE))).gap for f in np.linspace(0.01, 0.99, 40)]
    assert (np.diff(found, axis=0) > 0).all()


def test_one_minus_the_radius_may_be_below_a_alpha():
    c = Constants(m=10, mu=1.0, beta=1.0, zeta=2.0, rho_tilde=0.0, d_min=1.0)
    ratios = [
        (1 - pl.recursion(at).radius) / (pl.closed_form(at).a * at.step)
        for at in (
            replace(c, rho_tilde=rho).at(0.999 * pl.printed_rate(replace(c, rho_tilde=rho)))
            for rho in np.linspace(0.5, 0.99, 200).tolist()
        )
    ]
    assert min(ratios) < 1


def test_the_printed_gap_is_refuted_by_dgd_within_the_printed_condition():
    graph = Graph.from_edges(3, [(0, 1), (1, 2)])
    hessian, centre = np.array([1.0, 0.9, 1.0]).reshape(3, 1, 1), np.array([[0.0], [3.0], [-2.0]])
    world = World(graph, hessian, centre, np.ones(3), np.ones(2), sigma=0.0)
    free = world.constants(1.0)
    c = free.at(0.9 * pl.printed_rate(free))
    p, theta = mixing.matrix(3, graph.edges, world.r), np.tile(world.optimum, (3, 1))
    for _ in range(5000):
        theta = p @ theta - c.step * world.gradients(theta)
    mean = theta.mean(axis=0)
    measured = np.array([world.excess(mean), ((theta - mean) ** 2).sum()])
    assert measured[0] > 1e-6 > pl.printed_gap(c)[0] == 0.0
    assert (measured <= pl.recursion(c).gap).all()
