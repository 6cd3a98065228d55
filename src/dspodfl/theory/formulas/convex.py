"""Strongly convex losses, constant learning rate: lemma:optimization, lemma:consensus, theorem:constant.

With x = μα, s = 2β²(1 − d_min)/μ², Z = ζ² + 2β²(1 − d_min) and T = (1 + ρ̃)/(1 − ρ̃):

    φ₁₁ = (1 + x)(1 − x)² + s x (1 + x)        φ₁₂ = (1 + x) α d_max β² / (mμ)
    φ₂₁ = 3 T m d_max α² Z                     φ₂₂ = (1 + ρ̃)/2 + 3 T d_max α² (ζ² + 2β²)

Where the paper's text does not hold, the printed quantity is named ``printed_…``, next to the one that does:

* φ₁₁ < 1 for some α > 0 exactly if s < 1, which asks for d_min > 1 − μ²/(2β²) ≥ ½. proposition:spectral_radius asks
  for nothing of the kind: its step 2 factors Γ₁² + sΓ₁ + s − 1 as if the roots were 1 and s − 1; they are −1 and 1 − s.
* Step 4 then chooses Γ₂* freely, although Constraint 2 bounds it, s₀Γ₂ ≤ 1 − x²/(1 + x). So the printed condition
  fails at d_min = 1 as well, where μ is small compared with β and ζ is not.
* 1 − ρ(Φ) ≥ 2Aα in the proof of theorem:constant points the wrong way: ρ(Φ) ≥ φ₁₁ always.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dspodfl.theory.formulas.constants import Constants, Floats
from dspodfl.theory.formulas.recursion import Hypothesis, Recursion, largest_root


def scarcity(c: Constants) -> float:
    """Compute s = 2β²(1 − d_min)/μ²: the share of the descent that missing SGD steps take away; s < 1 is needed.

    >>> scarcity(Constants(m=10, mu=1.0, beta=2.0, rho_tilde=0.8, d_min=0.5))  # no learning rate is safe
    4.0
    """
    return 2.0 * c.beta**2 * (1.0 - c.d_min) / c.strong**2


def diversity(c: Constants) -> float:
    """Compute Z = ζ² + 2β²(1 − d_min), how the average model's error feeds disagreement."""
    return c.zeta**2 + 2.0 * c.beta**2 * (1.0 - c.d_min)


def spread(c: Constants) -> float:
    """Compute T = (1 + ρ̃)/(1 − ρ̃)."""
    return (1.0 + c.rho_tilde) / (1.0 - c.rho_tilde)


def consensus_entries(c: Constants) -> tuple[float, float, float]:
    """Return φ₂₁, φ₂₂ and ψ₂ (lemma:consensus)."""
    found = recursion(c)
    return float(found.phi[1, 0]), float(found.phi[1, 1]), float(found.psi[1])


def system(c: Constants, alpha: Floats, d_min: Floats | float, d_max: Floats | float) -> tuple[Floats, Floats]:
    """Compute Φ(k) and Ψ(k) for rates and SGD probabilities that change (lemma:optimization, lemma:consensus).

    Args:
        c: The constants; their d_min, d_max and learning rate are not used.
        alpha: α(k), shape (K,).
        d_min: d_min(k), a number or shape (K,).
        d_max: d_max(k), a number or shape (K,).

    Returns:
        Φ, shape (K, 2, 2), and Ψ, shape (K, 2).
    """
    mu, m, x, idle = c.strong, c.m, c.strong * alpha, 1.0 - np.asarray(d_min)
    busy, wide = d_max * alpha**2, 3.0 * spread(c)
    phi, psi = np.empty((len(alpha), 2, 2)), np.empty((len(alpha), 2))
    phi[:, 0, 0] = (1.0 + x) * (1.0 - x) ** 2 + 2.0 * c.beta**2 * idle / mu**2 * x * (1.0 + x)
    phi[:, 0, 1] = (1.0 + x) * alpha * d_max * c.beta**2 / (m * mu)
    phi[:, 1, 0] = wide * m * busy * (c.zeta**2 + 2.0 * c.beta**2 * idle)
    phi[:, 1, 1] = (1.0 + c.rho_tilde) / 2.0 + wide * busy * (c.zeta**2 + 2.0 * c.beta**2)
    psi[:, 0] = 2.0 * alpha / mu * (1.0 + x) * idle * c.delta**2 + busy * c.sigma**2 / m
    psi[:, 1] = m * busy * (wide * c.delta**2 + c.sigma**2)
    return phi, psi


