"""Smooth non-convex losses, constant learning rate (theorem:nonconvex and the lemmas it rests on).

‖∇F_i(θ)‖ ≤ δ + ζ‖∇F(θ)‖;  G = E‖∇F(θ̄)‖²;  Ω = E‖Θ − 1θ̄‖²:

    E F(θ̄(k+1)) ≤ E F(θ̄(k)) − φ11 G + φ12 Ω + ψ1          (lemma:optimization_nonconvex)
    Ω(k+1)      ≤ φ21 G + φ22 Ω + ψ2                       (lemma:consensus_nonconvex)

There are two forms of the theorem. "proved" has the conditions of
proposition:optimization_nonconvex_explicit and its w₂, with 1 − 1/Γ₁². "printed" has the conditions at the end of the
theorem's own proof (d_max replaced by 1, 1 − 1/Γ₁ for 1 − 1/Γ₁²) and the theorem's w₂, with 1 − 1/Γ₁: stricter and
looser, and true wherever ζ²(1 − d_min) < ½. That hypothesis the proposition's proof needs and the theorem drops; its
text even calls the gap bounded "regardless of the d_i". Here it is a condition like the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq, minimize

from dspodfl.errors import InputError
from dspodfl.theory.formulas.constants import Constants, Floats
from dspodfl.theory.formulas.recursion import Hypothesis

Form = Literal["printed", "proved"]

LEAST = 1e-9
"""Slack that the optimized Γ keep from every bound on α, which the statements print with <."""


@dataclass(frozen=True)
class Coefficients:
    """φ and ψ of the two lemmas at one learning rate."""

    phi11: float
    phi12: float
    phi21: float
    phi22: float
    psi1: float
    psi2: float


def coefficients(c: Constants) -> Coefficients:
    """φ_ij and ψ_i of lemma:optimization_nonconvex and lemma:consensus_nonconvex.

    φ11 = α[½ − ζ²(1 − d_min) − β(1 + 2ζ²(1 − d_min))α]    φ12 = (β² d_max / 2m) α(1 + 2βα)
    φ21 = 16 r m d_max α²ζ²                                φ22 = (1 + ρ̃)/2 + 8 r d_max α²β²,    r = (1 + ρ̃)/(1 − ρ̃)
    ψ1  = α[(1 − d_min)(1 + 2βα)δ² + βα d_max σ²/2m]       ψ2  = m α² d_max (16 r δ² + σ²)
    """
    alpha, idle, r = c.step, 1 - c.d_min, (1 + c.rho_tilde) / (1 - c.rho_tilde)
    return Coefficients(
        phi11=alpha * (0.5 - c.zeta**2 * idle - c.beta * (1 + 2 * c.zeta**2 * idle) * alpha),
        phi12=c.beta**2 * c.d_max / (2 * c.m) * alpha * (1 + 2 * c.beta * alpha),
        phi21=16 * r * c.m * c.d_max * alpha**2 * c.zeta**2,
        phi22=(1 + c.rho_tilde) / 2 + 8 * r * c.d_max * alpha**2 * c.beta**2,
        psi1=alpha * (idle * (1 + 2 * c.beta * alpha) * c.delta**2 + c.beta * alpha * c.d_max * c.sigma**2 / (2 * c.m)),
        psi2=c.m * alpha**2 * c.d_max * (16 * r * c.delta**2 + c.sigma**2),
    )


def gradient_bounds(c: Constants, gradient: float, consensus: float) -> tuple[float, float, float]:
    """Right-hand sides of lemma:grad_bounds_nonconvex (a), (b), (c), from G and Ω.

    (a) E‖∇F(θ̄) − mean_i v_i∇F_i(θ_i)‖² ≤ 2ζ²(1 − d_min)G + (β² d_max/m)Ω + 2(1 − d_min)δ²
    (b) −E⟨∇F(θ̄), mean_i v_i∇F_i(θ_i)⟩ ≤ ½(a) − ½G
    (c) ½E‖mean_i v_i∇F_i(θ_i)‖²        ≤ G + (a)
    """
    idle = 1 - c.d_min
    a = 2 * idle * (c.zeta**2 * gradient + c.delta**2) + c.beta**2 * c.d_max / c.m * consensus
    return a, (a - gradient) / 2, gradient + a


def gradient_deviation(c: Constants, gradient: float, consensus: float) -> float:
    """E‖V∇ − 1·mean_i v_i∇F_i(θ_i)‖² ≤ 8 d_max[β²Ω + 2mζ²G + 2mδ²]  (lemma:sgd_div_nonconvex)."""
    return 8 * c.d_max * (c.beta**2 * consensus + 2 * c.m * (c.zeta**2 * gradient + c.delta**2))


def consensus(c: Constants, gradients: Floats, spread: float) -> Floats:
    """Ω(k+1) ≤ φ22^{k+1} Ω(0) + Σ_r φ22^{k−r}(φ21 G(r) + ψ2)  (lemma:consensus_nonconvex_explicit).

    Shapes: gradients (iterations,), the G(r); -> (iterations + 1,), from Ω(0) = spread on.
    """
    f = coefficients(c)
    out = [spread]
    for g in gradients:
        out.append(f.phi21 * float(g) + f.phi22 * out[-1] + f.psi2)
    return np.array(out)


@dataclass(frozen=True)
class Gammas:
    """The theorem's free scalars: Γ₀, Γ₁, Γ₂, Γ₄ > 1 (infinity allowed), Γ₃ > 0."""

    g0: float
    g1: float
    g2: float
    g3: float
    g4: float


