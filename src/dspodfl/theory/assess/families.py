"""What one theorem family says of one run: quantities, conditions with their numbers, and the course it predicts.

To add a bound, add a `Quantity` to the list, and its number to the statement of its family, by its name. It is printed,
recorded, tabulated and swept from there.
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


@dataclass(frozen=True)
class Quantity:
    """A number that a family states.

    Attributes:
        name: what code calls it.
        label: what people read, in tables and records.
        column: the head of its column in the table of a sweep; None where it has none of its own.
        fills: the column that it fills where that is another quantity's.
    """

    name: str
    label: str
    column: str | None = None
    fills: str | None = None


_ERRORS = {"optimality": "‖θ̄ − θ*‖²", "excess": "F(θ̄) − F*", "consensus": "‖Θ − 1θ̄‖²"}
_MEAN = "mean ‖∇F(θ̄)‖² over 0 … K, at most"
_LISTED = (
    Quantity("printed_rate", "largest α by the printed condition", "largest α,\nprinted"),
    Quantity("corrected_rate", "largest α by the corrected condition", "largest α,\ncorrected"),
    Quantity("largest_rate", "largest α with ρ(Φ) < 1", "largest α,\nρ(Φ) < 1"),
    Quantity("radius", "ρ(Φ)", "ρ(Φ)"),
    Quantity("printed_radius", "ρ(Φ) by the printed closed form"),
    Quantity("worst_radius", "largest ρ(Φ(k))", fills="radius"),
    Quantity("last_radius", "last ρ(Φ(k))"),
    Quantity("gap_optimality", f"gap of {_ERRORS['optimality']}", f"gap of\n{_ERRORS['optimality']}"),
    Quantity("gap_excess", f"gap of {_ERRORS['excess']}"),
    Quantity("gap_consensus", f"gap of {_ERRORS['consensus']}", f"gap of\n{_ERRORS['consensus']}"),
    *(Quantity(f"printed_gap_{key}", f"gap of {name} as printed") for key, name in _ERRORS.items()),
    *(Quantity(f"final_{key}", f"{name} after K, at most") for key, name in _ERRORS.items()),
    *(Quantity(f"printed_final_{key}", f"{name} after K, as printed") for key, name in _ERRORS.items()),
    Quantity("epsilon", "ε"),
    Quantity("iterations", f"iterations to {_ERRORS['optimality']} ≤ ε", "iterations\nto ε"),
    Quantity("iterations_excess", f"iterations to {_ERRORS['excess']} ≤ ε"),
    Quantity("zeta", "ζ taken"),
    Quantity("delta", "δ taken"),
    Quantity("gamma_rate", "largest α for which Γ exist", fills="largest_rate"),
    Quantity("printed_gamma_rate", "largest α for which Γ exist, as printed"),
    Quantity("mean_gradient", _MEAN, "mean ‖∇F‖²\nat most"),
    Quantity("printed_mean_gradient", f"{_MEAN}, as printed"),
    Quantity("mean_gradient_limit", "its limit as K → ∞"),
    *(Quantity(f"gamma{n}", f"Γ{sign}, optimized") for n, sign in enumerate("₀₁₂₃₄")),
    # A new quantity is added here.
)
QUANTITIES = {quantity.name: quantity for quantity in _LISTED}
"""Every number that a family may state, by name."""


@dataclass(frozen=True)
class Condition:
    """A hypothesis as the paper prints it, or one that the result does need."""

    form: Form
    hypothesis: Hypothesis


@dataclass(frozen=True, eq=False)
class Statement:
    """One family's word on one run.

    ``quantities``: the name of one of `QUANTITIES` to its number, NaN where there is none. ``course``: ν after each
    iteration, exactly propagated, ``printed``: the same by the printed closed form, ``gap``: its limit; shapes
    (iterations + 1, 2), the same, (2,).
    """

    family: str
    theorem: str
    quantities: dict[str, float]
    conditions: tuple[Condition, ...]
    course: Floats | None = None
    printed: Floats | None = None
    gap: Floats | None = None

    @property
    def labelled(self) -> dict[str, float]:
        """The quantities by what people call them."""
        return {QUANTITIES[name].label: value for name, value in self.quantities.items()}


@dataclass(frozen=True, eq=False)
class Run:
    """What a statement is about: constants that hold throughout, α(k), d_min(k), d_max(k) and how it begins.

    Shapes: alpha, d_min, d_max (iterations,); ``start`` (2,) = (‖θ̄(0) − θ*‖², ‖Θ(0) − 1θ̄(0)‖²).
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