def recursion(c: Constants) -> Recursion:
    """Compute Φ and Ψ for ν = (E‖θ̄ − θ*‖², E‖Θ − 1θ̄‖²) (lemma:optimization, lemma:consensus, def:nu).

    lemma:optimization holds for α ≤ 2/(μ + β), which its proof assumes and its statement omits.

    Args:
        c: The constants, with μ and a constant learning rate.

    Returns:
        The recursion.

    Raises:
        InputError: μ is missing, or the learning rate is not a number.

    >>> c = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.95, delta=0.1, sigma=0.1)
    >>> found = recursion(c.at(0.005))
    >>> round(found.radius, 5), found.gap.round(5).tolist()
    (0.99708, [0.00224, 0.00085])
    """
    phi, psi = system(c, np.array([c.step]), c.d_min, c.d_max)
    return Recursion(phi[0], psi[0])


# --- learning rates --------------------------------------------------------------------------------------------


def consensus_rate(c: Constants) -> float:
    """Compute the α at which φ₂₂ = (3 + ρ̃)/4, the second term of proposition:spectral_radius."""
    rho = c.rho_tilde
    return float((1.0 - rho) / (2.0 * np.sqrt(3.0 * c.d_max * (1.0 + rho) * (c.zeta**2 + 2.0 * c.beta**2))))


def printed_rate(c: Constants) -> float:
    """Compute the α below which proposition:spectral_radius states ρ(Φ) < 1; it is not sufficient.

    Args:
        c: The constants, with μ.

    Returns:
        The printed limit of α.

    >>> c = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.5)
    >>> round(printed_rate(c), 5), round(recursion(c.at(0.99 * printed_rate(c))).radius, 3)  # the errors grow
    (0.01498, 1.059)
    """
    z = diversity(c)
    third = np.inf
    if z > 0:
        third = np.cbrt(c.strong / (12.0 * z)) * np.cbrt((1.0 - c.rho_tilde) / (2.0 * c.d_max * c.beta)) ** 2
    return float(min(1.0 / c.strong, consensus_rate(c), third))


def corrected_rate(c: Constants) -> float:
    """Compute a rate below which ρ(Φ) < 1 is proved: the proposition's argument with its two slips corrected.

    For x ≤ 1 − s: 1 − φ₁₁ ≥ (1 − s)x, and 1 + x ≤ 2. With φ₂₂ ≤ (3 + ρ̃)/4 what is left of
    (1 − φ₁₁)(1 − φ₂₂) > φ₁₂φ₂₁ is α² < (1 − s)(1 − ρ̃)²μ² / (24 (1 + ρ̃) β² d_max² Z).

    Args:
        c: The constants, with μ.

    Returns:
        The corrected limit of α; 0 if s ≥ 1.

    >>> c = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.95, delta=0.1, sigma=0.1)
    >>> round(corrected_rate(c), 5), round(largest_rate(c), 5)
    (0.01462, 0.01715)
    """
    room, z = 1.0 - scarcity(c), diversity(c)
    if room <= 0.0:
        return 0.0
    third = np.inf
    if z > 0:
        share = np.sqrt(room / (24.0 * (1.0 + c.rho_tilde) * z))
        third = share * (1.0 - c.rho_tilde) * c.strong / (c.beta * c.d_max)
    return float(min(room / c.strong, consensus_rate(c), third))


def largest_rate(c: Constants) -> float:
    """Compute sup{α : ρ(Φ) < 1} by bisection. Every rate below it works, and it is below 2/(μ + β).

    ρ(Φ) < 1 exactly if φ₂₂ < 1 and (1 − x²/(1 + x) − s)(1 − φ₂₂) > φ₁₂φ₂₁/(x(1 + x)): the left falls, the right rises.

    Args:
        c: The constants, with μ.

    Returns:
        The largest rate; 0 if s ≥ 1.

    >>> c = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.95, delta=0.1, sigma=0.1)
    >>> [recursion(c.at(share * largest_rate(c))).radius < 1 for share in (0.999, 1.001)]
    [True, False]
    """
    s, mu = scarcity(c), c.strong
    feed = 3.0 * spread(c) * c.d_max**2 * c.beta**2 * diversity(c) / mu**2

    def margin(alpha: float) -> float:
        x = mu * alpha
        descent, settling = 1.0 - x * x / (1.0 + x) - s, 1.0 - consensus_entries(c.at(alpha))[1]
        return min(descent, settling, descent * settling - feed * alpha**2)

    return largest_root(margin, np.sqrt(2.0) * consensus_rate(c) * (1.0 + 1e-9))