@dataclass(frozen=True)
class Weights:
    """w₁ … w₅ of theorem:nonconvex."""

    w1: float
    w2: float
    w3: float
    w4: float
    w5: float


def weights(c: Constants, g: Gammas, form: Form = "proved") -> Weights:
    """w₁ … w₅; only w₂ differs between the forms.

    w₁ = ½(1 − 1/Γ₀)(1 − 1/Γ₂)(1 − 1/Γ₄²)      w₂ = β² d_max(1 + Γ₃) / (m(1 − ρ̃)(1 − 1/Γ₁^p)),  p = 1 printed, 2 proved
    w₃ = m d_max(16 r δ² + σ²)                 w₄ = (1 + Γ₃)δ²                 w₅ = β d_max σ²/2m
    """
    r = (1 + c.rho_tilde) / (1 - c.rho_tilde)
    return Weights(
        w1=0.5 * (1 - 1 / g.g0) * (1 - 1 / g.g2) * (1 - 1 / g.g4**2),
        w2=c.beta**2 * c.d_max * (1 + g.g3) / (c.m * (1 - c.rho_tilde) * _one(g.g1, form)),
        w3=c.m * c.d_max * (16 * r * c.delta**2 + c.sigma**2),
        w4=(1 + g.g3) * c.delta**2,
        w5=c.beta * c.d_max * c.sigma**2 / (2 * c.m),
    )


def _one(g1: float, form: Form) -> float:
    """1 − 1/Γ₁ as the theorem prints it, 1 − 1/Γ₁² as lemma:consensus_nonconvex_explicit gives it."""
    return 1 - 1 / g1 if form == "printed" else 1 - 1 / g1**2


def _limits(c: Constants, g: Gammas, form: Form) -> tuple[float, float, float, float]:
    """The four bounds on α of the proposition, in the order of Γ₃, Γ₁, Γ₂, Γ₄."""
    busy = 1.0 if form == "printed" else c.d_max
    mixing = (1 - c.rho_tilde) / math.sqrt(1 + c.rho_tilde)
    room = 1 - 1 / g.g0
    root = math.sqrt(max(_one(g.g1, form) * (1 - 1 / g.g2) * room, 0.0))
    below = 4 * math.sqrt(2 * (1 + g.g3)) * c.zeta * c.beta * busy
    return (
        g.g3 / (2 * c.beta),
        mixing / (4 * c.beta * math.sqrt(busy)) / g.g1,
        room / (2 * c.beta * (1 + 1 / g.g0)) / g.g2,
        math.inf if below == 0 else root * mixing / below / g.g4,
    )


