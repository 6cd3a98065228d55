"""Special cases and comparisons the paper draws: DGD, Koloskova et al., DFedAvg, relations of the constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dspodfl.errors import InputError
from dspodfl.theory.formulas.constants import Constants
from dspodfl.theory.formulas.convex import spread
from dspodfl.theory.formulas.recursion import Recursion


def dgd(c: Constants) -> Constants:
    """Return the constants of DGD, where every client computes in every iteration: d_min = d_max = 1.

    >>> dgd(Constants(m=10, beta=1.0, rho_tilde=0.5, d_min=0.3, d_max=0.9)).d_min
    1.0
    """
    return replace(c, d_min=1.0, d_max=1.0)


def dgd_recursion(c: Constants) -> Recursion:
    """Compute Φ and Ψ of DGD with ζ = 0: triangular, with eigenvalues (1 + x)(1 − x)² and φ₂₂, x = μα.

    What lemma:optimization and lemma:consensus reduce to at d_min = 1 (and ζ = 0): consensus no longer feels the error.
    """
    x, alpha = c.strong * c.step, c.step
    phi = [
        [(1.0 + x) * (1.0 - x) ** 2, (1.0 + x) * alpha * c.beta**2 / (c.m * c.strong)],
        [0.0, (1.0 + c.rho_tilde) / 2.0 + 6.0 * spread(c) * alpha**2 * c.beta**2],
    ]
    psi = [alpha**2 * c.sigma**2 / c.m, c.m * alpha**2 * (3.0 * spread(c) * c.delta**2 + c.sigma**2)]
    return Recursion(np.array(phi), np.array(psi))


def koloskova(c: Constants, excess: float, iterations: int) -> float:
    """Compute the bound of (1/(K + 1)) Σ_r ‖∇F(θ̄(r))‖² by Koloskova et al., Lemma 16, in the paper's notation.

    ½ · mean ≤ excess/((K + 1)α) + (βσ²/m)α + 128 β²(σ² + 6δ²/(1 − ρ̃))/(1 − ρ̃) α².

    Args:
        c: The constants, with a constant learning rate.
        excess: F(θ̄(0)) − F*.
        iterations: K.

    Returns:
        The bound of the mean.

    >>> c = Constants(m=10, beta=1.0, rho_tilde=0.5, delta=0.1, sigma=0.1, alpha=0.01)
    >>> round(koloskova(c, excess=1.0, iterations=999), 4)
    0.2067
    """
    alpha, gap = c.step, 1.0 - c.rho_tilde
    drift = 128.0 * c.beta**2 * (c.sigma**2 + 6.0 * c.delta**2 / gap) / gap
    return 2.0 * (excess / ((iterations + 1) * alpha) + c.beta * c.sigma**2 / c.m * alpha + drift * alpha**2)


def compared(
    c: Constants, excess: float, consensus: float, iterations: int, gamma1: float = 2.0, gamma3: float = 1.0
) -> float:
    """The paper's own bound as it compares it with ``koloskova``, times w₁ ≤ ½ (appendix:remarks:rate_comparison).

    excess/(α(K + 1)) + W ‖Θ(0) − 1θ̄(0)‖²/(m(K + 1)) + W(16Tδ² + σ²)α² + (1 + Γ₃)(1 − d_min)δ² + (βσ²/2m)α
    with W = (1 + Γ₃)/(1 − 1/Γ₁) · β²/(1 − ρ̃), d_max ≤ 1, and ``consensus`` = ‖Θ(0) − 1θ̄(0)‖².
    """
    if not (gamma1 > 1.0 and gamma3 > 0.0):
        raise InputError("gamma1, gamma3", (gamma1, gamma3), "above 1 and above 0")
    alpha, rounds = c.step, iterations + 1
    w = (1.0 + gamma3) / (1.0 - 1.0 / gamma1) * c.beta**2 / (1.0 - c.rho_tilde)
    drift = w * (16.0 * spread(c) * c.delta**2 + c.sigma**2)
    idle = (1.0 + gamma3) * (1.0 - c.d_min) * c.delta**2
    start = excess / (alpha * rounds) + w * consensus / (c.m * rounds)
    return start + drift * alpha**2 + idle + c.beta * c.sigma**2 / (2.0 * c.m) * alpha


def largest_zeta(beta_i: float, beta: float) -> float:
    """ζ_i ≤ β_i + β, hence ζ ≤ 2β: smoothness alone gives diversity with that ζ_i and δ_i = ‖∇F_i(θ*)‖.

    (appendix:assumptions.) A least ζ obeys it; the statement's strict ζ_i < β_i + β does not follow.
    """
    return beta_i + beta


def convex_zeta(c: Constants) -> float:
    """ζ' = (1 + ζ)β: ‖∇F_i‖ ≤ δ + ζ‖∇F‖ implies ‖∇F − ∇F_i‖ ≤ δ + ζ'‖θ − θ*‖, with the same δ.

    By smoothness alone ζ' may be taken as min((1 + ζ)β, 2β).

    >>> convex_zeta(Constants(m=10, beta=2.0, rho_tilde=0.5, zeta=0.5))
    3.0
    """
    return (1.0 + c.zeta) * c.beta


def nonconvex_zeta(c: Constants) -> float:
    """1 + ζ/μ: with μ‖θ − θ*‖ ≤ ‖∇F‖ the convex diversity implies ‖∇F_i‖ ≤ δ + (1 + ζ/μ)‖∇F‖.

    The appendix calls the non-convex assumption much stronger where losses are strongly convex; there, and under PL,
    the two are one assumption with other constants. Without that inequality this direction fails.
    """
    return 1.0 + c.zeta / c.strong
