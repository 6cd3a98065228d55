"""The intermediary lemmas as bounds of measurable quantities; σ², δ, ζ, β as in ``Constants``.

``optimum`` is E‖θ̄ − θ*‖² and ``consensus`` E‖Θ − 1θ̄‖² throughout, norms of matrices being Frobenius norms.
"""

from __future__ import annotations

from dspodfl.theory.formulas.constants import Constants


def local_gradient(c: Constants, distance: float) -> float:
    """‖∇F_i(θ)‖² ≤ 2(β²‖θ − θ*‖² + δ²), ``distance`` being ‖θ − θ*‖² (lemma:smooth_convex_div b)."""
    return 2.0 * (c.beta**2 * distance + c.delta**2)


def noise_average(c: Constants) -> float:
    """E‖(1/m) Σ_i ε_i v_i‖² ≤ d_max σ²/m (lemma:sgd_errors)."""
    return c.d_max * c.sigma**2 / c.m


def noise_deviation(c: Constants) -> float:
    """E‖VE − 1 (1/m)Σ_i ε_i v_i‖² ≤ m d_max σ² (lemma:sgd_errors); the proof gives (m − 1) d_max σ²."""
    return c.m * c.d_max * c.sigma**2


def printed_gradient_deviation(c: Constants, optimum: float, consensus: float) -> float:
    """E‖V∇ − 1 avg(∇v)‖² ≤ 6 d_max [mδ² + (ζ² + 2β²) consensus + m(ζ² + 2β²(1 − d_min)) optimum] (lemma:sgd_div).

    True, though its proof drops ∇F_j(θ*)(v_i − v_j) from the sum it splits: ``gradient_deviation`` is below it.
    """
    return _gradient_deviation(c, 2.0 * c.beta**2, optimum, consensus)


def gradient_deviation(c: Constants, optimum: float, consensus: float) -> float:
    """The same with β² for 2β², and a proof without that gap.

    The average is the nearest multiple of 1, so ‖V∇ − 1 avg‖² ≤ 2‖V(∇ − ∇F)‖² + 2‖V∇F − 1 avg(V∇F)‖², and the last
    is (1/m) Σ_ij ‖∇F(θ_i)v_i − ∇F(θ_j)v_j‖² with ∇F(θ*) = 0 and E(v_i − v_j)² ≤ 2 d_max (1 − d_min).
    """
    return _gradient_deviation(c, c.beta**2, optimum, consensus)


def _gradient_deviation(c: Constants, curvature: float, optimum: float, consensus: float) -> float:
    feed = c.zeta**2 + curvature * (1.0 - c.d_min)
    return 6.0 * c.d_max * (c.m * c.delta**2 + (c.zeta**2 + curvature) * consensus + c.m * feed * optimum)