def conditions(c: Constants, g: Gammas, form: Form = "proved") -> tuple[Hypothesis, ...]:
    """Every hypothesis on α, d_min and Γ, with its numbers.

    The first is what the theorem drops: the text defines Γ₀ by it, d_min ≥ 1 − 1/(2Γ₀ζ²), and then only asks Γ₀ > 1.
    """
    names = ("α < Γ₃/(2β)", "α < the rate of Γ₁", "α < the rate of Γ₂", "α < the rate of Γ₄")
    free = (("Γ₀", g.g0), ("Γ₁", g.g1), ("Γ₂", g.g2), ("Γ₄", g.g4))
    return (
        Hypothesis("ζ²(1 − d_min) < 1/(2Γ₀), dropped by the theorem", c.zeta**2 * (1 - c.d_min), 0.5 / g.g0),
        *(Hypothesis(name, c.step, limit) for name, limit in zip(names, _limits(c, g, form), strict=True)),
        *(Hypothesis(f"1 < {name}", 1.0, value) for name, value in free),
        Hypothesis("0 < Γ₃", 0.0, g.g3),
    )


def explicit(c: Constants, g: Gammas, gradients: Floats, value: float, spread: float) -> Floats:
    """E F(θ̄(k+1)) ≤ F(θ̄(0)) − α w₁ Σ_{r≤k} G(r) + α w₂ Ω(0) + kα w₂ψ2 + (k + 1)ψ1.

    proposition:optimization_nonconvex_explicit, w₁ = (½ − ζ²(1 − d_min))(1 − 1/Γ₂)(1 − 1/Γ₄²). True where `conditions`
    hold. Shapes: gradients (iterations,), the G(r) from 0 on; -> (iterations,), of iterations 1, 2, ….
    """
    f, w2, k = coefficients(c), weights(c, g).w2, np.arange(len(gradients))
    w1 = (0.5 - c.zeta**2 * (1 - c.d_min)) * (1 - 1 / g.g2) * (1 - 1 / g.g4**2)
    fallen = c.step * w1 * np.cumsum(gradients)
    return np.asarray(value - fallen + c.step * w2 * (spread + k * f.psi2) + (k + 1) * f.psi1)


def requirements(c: Constants, form: Form = "proved") -> tuple[Hypothesis, ...]:
    """What must hold for any Γ at all to serve, free of Γ, each with its numbers.

    In the "proved" form they are ζ²(1 − d_min) < ½, φ22 < 1, φ11 > 0 and φ11 > φ12φ21/(1 − φ22), each solved for α
    (lemma:consensus_nonconvex_explicit; proposition:optimization_nonconvex_explicit, step 3 of the proof).
    """
    floors, alpha = _floors(c, (0.0,) * 5, form)[1], c.step
    names = ("α < the rate of Γ₁ = 1 (φ22 < 1)", "α < the rate of Γ₂ = 1 (φ11 > 0)", "α < the rate of Γ₄ = 1 (w₁ > 0)")
    return (
        Hypothesis("ζ²(1 − d_min) < ½, dropped by the theorem", floors[0] / 2, 0.5),
        *(
            Hypothesis(name, alpha, alpha / floor if floor > 0 else math.inf)
            for name, floor in zip(names, floors[1:], strict=True)
        ),
    )


