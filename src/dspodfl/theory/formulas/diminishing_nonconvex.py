"""Smooth non-convex losses, diminishing learning rates α(k) = α⁰/√(1 + k/γ) (theorem:nonconvex_diminishing).

`Constants` as in `diminishing`, whose two forms, "printed" and "corrected", are the two here. The Γ are those of
`nonconvex`, but for Γ₀, which plays no part: 1 − d_min(k) = η α(k) vanishes by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dspodfl.theory.formulas.constants import Constants, Floats
from dspodfl.theory.formulas.diminishing import Form, etas, policy, power_ceiling, power_sum, sum_floor
from dspodfl.theory.formulas.nonconvex import Coefficients, Gammas, search
from dspodfl.theory.formulas.recursion import Hypothesis


def coefficients(c: Constants, k: int, form: Form = "corrected") -> Coefficients:
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


def conditions(c: Constants, g: Gammas, form: Form = "corrected") -> tuple[Hypothesis, ...]:
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


def weights(c: Constants, g: Gammas, form: Form = "corrected") -> Weights:
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


def explicit(
    c: Constants, g: Gammas, gradients: Floats, value: float, spread: float, form: Form = "corrected"
) -> Floats:
    """E F(θ̄(k+1)) ≤ F(θ̄(0)) − w₁ Σ_{r≤k} αG + α⁰w₂ Ω(0) + w₂ Σ_{r<k} αψ2 + Σ_{r≤k} ψ1.

    proposition:nonconvex_diminishing, true in its corrected form where `conditions` hold.
    Shapes: gradients (iterations,), the G(r) from 0 on; -> (iterations,), of iterations 1, 2, ….
    """
    rate, w, found = policy(c), weights(c, g, form), [coefficients(c, k, form) for k in range(len(gradients))]
    alpha = rate(np.arange(len(gradients)))
    drift = np.concatenate([[0.0], np.cumsum([a * f.psi2 for a, f in zip(alpha, found, strict=True)])[:-1]])
    fallen, noise = w.w1 * np.cumsum(alpha * gradients), np.cumsum([f.psi1 for f in found])
    return np.asarray(value - fallen + w.w2 * (rate.value * spread + drift) + noise)


@dataclass(frozen=True)
class Bound:
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


def _void(g: Gammas | None, found: tuple[Hypothesis, ...], left: float) -> Bound:
    return Bound(math.inf, math.inf, math.inf, math.inf, g, found, left)


def bound(c: Constants, g: Gammas, gap: float, spread: float, last: int, form: Form = "corrected") -> Bound:
    """theorem:nonconvex_diminishing for a given Γ, gap = F(θ̄(0)) − F*, spread = ‖Θ(0) − 1θ̄(0)‖², K = last.

    [gap + α⁰w₂ spread + w₂w₃ Σ_{r<K}α³ + w₄ Σ_{r≤K}α²] / (w₁ Σ_{r≤K}α)

    "corrected": with these sums. "printed": the last display of the proof, with lemma:sum_h (a) without its γ and
    lemma:sum_alpha in their place; infinite at K = 0. The theorem itself prints its last term as
    w₄α⁰(1 + γ O(ln K/√K)), which does not vanish: the 1 belongs over √K too.
    """
    rate, w, found = policy(c), weights(c, g, form), conditions(c, g, form)
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
    return Bound(
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


def gammas(c: Constants, slack: Floats, form: Form = "corrected") -> Gammas | None:
    """Γ₁, Γ₂, Γ₃, Γ₄ that leave a share ``slack`` (4,) of their feasible ranges unused; None where there is none."""
    inverse, floors = _floors(c, slack, form)
    if max(floors) >= 1:
        return None
    g1, g2, g4 = (1 / u if u > 0 else math.inf for u in inverse)
    return Gammas(math.inf, g1, g2, 2 * c.beta * policy(c).value / (1 - float(slack[2])), g4)


def requirements(c: Constants, form: Form = "corrected") -> tuple[Hypothesis, ...]:
    """What must hold of α⁰ for any Γ at all to serve, each with its numbers."""
    alpha = policy(c).value
    return tuple(
        Hypothesis(f"α⁰ < the rate of {name} = 1", alpha, alpha / floor if floor > 0 else math.inf)
        for name, floor in zip(("Γ₁", "Γ₂", "Γ₄"), _floors(c, np.zeros(4), form)[1], strict=True)
    )


def best(c: Constants, gap: float, spread: float, last: int, form: Form = "corrected") -> Bound:
    """theorem:nonconvex_diminishing with the Γ that makes its bound least, found numerically over the feasible ones."""

    def value(slack: Floats) -> float:
        g = gammas(c, slack, form)
        return math.inf if g is None else bound(c, g, gap, spread, last, form).total

    chosen = gammas(c, search(value, 4), form)
    if chosen is None:
        return _void(None, requirements(c, form), math.inf)
    return bound(c, chosen, gap, spread, last, form)
