"""Losses that meet the PL inequality, constant learning rate: lemma:optimization_nonconvex_pl … theorem:nonconvex_pl.

With s = 2β²(1 − d_min)/μ² and the consensus entries of the convex family:

    φ₁₁ = 1 − μα(1 − s) + (2β³/μ)(3 − 2d_min) α²        φ₁₂ = (β² d_max / 2m) α (1 + 2βα)        φ₂₁ ← (2/μ) φ₂₁

Here the paper states the demand s < 1 that the convex family lacks, if only in a proof, and its learning-rate condition
is sufficient: at s ≥ 1 no rate meets it. Its third term vanishes as ζ → 0 with d_min < 1, for no reason in Φ;
``corrected_rate`` takes Γ₁ = 1/5 throughout instead. ζ is that of the convex family (assump:smooth_convex_div).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dspodfl.theory.formulas import convex
from dspodfl.theory.formulas.constants import Constants, Floats
from dspodfl.theory.formulas.convex import ClosedForm, diversity, scarcity, spread
from dspodfl.theory.formulas.recursion import Hypothesis, Recursion, largest_root


def gradient_error(c: Constants, excess: float, consensus: float) -> float:
    """E‖∇F(θ̄) − avg(∇v)‖² ≤ (4β²/μ)(1 − d_min) excess + (β² d_max/m) consensus + 2(1 − d_min)δ².

    ``excess`` is E[F(θ̄) − F*] (lemma:grad_bounds_nonconvex_pl a).
    """
    idle = 1.0 - c.d_min
    return 4.0 * c.beta**2 / c.strong * idle * excess + c.beta**2 * c.d_max / c.m * consensus + 2.0 * idle * c.delta**2


def descent(c: Constants, excess: float, consensus: float) -> float:
    """−E⟨∇F(θ̄), avg(∇v)⟩ ≤ −μ excess + ½ gradient_error (lemma:grad_bounds_nonconvex_pl b)."""
    return -c.strong * excess + gradient_error(c, excess, consensus) / 2.0


def half_gradient(c: Constants, excess: float, consensus: float) -> float:
    """½E‖avg(∇v)‖² ≤ (2β²/μ) excess + gradient_error (lemma:grad_bounds_nonconvex_pl c)."""
    return 2.0 * c.beta**2 / c.strong * excess + gradient_error(c, excess, consensus)


def recursion(c: Constants) -> Recursion:
    """Compute Φ and Ψ for ν = (E[F(θ̄) − F*], E‖Θ − 1θ̄‖²).

    lemma:optimization_nonconvex_pl and corollary:consensus_nonconvex_pl; φ₁₁, φ₁₂ as above.

    Args:
        c: The constants, with μ and a constant learning rate.

    Returns:
        The recursion.

    Raises:
        InputError: μ is missing, or the learning rate is not a number.

    >>> c = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.95, delta=0.1, sigma=0.1)
    >>> round(recursion(c.at(0.005)).radius, 5)
    0.99754
    """
    mu, alpha, idle = c.strong, c.step, 1.0 - c.d_min
    phi11 = 1.0 - mu * alpha * (1.0 - scarcity(c)) + 2.0 * c.beta**3 / mu * (1.0 + 2.0 * idle) * alpha**2
    phi12 = c.beta**2 * c.d_max / (2.0 * c.m) * alpha * (1.0 + 2.0 * c.beta * alpha)
    noise = 4.0 * idle * c.delta**2 + c.d_max * c.sigma**2 / c.m
    psi1 = alpha * idle * c.delta**2 + c.beta / 2.0 * alpha**2 * noise
    phi21, phi22, psi2 = convex.consensus_entries(c)
    return Recursion(np.array([[phi11, phi12], [2.0 / mu * phi21, phi22]]), np.array([psi1, psi2]))


def descent_rate(c: Constants) -> float:
    """The α at which φ₁₁ returns to 1: μ²(1 − s) / (2β³(3 − 2d_min)); not positive if s ≥ 1 (step 2)."""
    return c.strong**2 * (1.0 - scarcity(c)) / (2.0 * c.beta**3 * (3.0 - 2.0 * c.d_min))


def printed_rate(c: Constants, initial: bool = False) -> float:
    """Compute the α below which proposition:nonconvex_pl states ρ(Φ) < 1; it is sufficient; 0 if s ≥ 1.

    Args:
        c: The constants, with μ.
        initial: Compute α(0) of corollary:alpha_cond_nonconvex_pl, for rates that never rise; its second term lacks
            1 + ρ̃.

    Returns:
        The printed limit of α.

    >>> c = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.95, delta=0.1, sigma=0.1)
    >>> round(printed_rate(c), 5), round(corrected_rate(c), 5), round(largest_rate(c), 5)
    (0.00211, 0.00682, 0.015)
    """
    room, rho = 1.0 - scarcity(c), c.rho_tilde
    if room <= 0.0:
        return 0.0
    second = 5.0 * (1.0 if initial else 1.0 + rho) / (8.0 * c.strong * room)
    # (μ/β²)√((1 − s)/(1 + 2β²(1 − d_min)/ζ²)), written so that ζ = 0 is no division by zero; d_min = 1 leaves ζ out
    ratio = c.zeta**2 / diversity(c) if diversity(c) > 0 else 1.0
    third = c.strong / c.beta**2 * (1.0 - rho) / np.sqrt(1.0 + rho) * np.sqrt(room * ratio / (72.0 * c.d_max))
    return float(min(descent_rate(c) / 5.0, second, third))


def corrected_rate(c: Constants) -> float:
    """The same argument with Γ₁ = 1/5 in every term, and none for det Φ > 0, which ρ(Φ) < 1 does not need."""
    room, rho, z = 1.0 - scarcity(c), c.rho_tilde, diversity(c)
    if room <= 0.0:
        return 0.0
    third = np.inf
    if z > 0:
        third = c.strong / c.beta * (1.0 - rho) / c.d_max * np.sqrt(room / (18.0 * (1.0 + rho) * z))
    return float(min(descent_rate(c) / 5.0, convex.consensus_rate(c), third))


def largest_rate(c: Constants) -> float:
    """Compute sup{α : ρ(Φ) < 1} by bisection; 0 if s ≥ 1. Every rate below it works."""
    room, limit = 1.0 - scarcity(c), descent_rate(c)
    if room <= 0.0:
        return 0.0
    feed = 3.0 * spread(c) * c.d_max**2 * c.beta**2 * diversity(c) / (c.strong**2 * room)

    def margin(alpha: float) -> float:
        falling, settling = 1.0 - alpha / limit, 1.0 - convex.consensus_entries(c.at(alpha))[1]
        return min(falling, settling, falling * settling - feed * alpha**2 * (1.0 + 2.0 * c.beta * alpha))

    return largest_root(margin, np.sqrt(2.0) * convex.consensus_rate(c) * (1.0 + 1e-9))


def closed_form(c: Constants) -> ClosedForm:
    """A, B, C of proposition:nonconvex_pl, as printed (Γ₁ = 1/5, and d_max ≤ 1 in B): an upper bound of ρ(Φ)."""
    return ClosedForm(
        a=0.4 * c.strong * (1.0 - scarcity(c)),
        b=1.5 * spread(c) * (c.zeta**2 + 2.0 * c.beta**2),
        c=14.4 * c.beta**2 / c.strong * spread(c) * c.d_max**2 * diversity(c),
    )


def printed_radius(c: Constants) -> float:
    """ρ(Φ) as printed in proposition:nonconvex_pl: at least ρ(Φ) where its condition holds, not equal to it."""
    return closed_form(c).radius(c.rho_tilde, c.step)


def printed_gap(c: Constants) -> Floats:
    """Ψ/(Aα) with d_max ≤ 1 (eq. optimality_gap_nonconvex_pl); no entrywise bound of the limit. Shapes: -> (2,)."""
    whole = replace(c, d_max=1.0)
    return np.asarray(recursion(whole).psi / (closed_form(whole).a * c.step))


def hypotheses(c: Constants) -> tuple[Hypothesis, ...]:
    """Return what ρ(Φ) < 1 rests on, at this α, each hypothesis with its numbers."""
    (phi11, phi12), (phi21, phi22) = recursion(c).phi.tolist()
    return (
        Hypothesis("printed learning-rate condition", c.step, printed_rate(c)),
        Hypothesis("enough SGD: s = 2β²(1 − d_min)/μ² < 1", scarcity(c), 1.0),
        Hypothesis("φ₁₁ < 1", phi11, 1.0),
        Hypothesis("φ₂₂ < 1", phi22, 1.0),
        Hypothesis("φ₁₂φ₂₁ < (1 − φ₁₁)(1 − φ₂₂)", phi12 * phi21, max(0.0, 1.0 - phi11) * (1.0 - phi22)),
    )
