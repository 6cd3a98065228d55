"""Strongly convex losses, diminishing learning rates α(k) = α⁰/√(1 + k/γ) (theorem:diminishing).

d_i(k) = 1 − η_i α(k) with η_i = (1 − d_i(0))/α⁰: clients compute ever more often as the rate falls.
`Constants` here carry a `Diminishing` rate, and the d_min and d_max of k = 0. There are two forms:

- "printed": 1 − d_min(k) = η_min α(k) and d_max(k) = 1 − η_max α(k), and Lemma sum_h (a) without its factor γ.
- "corrected": 1 − d_min(k) = η_max α(k), d_max(k) = 1 − η_min α(k): the client that computes least often has the
  largest η. Sums over the schedule are taken term by term.

Σα² grows like α⁰²γ ln K; eqn:diminishing_step_size_conditions calls it finite, and no bound here needs that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import minimize_scalar

from dspodfl.algorithms import Diminishing
from dspodfl.errors import InputError
from dspodfl.theory.formulas import convex
from dspodfl.theory.formulas.constants import Constants, Floats
from dspodfl.theory.formulas.recursion import Hypothesis, propagate, radius

Form = Literal["printed", "corrected"]
CHUNK = 1 << 20


def policy(c: Constants) -> Diminishing:
    """Return the diminishing rate that these theorems are about."""
    if not isinstance(c.alpha, Diminishing) or c.alpha.value <= 0 or c.alpha.gamma <= 0:
        raise InputError("alpha", c.alpha, "a Diminishing rate with value and gamma above 0")
    return c.alpha


def etas(c: Constants, form: Form = "corrected") -> tuple[float, float]:
    """The η that 1 − d_min = η α is written with, and the one in d_max = 1 − η α."""
    low, high = (1 - c.d_max) / policy(c).value, (1 - c.d_min) / policy(c).value
    return (low, high) if form == "printed" else (high, low)


def power_sum(rate: Diminishing, power: float, last: int, first: int = 0) -> float:
    """Σ_{q=first}^{last} α(q)^power, added up term by term; 0 where last < first."""
    starts = range(first, last + 1, CHUNK)
    return math.fsum(float((rate(np.arange(s, min(s + CHUNK, last + 1))) ** power).sum()) for s in starts)


def sum_floor(rate: Diminishing, last: int, first: int = 0, form: Form = "corrected") -> float:
    """Σ_{q=r}^k α(q) ≥ 2γα⁰(√(1 + k/γ) − √(1 + r/γ))  (lemma:sum_h a).

    The integral carries a factor γ that the paper loses: as printed the statement is weaker for γ > 1 and false for
    small γ.
    """
    scale = 1.0 if form == "printed" else rate.gamma
    return 2 * scale * rate.value * (math.sqrt(1 + last / rate.gamma) - math.sqrt(1 + first / rate.gamma))


def power_ceiling(rate: Diminishing, power: Literal[2, 3], last: int) -> float:
    """Σ_{q≤k} α² ≤ α⁰²(1 + γ ln(1 + k/γ)) and Σ α³ ≤ α⁰³(1 + 2γ)  (lemma:sum_alpha a, b; right as printed)."""
    if power == 2:
        return rate.value**2 * (1 + rate.gamma * math.log1p(last / rate.gamma))
    return rate.value**3 * (1 + 2 * rate.gamma)


def product_ceiling(rates: Floats, p: float = 1.0) -> float:
    """Π(1 − ζ_r)^p ≤ 1/(p Σζ_r), 0 < ζ_r ≤ 1, p ≥ 1  (lemma:bernoulli). Shapes: rates (n,)."""
    return float(1 / (p * np.sum(rates)))


def system(c: Constants, last: int, form: Form = "corrected") -> tuple[Floats, Floats]:
    """Φ(k) and Ψ(k) for k = 0 … last  (eqn:phi_psi_new, from lemma:optimization and lemma:consensus).

    Shapes: (last + 1, 2, 2) and (last + 1, 2). ν(k+1) ≤ Φ(k)ν(k) + Ψ(k) with ν = (E‖θ̄ − θ*‖², E‖Θ − 1θ̄‖²).
    """
    alpha = policy(c)(np.arange(last + 1))
    idle_eta, busy_eta = etas(c, form)
    return convex.system(c, alpha, 1 - idle_eta * alpha, 1 - busy_eta * alpha)


def bound(c: Constants, start: Floats, last: int, form: Form = "corrected") -> Floats:
    """Propagate ν(k+1) = Φ(k)ν(k) + Ψ(k)  (eqn:explicit_ineqs).

    Args:
        c: The constants, with μ, a `Diminishing` rate, and the d_min and d_max of k = 0.
        start: ν(0) = (‖θ̄(0) − θ*‖², ‖Θ(0) − 1θ̄(0)‖²), shape (2,).
        last: The last k.
        form: ``corrected`` or ``printed``.

    Returns:
        ν(0) … ν(last + 1), shape (last + 2, 2).

    Raises:
        InputError: The learning rate is not a `Diminishing` one, or μ is missing.

    >>> rate = Diminishing(0.005, gamma=100.0)
    >>> c = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.95, alpha=rate)
    >>> bound(c, np.array([1.0, 0.0]), 99)[-1].round(4).tolist()
    [0.7613, 0.0156]
    """
    return propagate(*system(c, last, form), start)


@dataclass(frozen=True)
class Spectrum:
    """A, B, C and Γ₂* of proposition:diminishing, and h(α) = 1 − ρ(Φ) in their terms."""

    a: float
    b: float
    c: float
    gamma2: float
    rho_tilde: float

    def h(self, alpha: Floats) -> Floats:
        """(1 − ρ̃)/4 + Aα − Bα² − ½√(((1 − ρ̃)/2 − 2(Aα + Bα²))² + Cα³).

        lemma:sum_h (b) claims h(α) ≥ 2Aα. The triangle inequality gives h(α) ≥ 2Aα − ½√C α^{3/2}, and with C > 0 the
        claim fails at every α with Aα + Bα² ≤ (1 − ρ̃)/4.
        """
        line = self.a * alpha + self.b * alpha**2
        root = np.sqrt(((1 - self.rho_tilde) / 2 - 2 * line) ** 2 + self.c * alpha**3)
        return np.asarray((1 - self.rho_tilde) / 4 + self.a * alpha - self.b * alpha**2 - root / 2)

    def floor(self, alpha: Floats, form: Form = "corrected") -> Floats:
        """lemma:sum_h (b): 2Aα as printed, 2Aα − ½√C α^{3/2} corrected."""
        loss = 0.0 if form == "printed" else math.sqrt(self.c) / 2 * alpha**1.5
        return np.asarray(2 * self.a * alpha - loss)


def spectrum(c: Constants, gamma1: float, form: Form = "printed") -> Spectrum:
    """A, B, C and Γ₂* of proposition:diminishing with its η_min, or with η_max in its place ("corrected").

    Printed or not, they come from φ11 ≤ 1 − 2Aα, which needs (1 + μα) ≥ (1 + Γ₁), the wrong way round: compare
    `radius` of `system`, which owes nothing to them.
    """
    mu, rho, eta = c.strong, c.rho_tilde, etas(c, form)[0]
    mixed = c.zeta**2 + 2 * eta * gamma1 * c.beta**2 / mu
    # η Γ₁ (Γ₂* − 1): finite as η → 0, where Γ₂* is not
    lift = (1 + rho) / (2 * c.beta) * (3 * mixed / c.beta) ** (1 / 3) * (mu / ((1 - rho) * (1 + gamma1))) ** (2 / 3)
    r = (1 + rho) / (1 - rho)
    return Spectrum(
        a=lift * (1 + gamma1) * c.beta**2 / mu,
        b=1.5 * r * (c.zeta**2 + 2 * c.beta**2),
        c=12 * (1 + gamma1) * c.beta**2 / mu * r * mixed,
        gamma2=1 + lift / (eta * gamma1) if eta * gamma1 > 0 else math.inf,
        rho_tilde=rho,
    )


def gamma1_limit(c: Constants, form: Form = "printed") -> float:
    """Γ₁ < 1/(1 + 2β²η/μ²) as printed; 1/(1 + 2β²η/μ³) corrected.

    α ≤ Γ₁/μ bounds 2β²ηα/μ² by 2β²ηΓ₁/μ³; the paper loses the last μ.
    """
    power = 2 if form == "printed" else 3
    return 1 / (1 + 2 * c.beta**2 * etas(c, form)[0] / c.strong**power)


def rate_limits(c: Constants, gamma1: float, form: Form = "printed") -> tuple[float, float, float]:
    """The three bounds on α⁰ of corollary:alpha_cond_new. The second implies lemma:optimization's α ≤ 2/(μ + β)."""
    mu, rho = c.strong, c.rho_tilde
    mixed = 6 * (c.zeta**2 + 2 * etas(c, form)[0] * gamma1 * c.beta**2 / mu) * (1 + gamma1)
    return (
        gamma1 / mu,
        (1 - rho) / math.sqrt(1 + rho) / math.sqrt(12 * (c.zeta**2 + 2 * c.beta**2)),
        (mu / mixed) ** (1 / 3) * ((1 - rho) / (2 * c.beta)) ** (2 / 3) if mixed > 0 else math.inf,
    )


