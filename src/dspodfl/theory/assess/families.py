"""The result of one theorem family for one run: quantities, conditions with their numbers, a predicted trajectory.

To add a bound, add a `Quantity` to the list, and its number to the result of its family, by its name. It is printed,
recorded, tabulated, swept and documented from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dspodfl.algorithms import Constant, Diminishing, LearningRate
from dspodfl.theory.formulas import convex, diminishing, diminishing_nonconvex, nonconvex, pl
from dspodfl.theory.formulas.constants import Constants, Floats
from dspodfl.theory.formulas.recursion import Hypothesis, Recursion, propagate, radius

Form = Literal["printed", "corrected"]
Source = Literal["exact", "corrected", "printed", "optimized", "given"]
SOURCES: dict[Source, str] = {
    "exact": "computed from the recursion or the matrices themselves",
    "corrected": "the paper's statement in the form that holds",
    "printed": "the paper's statement as printed, which may not hold",
    "optimized": "a free parameter of a theorem, chosen such that the bound is least",
    "given": "an input: the configuration and its algorithms, or an option of the command",
}
"""Where a number of the theory comes from."""


@dataclass(frozen=True)
class Quantity:
    """A number of the theory: its name in code, its label for people, and where it comes from.

    Attributes:
        name: Its name in code.
        label: Its label in tables, records and the documentation.
        source: Where the number comes from, one of `SOURCES`.
        column: The head of its column in the table of a sweep; None where it has none of its own.
        fills: The column of another quantity that it fills.
        panel: The label of its panel in the figure of a sweep; None where it is not drawn.
        logarithmic: Whether the axis of that panel may be logarithmic.
    """

    name: str
    label: str
    source: Source = "exact"
    column: str | None = None
    fills: str | None = None
    panel: str | None = None
    logarithmic: bool = False


ERRORS = {"optimality": "‖θ̄ − θ*‖²", "excess": "F(θ̄) − F*", "consensus": "‖Θ − 1θ̄‖²"}
"""The errors that are bounded, by name, as people write them."""
_MEAN = "mean ‖∇F(θ̄)‖² over 0 … K, at most"


def _gap(error: str, *, column: bool = True) -> Quantity:
    name = ERRORS[error]
    return Quantity(f"gap_{error}", f"gap of {name}", column=f"gap of\n{name}" if column else None)


def _drawn(quantity: Quantity, also: str = "", *, logarithmic: bool = False) -> Quantity:
    """The quantity with a panel under its own label, to which words may be added."""
    return replace(quantity, panel=f"{quantity.label}, {also}" if also else quantity.label, logarithmic=logarithmic)


_LISTED = (
    Quantity("rho_tilde", "ρ̃, largest over iterations and seeds", column="ρ̃", panel="ρ̃, contraction of mixing"),
    Quantity("d_min", "d_min", "given", "d_min"),
    Quantity("d_max", "d_max", "given"),
    Quantity("alpha", "α", "given", "α"),
    Quantity("printed_rate", "largest α by the printed condition", "printed", "largest α,\nprinted"),
    Quantity("corrected_rate", "largest α by the corrected condition", "corrected", "largest α,\ncorrected"),
    _drawn(Quantity("largest_rate", "largest α with ρ(Φ) < 1", column="largest α,\nρ(Φ) < 1"), logarithmic=True),
    _drawn(Quantity("radius", "ρ(Φ)", column="ρ(Φ)"), "linear rate"),
    Quantity("printed_radius", "ρ(Φ) by the printed closed form", "printed"),
    Quantity("worst_radius", "largest ρ(Φ(k))", fills="radius"),
    Quantity("last_radius", "last ρ(Φ(k))"),
    _drawn(_gap("optimality"), logarithmic=True),
    _gap("excess", column=False),
    _drawn(_gap("consensus"), logarithmic=True),
    *(Quantity(f"printed_gap_{key}", f"gap of {name} as printed", "printed") for key, name in ERRORS.items()),
    *(Quantity(f"final_{key}", f"{name} after K, at most") for key, name in ERRORS.items()),
    *(Quantity(f"printed_final_{key}", f"{name} after K, as printed", "printed") for key, name in ERRORS.items()),
    Quantity("epsilon", "ε", "given"),
    Quantity("iterations", f"iterations to {ERRORS['optimality']} ≤ ε", column="iterations\nto ε"),
    Quantity("iterations_excess", f"iterations to {ERRORS['excess']} ≤ ε"),
    Quantity("zeta", "ζ taken", "optimized"),
    Quantity("delta", "δ taken", "optimized"),
    Quantity("gamma_rate", "largest α for which Γ exist", "corrected", fills="largest_rate"),
    Quantity("printed_gamma_rate", "largest α for which Γ exist, as printed", "printed"),
    Quantity("mean_gradient", _MEAN, "corrected", "mean ‖∇F‖²\nat most"),
    Quantity("printed_mean_gradient", f"{_MEAN}, as printed", "printed"),
    Quantity("mean_gradient_limit", "its limit as K → ∞", "corrected"),
    *(Quantity(f"gamma{n}", f"Γ{sign}, optimized", "optimized") for n, sign in enumerate("₀₁₂₃₄")),
    # A new quantity is added here.
)
QUANTITIES = {quantity.name: quantity for quantity in _LISTED}
"""Every number of the theory, by name: those of the run first, then those that a family may give."""


@dataclass(frozen=True)
class Condition:
    """A hypothesis as the paper prints it, or one that the result does need."""

    form: Form
    hypothesis: Hypothesis


@dataclass(frozen=True, eq=False)
class FamilyResult:
    """What one theorem family gives for one run.

    Attributes:
        family: ``strongly convex``, ``PL`` or ``smooth, non-convex``.
        theorem: The label of the theorem in the paper.
        quantities: Numbers by the names of `QUANTITIES`; NaN where there is none.
        conditions: The hypotheses of the theorem, each with its numbers.
        trajectory: ν(0) … ν(K), propagated exactly, shape (K + 1, 2); None where it does not converge.
        printed: The same by the printed closed form.
        gap: The limit of ν, shape (2,).
    """

    family: str
    theorem: str
    quantities: dict[str, float]
    conditions: tuple[Condition, ...]
    trajectory: Floats | None = None
    printed: Floats | None = None
    gap: Floats | None = None

    @property
    def labelled(self) -> dict[str, float]:
        """The quantities by their labels."""
        return {QUANTITIES[name].label: value for name, value in self.quantities.items()}


@dataclass(frozen=True, eq=False)
class FamilyInputs:
    """What a theorem family is applied to.

    Attributes:
        constants: The constants that hold throughout.
        rate: The learning rate.
        growing: Whether SGD probabilities grow as a diminishing rate falls, as the paper's policy has it.
        alpha: α(k), shape (iterations,).
        d_min: d_min(k), shape (iterations,).
        d_max: d_max(k), shape (iterations,).
        start: (‖θ̄(0) − θ*‖², ‖Θ(0) − 1θ̄(0)‖²), shape (2,).
        excess: At least F(θ̄(0)) − F*.
        epsilon: The error that iterations are counted to; None: the default of the family.
    """

    constants: Constants
    rate: LearningRate
    growing: bool
    alpha: Floats
    d_min: Floats
    d_max: Floats
    start: Floats
    excess: float
    epsilon: float | None

    @property
    def constant_rate(self) -> bool:
        """Whether the learning rate is one number."""
        return isinstance(self.rate, Constant)

    @property
    def diminishing(self) -> bool:
        """Whether this is the paper's diminishing policy, with SGD probabilities that grow as it falls."""
        return isinstance(self.rate, Diminishing) and self.growing

    @property
    def iterations(self) -> int:
        """K."""
        return len(self.alpha)