def strongly_convex(run: Run) -> Statement:
    """theorem:constant, or the same lemmas iteration by iteration where rates change."""
    c = run.constants
    if not run.constant_rate:
        return _changing(run)
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
    return _settled(
        run, "strongly convex", "theorem:constant", system, quantities, gap, _mixed((first, rest[-1]), needed)
    )


def polyak_lojasiewicz(run: Run) -> Statement | None:
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
    found = _settled(
        run, "PL", "theorem:nonconvex_pl", system, quantities, pl.printed_gap(at), _mixed((first,), needed)
    )
    return replace(found, course=None, printed=None)


def _settled(
    run: Run,
    family: str,
    theorem: str,
    system: Recursion,
    quantities: dict[str, float],
    printed_gap: Floats,
    conditions: tuple[Condition, ...],
) -> Statement:
    """Gap, course and iterations of a recursion at a constant rate."""
    converges = system.radius < 1.0
    gap = system.gap
    names = ("excess" if family == "PL" else "optimality", "consensus")
    until = "iterations_excess" if family == "PL" else "iterations"
    course = system.propagate(run.start, run.iterations) if converges else None
    for n, name in enumerate(names):
        quantities[f"gap_{name}"] = float(gap[n]) if converges else math.nan
        quantities[f"printed_gap_{name}"] = float(printed_gap[n]) if printed_gap[n] >= 0 else math.nan
        quantities[f"final_{name}"] = float(course[-1, n]) if course is not None else math.nan
    epsilon = run.epsilon or max(2.0 * float(gap[0]), 0.01 * float(run.start[0]))
    if converges and epsilon > 0:
        reached = system.iterations_to(run.start, epsilon)
        quantities |= {"epsilon": epsilon, until: math.nan if reached is None else reached}
    else:
        quantities |= {"epsilon": run.epsilon or math.nan, until: math.nan}
    printed = system.printed(run.start, run.iterations) if converges else None
    return Statement(family, theorem, quantities, conditions, course, printed, gap if converges else None)


def _changing(run: Run) -> Statement:
    c = run.constants
    phi, psi = convex.system(c, run.alpha, run.d_min, run.d_max)
    worst = float(radius(phi).max())
    course = propagate(phi, psi, run.start)
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
    kept = bool(np.isfinite(course).all()) and gentle.holds
    for n, name in enumerate(("optimality", "consensus")):
        quantities[f"final_{name}"] = float(course[-1, n]) if kept else math.nan
        if closed is not None:
            quantities[f"printed_final_{name}"] = float(closed[n])
    if run.epsilon is not None:
        met = np.flatnonzero(course[:, 0] <= run.epsilon) if kept else np.array([])
        quantities |= {"epsilon": run.epsilon, "iterations": float(met[0]) if met.size else math.nan}
    theorem = "theorem:diminishing" if run.diminishing else "lemma:optimization, lemma:consensus at every k"
    return Statement("strongly convex", theorem, quantities, _mixed(printed, needed), course if kept else None)


# --- smooth non-convex losses -----------------------------------------------------------------------------------


def smooth(run: Run, pairs: Sequence[tuple[float, float]]) -> Statement | None:
    """theorem:nonconvex or theorem:nonconvex_diminishing with the pair (ζ, δ) that bounds least.

    None where the rate changes in a way that neither is about.
    """
    if not (run.constant_rate or run.diminishing):
        return None
    found = [_smooth(run, replace(run.constants, zeta=zeta, delta=delta)) for zeta, delta in pairs]
    return min(found, key=lambda s: (math.isnan(s.quantities["mean_gradient"]), s.quantities["mean_gradient"]))


def _smooth(run: Run, c: Constants) -> Statement:
    last, spread = run.iterations - 1, float(run.start[1])
    quantities = {"zeta": c.zeta, "delta": c.delta}
    if run.diminishing:
        c = replace(c, d_min=float(run.d_min[0]), d_max=float(run.d_max[0]), alpha=run.rate)
        kept = diminishing_nonconvex.best(c, run.excess, spread, last)
        said = diminishing_nonconvex.best(c, run.excess, spread, last, "printed")
        quantities |= {"mean_gradient": _number(kept.total), "printed_mean_gradient": _number(said.total)}
        conditions = _mixed(_told(said.conditions), _told(kept.conditions))
        return Statement("smooth, non-convex", "theorem:nonconvex_diminishing", quantities, conditions)
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
    conditions = _mixed(_told(printed), _told(nonconvex.requirements(c)))
    return Statement("smooth, non-convex", "theorem:nonconvex", quantities, conditions)


def _told(conditions: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Each rests on those before it: past one that fails there is nothing to tell."""
    last = next((n for n, each in enumerate(conditions) if not each.holds), len(conditions))
    return list(conditions[: last + 1])


def _number(value: float) -> float:
    return value if math.isfinite(value) else math.nan
