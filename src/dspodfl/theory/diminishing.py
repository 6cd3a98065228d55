"""Diminishing learning rates α(k) = α⁰/√(1 + k/γ), with d_i(k) = 1 − η_i α(k) and η_i = (1 − d_i(0))/α⁰.

`Constants` here carry a `Diminishing` rate, and the d_min and d_max of k = 0. Two forms stand beside each other:

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

from dspodfl.errors import InputError
from dspodfl.learning_rate import Diminishing
from dspodfl.theory.constants import Constants, Floats
from dspodfl.theory.nonconvex import Coefficients, Gammas, search
from dspodfl.theory.recursion import Hypothesis

Form = Literal["printed", "corrected"]
CHUNK = 1 << 20

CONVEX_ORDERS = {"printed": "O(ln K/√K)", "corrected": "O(1/√K) average error, O(1/K) consensus error"}
"""The printed order is an upper bound on what the recursion of the same lemmas gives, which has no logarithm."""
NONCONVEX_ORDERS = {"start": "O(1/√K)", "spread": "O(1/√K)", "drift": "O(1/√K)", "noise": "O(ln K/√K)"}


def policy(c: Constants) -> Diminishing:
    """The diminishing rate that these theorems are about."""
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
    mu, r, rate = c.strong, (1 + c.rho_tilde) / (1 - c.rho_tilde), policy(c)
    alpha = rate(np.arange(last + 1))
    idle_eta, busy_eta = etas(c, form)
    idle, busy = idle_eta * alpha, 1 - busy_eta * alpha
    pull = (1 + mu * alpha) * alpha / mu
    phi = np.empty((last + 1, 2, 2))
    phi[:, 0, 0] = 1 - mu * alpha * (1 + mu * alpha - (mu * alpha) ** 2) + 2 * pull * idle * c.beta**2
    phi[:, 0, 1] = pull * busy * c.beta**2 / c.m
    phi[:, 1, 0] = 3 * r * c.m * busy * alpha**2 * (c.zeta**2 + 2 * c.beta**2 * idle)
    phi[:, 1, 1] = (1 + c.rho_tilde) / 2 + 3 * r * busy * alpha**2 * (c.zeta**2 + 2 * c.beta**2)
    psi = np.empty((last + 1, 2))
    psi[:, 0] = 2 * pull * idle * c.delta**2 + alpha**2 * busy * c.sigma**2 / c.m
    psi[:, 1] = c.m * alpha**2 * busy * (3 * r * c.delta**2 + c.sigma**2)
    return phi, psi


def radius(phi: Floats) -> Floats:
    """ρ(Φ) of non-negative 2×2 matrices, exactly. Shapes: (..., 2, 2) -> (...,)."""
    a, b, c, d = phi[..., 0, 0], phi[..., 0, 1], phi[..., 1, 0], phi[..., 1, 1]
    return np.asarray((np.abs(a + d) + np.sqrt((a - d) ** 2 + 4 * b * c)) / 2)


def convex_bound(c: Constants, start: Floats, last: int, form: Form = "corrected") -> Floats:
    """ν(k+1) = Φ(k)ν(k) + Ψ(k), carried out  (eqn:explicit_ineqs). Shapes: start (2,) -> (last + 2, 2)."""
    phi, psi = system(c, last, form)
    out = np.empty((last + 2, 2))
    out[0] = start
    for k in range(last + 1):
        out[k + 1] = phi[k] @ out[k] + psi[k]
    return out


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


def convex_rate_limits(c: Constants, gamma1: float, form: Form = "printed") -> tuple[float, float, float]:
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
        lambda x: -min(convex_rate_limits(c, float(x), form)),
        bounds=(0, top),
        method="bounded",
        options={"xatol": 1e-12},
    )
    return float(found.x)


def convex_conditions(c: Constants, gamma1: float, last: int, form: Form = "printed") -> tuple[Hypothesis, ...]:
    """corollary:alpha_cond_new, and what it is meant to ensure: ρ(Φ(k)) < 1 for k = 0 … last, computed.

    The last two are not in the paper's list: constraint 2 of the proof, which Γ₂* is chosen without regard to, and the
    spectral radius itself, of the corrected Φ.
    """
    eta, mu = etas(c, form)[0], c.strong
    product = eta * gamma1 + spectrum(c, gamma1, form).a * mu / ((1 + gamma1) * c.beta**2)  # η Γ₁ Γ₂*
    power = 2 if form == "printed" else 3
    least = (1 + gamma1 - gamma1**2) / (1 + gamma1)  # of (1 + x − x²)/(1 + x), which falls, on [0, Γ₁]
    names = ("α⁰ < Γ₁/μ", "α⁰ < the rate of φ22", "α⁰ < the rate of Γ₂*")
    limits = convex_rate_limits(c, gamma1, form)
    return (
        Hypothesis("0 < Γ₁", 0.0, gamma1),
        Hypothesis("Γ₁ below its limit", gamma1, gamma1_limit(c, form)),
        *(Hypothesis(name, policy(c).value, limit) for name, limit in zip(names, limits, strict=True)),
        Hypothesis("constraint 2, unchecked in the proof", 2 * c.beta**2 / mu**power * product, least),
        Hypothesis("max_k ρ(Φ(k)) < 1, corrected Φ", float(radius(system(c, last)[0]).max()), 1.0),
    )


def convex_printed(c: Constants, start: Floats, last: int, gamma1: float) -> Floats:
    """ν(K+1) ≤ Πρ(Φ(q)) ν(0) + Σ_r Π_{q≥r}ρ(Φ(q)) α(r−1)² u + Ψ(K)  (eqn:explicit_ineqs_spectral).

    u = (2(1 − d_max(0))(1 + μα⁰)δ²/(μα⁰) + σ²/m, m(3rδ² + σ²)), ρ = 1 − h. Not a bound: Φν ≤ ρ(Φ)ν does not hold
    entry by entry, and 1 − d_max(0) stands where 1 − d_min(0) belongs. Shapes: start (2,) -> (2,).
    """
    alpha, mu, r = policy(c)(np.arange(last + 1)), c.strong, (1 + c.rho_tilde) / (1 - c.rho_tilde)
    pull = 2 * (1 + mu * alpha[0]) * (1 - c.d_max) / (mu * alpha[0])
    u = np.array([pull * c.delta**2 + c.sigma**2 / c.m, c.m * (3 * r * c.delta**2 + c.sigma**2)])
    tails = np.cumprod((1 - spectrum(c, gamma1).h(alpha))[::-1])[::-1]  # Π_{q=r}^K ρ(Φ(q)) for r = 0 … K
    return np.asarray(tails[0] * start + (tails[1:] @ alpha[:-1] ** 2 + alpha[-1] ** 2) * u)


def convex_printed_rates(c: Constants, last: int, gamma1: float) -> tuple[float, float]:
    """The factors that lemma:sum_h gives eqn:sublinear_rate: on ν(0), and on Σ_r α(r−1)²/Σ_q h (its part c), last ≥ 2.

    They rest on (a) without γ and on (b), which is false; kept to show the printed order O(ln K/√K).
    """
    rate, a = policy(c), spectrum(c, gamma1).a
    gamma, end = rate.gamma, math.sqrt(1 + last / rate.gamma)
    inner = math.log(end) - math.log(math.sqrt(1 + 1 / (gamma + last - 1)) - 1)
    terms = 1 / (end - math.sqrt(1 + 1 / gamma)) + 2 * (gamma + 1) / end * inner + 2 * end / (1 + (last - 1) / gamma)
    return 1 / (2 * a * sum_floor(rate, last, form="printed")), rate.value / (4 * a) * terms


def nonconvex_coefficients(c: Constants, k: int, form: Form = "corrected") -> Coefficients:
    """φ_ij(k) and ψ_i(k) of corollary:nonconvex_diminishing, d_max replaced by 1.

    φ11 = α[½ − (ζ²η + β(1 + 2ζ²η α))α], where the paper prints β(1 + 2ζ²η): the α inside is lost, harmless while
    α ≤ 1. η = η_max, printed η_min.
    """
    alpha, eta, r = float(policy(c)(np.array(k))), etas(c, form)[0], (1 + c.rho_tilde) / (1 - c.rho_tilde)
    inner = eta if form == "printed" else eta * alpha
    grow = c.zeta**2 * eta + c.beta * (1 + 2 * c.zeta**2 * inner)
    return Coefficients(
        phi11=alpha * (0.5 - grow * alpha),
        phi12=c.beta**2 / (2 * c.m) * alpha * (1 + 2 * c.beta * alpha),
        phi21=16 * r * c.m * c.zeta**2 * alpha**2,
        phi22=(1 + c.rho_tilde) / 2 + 8 * r * c.beta**2 * alpha**2,
        psi1=(eta * (1 + 2 * c.beta * alpha) * c.delta**2 + c.beta * c.sigma**2 / (2 * c.m)) * alpha**2,
        psi2=c.m * (16 * r * c.delta**2 + c.sigma**2) * alpha**2,
    )


def _limits(c: Constants, g: Gammas, form: Form) -> tuple[float, float, float, float]:
    """The bounds on α⁰ of corollary:alpha_cond_nonconvex_diminishing, in the order of Γ₃, Γ₁, Γ₂, Γ₄."""
    eta, mixing = etas(c, form)[0], (1 - c.rho_tilde) / math.sqrt(1 + c.rho_tilde)
    inner = eta if form == "printed" else eta * policy(c).value
    grow = c.zeta**2 * eta + c.beta * (1 + 2 * c.zeta**2 * inner)
    root = math.sqrt(max((1 - 1 / g.g1**2) * (1 - 1 / g.g2), 0.0))
    below = 4 * math.sqrt(2 * (1 + g.g3)) * c.zeta * c.beta
    return (
        g.g3 / (2 * c.beta),
        mixing / (4 * c.beta) / g.g1,
        0.5 / grow / g.g2,
        math.inf if below == 0 else root * mixing / below / g.g4,
    )


def nonconvex_conditions(c: Constants, g: Gammas, form: Form = "corrected") -> tuple[Hypothesis, ...]:
    """corollary:alpha_cond_nonconvex_diminishing with its numbers (Γ₀ plays no part here).

    Corrected, the rate of Γ₂ implies ζ²(1 − d_min(0)) < ½; printed, with η_min, it does not, hence the last line.
    """
    names = ("α⁰ < Γ₃/(2β)", "α⁰ < the rate of Γ₁", "α⁰ < the rate of Γ₂", "α⁰ < the rate of Γ₄")
    alpha = policy(c).value
    return (
        *(Hypothesis(name, alpha, limit) for name, limit in zip(names, _limits(c, g, form), strict=True)),
        *(Hypothesis(f"1 < {name}", 1.0, value) for name, value in (("Γ₁", g.g1), ("Γ₂", g.g2), ("Γ₄", g.g4))),
        Hypothesis("0 < Γ₃", 0.0, g.g3),
        Hypothesis("ζ²(1 − d_min(0)) < ½", c.zeta**2 * (1 - c.d_min), 0.5),
    )


@dataclass(frozen=True)
class Weights:
    """w₁ … w₄ of theorem:nonconvex_diminishing; they are not those of theorem:nonconvex, to which it refers."""

    w1: float
    w2: float
    w3: float
    w4: float


def nonconvex_weights(c: Constants, g: Gammas, form: Form = "corrected") -> Weights:
    """The weights in the proof of theorem:nonconvex_diminishing.

    w₁ = ½(1 − 1/Γ₂)(1 − 1/Γ₄²)    w₂ = β²(1 + Γ₃)/(m(1 − ρ̃)(1 − 1/Γ₁²))
    w₃ = m(16rδ² + σ²)             w₄ = η(1 + Γ₃)δ² + βσ²/2m
    η = (1 − d_max(0))/α⁰ printed, (1 − d_min(0))/α⁰ corrected.
    """
    r = (1 + c.rho_tilde) / (1 - c.rho_tilde)
    return Weights(
        w1=0.5 * (1 - 1 / g.g2) * (1 - 1 / g.g4**2),
        w2=c.beta**2 * (1 + g.g3) / (c.m * (1 - c.rho_tilde) * (1 - 1 / g.g1**2)),
        w3=c.m * (16 * r * c.delta**2 + c.sigma**2),
        w4=etas(c, form)[0] * (1 + g.g3) * c.delta**2 + c.beta * c.sigma**2 / (2 * c.m),
    )


@dataclass(frozen=True)
class NonconvexBound:
    """Σα E‖∇F(θ̄)‖² / Σα over r ≤ K is at most start + spread + drift + noise; infinite where no Γ serves."""

    start: float
    spread: float
    drift: float
    noise: float
    gammas: Gammas | None
    conditions: tuple[Hypothesis, ...]
    printed_limit: float

    @property
    def total(self) -> float:
        """The bound at K."""
        return self.start + self.spread + self.drift + self.noise

    @property
    def limit(self) -> float:
        """As K → ∞: 0, in both forms; ``printed_limit`` is what the theorem's own display would leave, w₄α⁰/(2w₁)."""
        return 0.0 if self.holds else math.inf

    @property
    def holds(self) -> bool:
        """Whether every hypothesis holds."""
        return self.gammas is not None and all(each.holds for each in self.conditions)