def _mixed(printed: Sequence[Hypothesis], needed: Sequence[Hypothesis]) -> tuple[Condition, ...]:
    return (*(Condition("printed", h) for h in printed), *(Condition("corrected", h) for h in needed))


# --- strongly convex losses, and PL, which have one recursion --------------------------------------------------------


def strongly_convex(run: FamilyInputs) -> FamilyResult:
    """theorem:constant, or the same lemmas iteration by iteration where rates change."""
    c = run.constants
    if not run.constant_rate:
        return _at_changing_rates(run)
    at = c.at(float(run.alpha[0]))
    first, *rest = convex.hypotheses(at)
    limit = convex.corrected_rate(at)
    needed = (*rest[:-1], Hypothesis("corrected learning-rate condition, sufficient", at.step, limit))
    system = convex.recursion(at)
    quantities = {
        "printed_rate": convex.printed_rate(at),
        "corrected_rate": limit,
        "largest_rate": convex.largest_rate(at),
        "radius": system.radius,
        "printed_radius": convex.printed_radius(at),
    }
    gap = convex.printed_gap(at)
    return _at_constant_rate(
        run, "strongly convex", "theorem:constant", system, quantities, gap, _mixed((first, rest[-1]), needed)
    )


def polyak_lojasiewicz(run: FamilyInputs) -> FamilyResult | None:
    """theorem:nonconvex_pl, whose ν has E[F(θ̄) − F*] first; None where the learning rate is not one number."""
    if not run.constant_rate:
        return None
    at = run.constants.at(float(run.alpha[0]))
    first, *needed = pl.hypotheses(at)
    system = pl.recursion(at)
    quantities = {
        "printed_rate": pl.printed_rate(at),
        "corrected_rate": pl.corrected_rate(at),
        "largest_rate": pl.largest_rate(at),
        "radius": system.radius,
        "printed_radius": pl.printed_radius(at),
    }
    run = replace(run, start=np.array([run.excess, run.start[1]]))
    found = _at_constant_rate(
        run, "PL", "theorem:nonconvex_pl", system, quantities, pl.printed_gap(at), _mixed((first,), needed)
    )
    return replace(found, trajectory=None, printed=None)