def hypotheses(c: Constants) -> tuple[Hypothesis, ...]:
    """Return everything that the argument for ρ(Φ) < 1 and its closed form rest on, at this α.

    Args:
        c: The constants, with μ and a constant learning rate.

    Returns:
        The hypotheses, each with its numbers.

    >>> c = Constants(m=10, mu=1.0, beta=2.0, zeta=0.5, rho_tilde=0.8, d_min=0.5)
    >>> [h.name for h in hypotheses(c.at(0.0148)) if not h.holds][:2]  # the printed condition is not among them
    ['enough SGD: s = 2β²(1 − d_min)/μ² < 1', 'φ₁₁ < 1']
    """
    x = c.strong * c.step
    (phi11, phi12), (phi21, phi22) = recursion(c).phi.tolist()
    limit = 1.0 - x * x / (1.0 + x)
    return (
        Hypothesis("printed learning-rate condition", c.step, printed_rate(c)),
        Hypothesis("smooth descent: α < 2/(μ + β)", c.step, 2.0 / (c.strong + c.beta)),
        Hypothesis("enough SGD: s = 2β²(1 − d_min)/μ² < 1", scarcity(c), 1.0),
        Hypothesis("φ₁₁ < 1", phi11, 1.0),
        Hypothesis("φ₂₂ < 1", phi22, 1.0),
        Hypothesis("φ₁₂φ₂₁ < (1 − φ₁₁)(1 − φ₂₂)", phi12 * phi21, max(0.0, 1.0 - phi11) * (1.0 - phi22)),
        Hypothesis("Constraint 2: s₀Γ₂* < 1 − x²/(1 + x)", scarcity(c) + 2.0 * closed_form(c).a / c.strong, limit),
    )


# --- the closed form ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClosedForm:
    """A, B, C of ρ(Φ) = (3 + ρ̃)/4 − Aα + Bα² + ½√(((1 − ρ̃)/2 − 2(Aα + Bα²))² + Cα³) (step 5)."""

    a: float
    b: float
    c: float

    def radius(self, rho: float, alpha: float) -> float:
        """ρ(Φ̂) of the matrix with φ̂₁₁ = 1 − 2Aα, φ̂₂₂ = (1 + ρ̃)/2 + 2Bα² and φ̂₁₂φ̂₂₁ = Cα³/4."""
        a, b = self.a * alpha, self.b * alpha**2
        return float(
            (3.0 + rho) / 4.0 - a + b + np.hypot((1.0 - rho) / 2.0 - 2.0 * (a + b), np.sqrt(self.c * alpha**3)) / 2
        )


def gamma2(c: Constants, gamma0: float, gamma1: float = 1.0) -> float:
    """Γ₂* of step 4, for Γ₀ > 1 and Γ₁."""
    share = np.cbrt(c.d_max * c.strong / ((1.0 - c.rho_tilde) * (1.0 + gamma1) * c.beta**2)) ** 2
    return float(1.0 + (1.0 + c.rho_tilde) * np.cbrt(3.0 * diversity(c)) / (2.0 * (1.0 - 1.0 / gamma0)) * share)


def closed_form(c: Constants) -> ClosedForm:
    """A = (β²/μ)(Γ₂* − 1)(1 − 1/Γ₀), B and C with Γ₁ = 1, as printed in step 5; Γ₀ cancels in A.

    From step 2 on, the text writes (1 + Γ₁) where an upper bound of φ₁₁ needs the lower bound 1 of 1 + x, and step 5
    then drops that factor, (1 + Γ₁) = 2, from A. The two slips cancel: φ₁₁ ≤ 1 − 2Aα with the printed A is right
    wherever Constraint 2 holds, and there the printed value bounds ρ(Φ) from above; it does not equal it.
    """
    share = np.cbrt(c.d_max * c.strong / ((1.0 - c.rho_tilde) * 2.0 * c.beta**2)) ** 2
    product = (1.0 + c.rho_tilde) * np.cbrt(3.0 * diversity(c)) / 2.0 * share  # (Γ₂* − 1)(1 − 1/Γ₀)
    return ClosedForm(
        a=float(c.beta**2 / c.strong * product),
        b=1.5 * spread(c) * c.d_max * (c.zeta**2 + 2.0 * c.beta**2),
        c=24.0 * c.beta**2 / c.strong * spread(c) * c.d_max**2 * diversity(c),
    )


def printed_radius(c: Constants) -> float:
    """ρ(Φ) as printed in step 5 of proposition:spectral_radius."""
    return closed_form(c).radius(c.rho_tilde, c.step)


def printed_gap(c: Constants) -> Floats:
    """Ψ/(2Aα) with d_max ≤ 1, the asymptotic gap as printed (eq. optimality_gap); wrong as a bound. Shapes: -> (2,).

    Its first entry is 0 at d_min = 1, σ = 0, where DGD has a bias; it falls as ζ grows; it is infinite at ζ = 0,
    d_min = 1. ``recursion(c).gap`` is the limit that the lemmas do give.
    """
    first = 2.0 / c.strong * (1.0 + c.strong * c.step) * (1.0 - c.d_min) * c.delta**2 + c.step * c.sigma**2 / c.m
    second = c.m * c.step * (3.0 * spread(c) * c.delta**2 + c.sigma**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.array([first, second]) / (2.0 * closed_form(replace(c, d_max=1.0)).a))