def largest_rate(c: Constants, form: Form = "proved") -> float:
    """Compute the supremum of the α that meet `requirements`.

    Args:
        c: The constants, with the ζ of the non-convex diversity.
        form: ``proved`` or ``printed``.

    Returns:
        The largest rate; 0 where no α meets them, as when ζ²(1 − d_min) ≥ ½.

    >>> c = Constants(m=10, beta=1.0, zeta=1.0, rho_tilde=0.5, d_min=0.8, delta=0.1, sigma=0.1)
    >>> round(largest_rate(c), 5), round(largest_rate(c, "printed"), 5)
    (0.04336, 0.0385)
    >>> largest_rate(Constants(m=2, beta=1.0, zeta=1.0, rho_tilde=0.5, d_min=0.4))
    0.0
    """
    if 2 * c.zeta**2 * (1 - c.d_min) >= 1:
        return 0.0
    first = _floors(c.at(1e-12 / c.beta), (0.0,) * 5, form)[1]
    top = 1e-12 / c.beta / max(first[1], first[2])  # these two floors are proportional to α

    def margin(share: float) -> float:
        return _floors(c.at(share * top), (0.0,) * 5, form)[1][3] - 1

    return top * float(brentq(margin, 1e-9, 1 - 1e-12, xtol=1e-15)) if margin(1 - 1e-12) > 0 else top


def _floors(
    c: Constants, slack: Sequence[float], form: Form
) -> tuple[tuple[float, ...], tuple[float, float, float, float]]:
    """(1/Γ₀, 1/Γ₁, 1/Γ₂, 1/Γ₄) at a slack, and the least each may be given those before it; infinite past a failure."""
    alpha, inverse, floors = c.step, [0.0, 1.0, 1.0, 1.0], [math.inf] * 4
    g3 = 2 * c.beta * alpha / (1 - slack[3])
    for i, share in enumerate((slack[0], slack[1], slack[2], slack[4])):
        g0, g1, g2 = (1 / u if u > 0 else math.inf for u in inverse[:3])
        floors[i] = alpha / _limits(c, Gammas(g0, g1, g2, g3, 1.0), form)[i] if i else 2 * c.zeta**2 * (1 - c.d_min)
        if floors[i] >= 1:
            break
        inverse[i] = floors[i] + share * (1 - floors[i])
    return tuple(inverse), (floors[0], floors[1], floors[2], floors[3])


@dataclass(frozen=True)
class Bound:
    """(1/(K+1)) Σ_{r≤K} E‖∇F(θ̄(r))‖² ≤ start + spread + drift + sporadic + noise; all infinite where no Γ serves."""

    start: float
    spread: float
    drift: float
    sporadic: float
    noise: float
    gammas: Gammas | None
    conditions: tuple[Hypothesis, ...]

    @property
    def total(self) -> float:
        """The bound at K."""
        return self.start + self.spread + self.limit

    @property
    def limit(self) -> float:
        """Its limit as K → ∞: (α²w₂w₃ + (1 − d_min)w₄ + αw₅)/w₁."""
        return self.drift + self.sporadic + self.noise

    @property
    def holds(self) -> bool:
        """Whether every hypothesis holds."""
        return self.gammas is not None and all(each.holds for each in self.conditions)


def _void(g: Gammas | None, found: tuple[Hypothesis, ...]) -> Bound:
    """What the theorem says where its hypotheses fail: nothing."""
    return Bound(math.inf, math.inf, math.inf, math.inf, math.inf, g, found)


def bound(c: Constants, g: Gammas, gap: float, spread: float, last: int, form: Form = "proved") -> Bound:
    """Compute theorem:nonconvex for a given Γ.

    (1/w₁)[gap/(α(K+1)) + spread·w₂/(K+1) + α²w₂w₃ + (1 − d_min)w₄ + αw₅]

    Args:
        c: The constants, with the ζ of the non-convex diversity and a constant learning rate.
        g: The free scalars Γ.
        gap: F(θ̄(0)) − F*.
        spread: ‖Θ(0) − 1θ̄(0)‖².
        last: K, the last iteration of the mean.
        form: ``proved`` or ``printed``.

    Returns:
        The bound; infinite where a condition fails.

    Raises:
        InputError: ``gap``, ``spread`` or ``last`` is below 0.
    """
    if gap < 0 or spread < 0 or last < 0:
        raise InputError("gap, spread, last", (gap, spread, last), "each at least 0")
    w, alpha, found = weights(c, g, form), c.step, conditions(c, g, form)
    if not all(each.holds for each in found) or w.w1 <= 0:
        return _void(g, found)
    return Bound(
        start=gap / (alpha * (last + 1)) / w.w1,
        spread=spread * w.w2 / (last + 1) / w.w1,
        drift=alpha**2 * w.w2 * w.w3 / w.w1,
        sporadic=(1 - c.d_min) * w.w4 / w.w1,
        noise=alpha * w.w5 / w.w1,
        gammas=g,
        conditions=found,
    )