def best_gamma1(c: Constants, form: Form = "printed") -> float:
    """The Γ₁ that allows the largest α⁰, found numerically in its open interval (the paper leaves it free)."""
    top = gamma1_limit(c, form)
    found = minimize_scalar(
        lambda x: -min(rate_limits(c, float(x), form)),
        bounds=(0, top),
        method="bounded",
        options={"xatol": 1e-12},
    )
    return float(found.x)


def conditions(c: Constants, gamma1: float, last: int, form: Form = "printed") -> tuple[Hypothesis, ...]:
    """corollary:alpha_cond_new, and what it is meant to ensure: ρ(Φ(k)) < 1 for k = 0 … last, computed.

    The last two are not in the paper's list: constraint 2 of the proof, which Γ₂* is chosen without regard to, and the
    spectral radius itself, of the corrected Φ.
    """
    eta, mu = etas(c, form)[0], c.strong
    product = eta * gamma1 + spectrum(c, gamma1, form).a * mu / ((1 + gamma1) * c.beta**2)  # η Γ₁ Γ₂*
    power = 2 if form == "printed" else 3
    least = (1 + gamma1 - gamma1**2) / (1 + gamma1)  # of (1 + x − x²)/(1 + x), which falls, on [0, Γ₁]
    names = ("α⁰ < Γ₁/μ", "α⁰ < the rate of φ22", "α⁰ < the rate of Γ₂*")
    limits = rate_limits(c, gamma1, form)
    return (
        Hypothesis("0 < Γ₁", 0.0, gamma1),
        Hypothesis("Γ₁ below its limit", gamma1, gamma1_limit(c, form)),
        *(Hypothesis(name, policy(c).value, limit) for name, limit in zip(names, limits, strict=True)),
        Hypothesis("constraint 2, unchecked in the proof", 2 * c.beta**2 / mu**power * product, least),
        Hypothesis("max_k ρ(Φ(k)) < 1, corrected Φ", float(radius(system(c, last)[0]).max()), 1.0),
    )