def _at_constant_rate(
    run: FamilyInputs,
    family: str,
    theorem: str,
    system: Recursion,
    quantities: dict[str, float],
    printed_gap: Floats,
    conditions: tuple[Condition, ...],
) -> FamilyResult:
    """Gap, trajectory and iterations of the recursion of a family."""
    converges = system.radius < 1.0
    gap = system.gap
    names = ("excess" if family == "PL" else "optimality", "consensus")
    until = "iterations_excess" if family == "PL" else "iterations"
    trajectory = system.propagate(run.start, run.iterations) if converges else None
    for n, name in enumerate(names):
        quantities[f"gap_{name}"] = float(gap[n]) if converges else math.nan
        quantities[f"printed_gap_{name}"] = float(printed_gap[n]) if printed_gap[n] >= 0 else math.nan
        quantities[f"final_{name}"] = float(trajectory[-1, n]) if trajectory is not None else math.nan
    epsilon = run.epsilon or max(2.0 * float(gap[0]), 0.01 * float(run.start[0]))
    if converges and epsilon > 0:
        reached = system.iterations_to(run.start, epsilon)
        quantities |= {"epsilon": epsilon, until: math.nan if reached is None else reached}
    else:
        quantities |= {"epsilon": run.epsilon or math.nan, until: math.nan}
    printed = system.printed(run.start, run.iterations) if converges else None
    return FamilyResult(family, theorem, quantities, conditions, trajectory, printed, gap if converges else None)