def gammas(c: Constants, slack: Floats, form: Form = "proved") -> Gammas | None:
    """The Γ that leave a share ``slack`` (5,) in [0, 1) of each one's feasible range unused; None where there is none.

    1/Γ_i = floor_i + slack_i(1 − floor_i), floor_i from the condition on α that Γ_i is in; Γ₃ = 2βα/(1 − slack₃).
    Every feasible Γ is such a point, so that a search over the box is one over the feasible Γ.
    """
    inverse, floors = _floors(c, [float(s) for s in slack], form)
    if max(floors) >= 1:
        return None
    g0, g1, g2, g4 = (1 / u if u > 0 else math.inf for u in inverse)
    return Gammas(g0, g1, g2, 2 * c.beta * c.step / (1 - float(slack[3])), g4)


def search(value: Callable[[Floats], float], free: int) -> Floats:
    """The slack (free,) that minimizes a positive value, infinite where infeasible: L-BFGS-B on its logarithm.

    From two starts, each halved until it is feasible. The conditions are strict: the box is [LEAST, 0.999].
    """
    far = 700.0

    def log(slack: Floats) -> float:
        found = value(slack)
        return math.log(found) if 0 < found < math.inf else (far if found > 0 else -far)

    best = np.full(free, LEAST)
    for start in (0.1, 0.5):
        x = np.full(free, start)
        while log(x) >= far and x[0] > 2 * LEAST:
            x = x / 2
        if log(x) < far:
            found = minimize(log, x, method="L-BFGS-B", bounds=[(LEAST, 0.999)] * free)
            best = min((best, np.asarray(found.x)), key=log)
    return best


def best(c: Constants, gap: float, spread: float, last: int, form: Form = "proved") -> Bound:
    """Compute theorem:nonconvex with the Γ that makes its bound least, found numerically over the feasible ones.

    In the "proved" form the least bound turns out to be the one without any Γ, w₁ = (φ11 − φ12φ21/(1 − φ22))/α and
    w₂ = φ12/(α(1 − φ22)): the search drives every condition on α to equality, up to LEAST.

    Args:
        c: The constants, with the ζ of the non-convex diversity and a constant learning rate.
        gap: F(θ̄(0)) − F*.
        spread: ‖Θ(0) − 1θ̄(0)‖².
        last: K, the last iteration of the mean.
        form: ``proved`` or ``printed``.

    Returns:
        The bound; infinite where no Γ meets the conditions.

    Raises:
        InputError: ``gap``, ``spread`` or ``last`` is below 0.

    >>> c = Constants(m=10, beta=1.0, zeta=1.0, rho_tilde=0.5, d_min=0.8, delta=0.1, sigma=0.1)
    >>> found = best(c.at(0.01), gap=1.0, spread=0.0, last=999)
    >>> found.holds, round(found.total, 3), round(found.limit, 4)
    (True, 0.37, 0.0078)
    """

    def value(slack: Floats) -> float:
        g = gammas(c, slack, form)
        return math.inf if g is None else bound(c, g, gap, spread, last, form).total

    chosen = gammas(c, search(value, 5), form)
    if chosen is None:
        return _void(None, requirements(c, form))
    return bound(c, chosen, gap, spread, last, form)