def _void(g: Gammas | None, found: tuple[Hypothesis, ...], left: float) -> NonconvexBound:
    return NonconvexBound(math.inf, math.inf, math.inf, math.inf, g, found, left)


def nonconvex_bound(
    c: Constants, g: Gammas, gap: float, spread: float, last: int, form: Form = "corrected"
) -> NonconvexBound:
    """theorem:nonconvex_diminishing for a given Γ, gap = F(θ̄(0)) − F*, spread = ‖Θ(0) − 1θ̄(0)‖², K = last.

    [gap + α⁰w₂ spread + w₂w₃ Σ_{r<K}α³ + w₄ Σ_{r≤K}α²] / (w₁ Σ_{r≤K}α)

    "corrected": with these sums. "printed": the last display of the proof, with lemma:sum_h (a) without its γ and
    lemma:sum_alpha in their place; infinite at K = 0. The theorem itself prints its last term as
    w₄α⁰(1 + γ O(ln K/√K)), which does not vanish: the 1 belongs over √K too.
    """
    rate, w, found = policy(c), nonconvex_weights(c, g, form), nonconvex_conditions(c, g, form)
    if form == "printed":
        steps = sum_floor(rate, last, form="printed")
        squares, cubes = power_ceiling(rate, 2, last), power_ceiling(rate, 3, last)
    else:
        steps = power_sum(rate, 1, last)
        squares, cubes = power_sum(rate, 2, last), power_sum(rate, 3, last - 1)
    left = w.w4 * rate.value / (2 * w.w1) if w.w1 > 0 else math.inf
    if not all(each.holds for each in found) or w.w1 <= 0 or steps <= 0:
        return _void(g, found, left)
    over = w.w1 * steps
    return NonconvexBound(
        start=gap / over,
        spread=rate.value * w.w2 * spread / over,
        drift=w.w2 * w.w3 * cubes / over,
        noise=w.w4 * squares / over,
        gammas=g,
        conditions=found,
        printed_limit=left,
    )