def _at_changing_rates(run: FamilyInputs) -> FamilyResult:
    c = run.constants
    phi, psi = convex.system(c, run.alpha, run.d_min, run.d_max)
    worst = float(radius(phi).max())
    trajectory = propagate(phi, psi, run.start)
    gentle = Hypothesis("smooth descent: max_k α(k) < 2/(μ + β)", float(run.alpha.max()), 2.0 / (c.strong + c.beta))
    scarce = 2.0 * c.beta**2 * (1.0 - float(run.d_min.min())) / c.strong**2
    needed = [gentle, Hypothesis("enough SGD: max_k s(k) < 1", scarce, 1.0)]
    needed.append(Hypothesis("max_k ρ(Φ(k)) < 1", worst, 1.0))
    quantities = {"worst_radius": worst, "last_radius": float(radius(phi[-1:])[0])}
    printed: list[Hypothesis] = []
    closed = None
    if run.diminishing:
        paper = replace(c, d_min=float(run.d_min[0]), d_max=float(run.d_max[0]), alpha=run.rate)
        gamma1 = diminishing.best_gamma1(paper)
        printed = list(diminishing.conditions(paper, gamma1, run.iterations - 1)[:-2])
        closed = diminishing.printed(paper, run.start, run.iterations - 1, gamma1)
    kept = bool(np.isfinite(trajectory).all()) and gentle.holds
    for n, name in enumerate(("optimality", "consensus")):
        quantities[f"final_{name}"] = float(trajectory[-1, n]) if kept else math.nan
        if closed is not None:
            quantities[f"printed_final_{name}"] = float(closed[n])
    if run.epsilon is not None:
        met = np.flatnonzero(trajectory[:, 0] <= run.epsilon) if kept else np.array([])
        quantities |= {"epsilon": run.epsilon, "iterations": float(met[0]) if met.size else math.nan}
    theorem = "theorem:diminishing" if run.diminishing else "lemma:optimization, lemma:consensus at every k"
    return FamilyResult("strongly convex", theorem, quantities, _mixed(printed, needed), trajectory if kept else None)


# --- smooth non-convex losses -----------------------------------------------------------------------------------


def smooth(run: FamilyInputs, pairs: Sequence[tuple[float, float]]) -> FamilyResult | None:
    """theorem:nonconvex or theorem:nonconvex_diminishing with the pair (ζ, δ) that bounds least.

    None where the rate changes in a way that neither is about.
    """
    if not (run.constant_rate or run.diminishing):
        return None
    found = [_smooth(run, replace(run.constants, zeta=zeta, delta=delta)) for zeta, delta in pairs]
    return min(found, key=lambda s: (math.isnan(s.quantities["mean_gradient"]), s.quantities["mean_gradient"]))


def _smooth(run: FamilyInputs, c: Constants) -> FamilyResult:
    last, spread = run.iterations - 1, float(run.start[1])
    quantities = {"zeta": c.zeta, "delta": c.delta}
    if run.diminishing:
        c = replace(c, d_min=float(run.d_min[0]), d_max=float(run.d_max[0]), alpha=run.rate)
        kept = diminishing_nonconvex.best(c, run.excess, spread, last)
        as_printed = diminishing_nonconvex.best(c, run.excess, spread, last, "printed")
        quantities |= {"mean_gradient": _number(kept.total), "printed_mean_gradient": _number(as_printed.total)}
        conditions = _mixed(_up_to_failure(as_printed.conditions), _up_to_failure(kept.conditions))
        return FamilyResult("smooth, non-convex", "theorem:nonconvex_diminishing", quantities, conditions)
    c = c.at(float(run.alpha[0]))
    proved, stated = (nonconvex.best(c, run.excess, spread, last, form) for form in ("proved", "printed"))
    quantities |= {
        "gamma_rate": nonconvex.largest_rate(c),
        "printed_gamma_rate": nonconvex.largest_rate(c, "printed"),
        "mean_gradient": _number(proved.total),
        "printed_mean_gradient": _number(stated.total),
        "mean_gradient_limit": _number(proved.limit),
    }
    if proved.gammas is not None:
        for n, value in enumerate(vars(proved.gammas).values()):
            quantities[f"gamma{n}"] = value
    printed = nonconvex.requirements(c, "printed")[1:]  # the theorem drops the first
    conditions = _mixed(_up_to_failure(printed), _up_to_failure(nonconvex.requirements(c)))
    return FamilyResult("smooth, non-convex", "theorem:nonconvex", quantities, conditions)


def _up_to_failure(conditions: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Conditions up to the first that fails: each rests on those before it."""
    last = next((n for n, each in enumerate(conditions) if not each.holds), len(conditions))
    return list(conditions[: last + 1])


def _number(value: float) -> float:
    return value if math.isfinite(value) else math.nan