def printed(c: Constants, start: Floats, last: int, gamma1: float) -> Floats:
    """ν(K+1) ≤ Πρ(Φ(q)) ν(0) + Σ_r Π_{q≥r}ρ(Φ(q)) α(r−1)² u + Ψ(K)  (eqn:explicit_ineqs_spectral).

    u = (2(1 − d_max(0))(1 + μα⁰)δ²/(μα⁰) + σ²/m, m(3rδ² + σ²)), ρ = 1 − h. Not a bound: Φν ≤ ρ(Φ)ν does not hold
    entry by entry, and it has 1 − d_max(0) where 1 − d_min(0) belongs. Shapes: start (2,) -> (2,).
    """
    alpha, mu, r = policy(c)(np.arange(last + 1)), c.strong, (1 + c.rho_tilde) / (1 - c.rho_tilde)
    pull = 2 * (1 + mu * alpha[0]) * (1 - c.d_max) / (mu * alpha[0])
    u = np.array([pull * c.delta**2 + c.sigma**2 / c.m, c.m * (3 * r * c.delta**2 + c.sigma**2)])
    tails = np.cumprod((1 - spectrum(c, gamma1).h(alpha))[::-1])[::-1]  # Π_{q=r}^K ρ(Φ(q)) for r = 0 … K
    return np.asarray(tails[0] * start + (tails[1:] @ alpha[:-1] ** 2 + alpha[-1] ** 2) * u)


def printed_rates(c: Constants, last: int, gamma1: float) -> tuple[float, float]:
    """The factors that lemma:sum_h gives eqn:sublinear_rate: on ν(0), and on Σ_r α(r−1)²/Σ_q h (its part c), last ≥ 2.

    They rest on (a) without γ and on (b), which is false; kept to show the printed order O(ln K/√K).
    """
    rate, a = policy(c), spectrum(c, gamma1).a
    gamma, end = rate.gamma, math.sqrt(1 + last / rate.gamma)
    inner = math.log(end) - math.log(math.sqrt(1 + 1 / (gamma + last - 1)) - 1)
    terms = 1 / (end - math.sqrt(1 + 1 / gamma)) + 2 * (gamma + 1) / end * inner + 2 * end / (1 + (last - 1) / gamma)
    return 1 / (2 * a * sum_floor(rate, last, form="printed")), rate.value / (4 * a) * terms