def _floors(c: Constants, slack: Floats, form: Form) -> tuple[list[float], list[float]]:
    """1/Γ₁, 1/Γ₂, 1/Γ₄ at a slack, and the least each may be given those before it; infinite past a failure."""
    alpha, g3 = policy(c).value, 2 * c.beta * policy(c).value / (1 - float(slack[2]))
    inverse, floors = [1.0, 1.0, 1.0], [math.inf, math.inf, math.inf]
    for i, share in enumerate((slack[0], slack[1], slack[3])):
        g1, g2, g4 = (1 / u if u > 0 else math.inf for u in inverse)
        floors[i] = alpha / _limits(c, Gammas(math.inf, g1, g2, g3, g4), form)[i + 1]
        if floors[i] >= 1:
            break
        inverse[i] = floors[i] + float(share) * (1 - floors[i])
    return inverse, floors


def nonconvex_gammas(c: Constants, slack: Floats, form: Form = "corrected") -> Gammas | None:
    """Γ₁, Γ₂, Γ₃, Γ₄ that leave a share ``slack`` (4,) of their feasible ranges unused; None where there is none."""
    inverse, floors = _floors(c, slack, form)
    if max(floors) >= 1:
        return None
    g1, g2, g4 = (1 / u if u > 0 else math.inf for u in inverse)
    return Gammas(math.inf, g1, g2, 2 * c.beta * policy(c).value / (1 - float(slack[2])), g4)


def nonconvex_requirements(c: Constants, form: Form = "corrected") -> tuple[Hypothesis, ...]:
    """What must hold of α⁰ for any Γ at all to serve, each with its numbers."""
    alpha = policy(c).value
    return tuple(
        Hypothesis(f"α⁰ < the rate of {name} = 1", alpha, alpha / floor if floor > 0 else math.inf)
        for name, floor in zip(("Γ₁", "Γ₂", "Γ₄"), _floors(c, np.zeros(4), form)[1], strict=True)
    )


def nonconvex_best(c: Constants, gap: float, spread: float, last: int, form: Form = "corrected") -> NonconvexBound:
    """theorem:nonconvex_diminishing with the Γ that makes its bound least, found numerically over the feasible ones."""

    def value(slack: Floats) -> float:
        g = nonconvex_gammas(c, slack, form)
        return math.inf if g is None else nonconvex_bound(c, g, gap, spread, last, form).total

    chosen = nonconvex_gammas(c, search(value, 4), form)
    if chosen is None:
        return _void(None, nonconvex_requirements(c, form), math.inf)
    return nonconvex_bound(c, chosen, gap, spread, last, form)
