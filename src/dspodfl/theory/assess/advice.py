"""Advice in sentences: whether this learning rate is safe, which one would be, and which hypothesis fails."""

from __future__ import annotations

from dspodfl.theory.assess.assessment import AlgorithmAssessment, Assessment
from dspodfl.theory.assess.families import FamilyResult


def advice(assessment: Assessment, algorithm: AlgorithmAssessment) -> list[str]:
    """Say what follows from the bounds of one algorithm.

    Args:
        assessment: The assessment of the configuration.
        algorithm: One of its algorithms.

    Returns:
        One sentence or two: whether the learning rate has a guarantee, which one would have, and what fails.
    """
    convex, smooth = algorithm.result("strongly convex"), algorithm.result("smooth, non-convex")
    if not algorithm.sporadicity.contracts:
        return ["no theorem applies: ρ̃ = 1 in some iteration, where mixing contracts nothing"]
    if convex is not None and "largest_rate" in convex.quantities:
        return _constant(assessment, algorithm, convex)
    if convex is not None:
        worst = convex.quantities["worst_radius"]
        outcome = "errors contract in every iteration" if worst < 1 else "errors need not contract in every iteration"
        return [f"the learning rate changes; {outcome}: ρ(Φ(k)) is at most {worst:.4g}"]
    if smooth is None:
        return ["no theorem is about this learning rate: make it constant, or diminishing with rates.growth"]
    most = smooth.quantities.get("gamma_rate")
    failing = [c.hypothesis for c in smooth.conditions if c.form == "corrected" and not c.hypothesis.holds]
    assuming = "" if assessment.constants.guaranteed else ", were the constants those measured"
    limit = f"; it {'does' if not assuming else 'would'} below α = {most:.4g}{assuming}" if most else assuming
    if failing:
        first = failing[0]
        return [
            f"the non-convex theorem says nothing: {first.name} fails ({first.left:.4g} ≥ {first.right:.4g}){limit}"
        ]
    return [f"the non-convex theorem {'applies' if not assuming else 'would apply'}{limit}"]


def _constant(assessment: Assessment, algorithm: AlgorithmAssessment, convex: FamilyResult) -> list[str]:
    constants, alpha = assessment.constants, assessment.alpha
    largest, printed = convex.quantities["largest_rate"], convex.quantities["printed_rate"]
    lines = []
    if largest == 0.0:
        assert constants.mu is not None
        least = 1.0 - constants.mu**2 / (2.0 * constants.beta**2)
        here = algorithm.sporadicity.d_min
        lines.append(f"no learning rate is safe: d_min must be above 1 − μ²/(2β²) = {least:.4g}, here it is {here:.4g}")
    elif alpha < largest:
        radius = convex.quantities["radius"]
        lines.append(f"α = {alpha:.4g} is safe: ρ(Φ) = {radius:.4g} < 1, and so is every α below {largest:.4g}")
    else:
        lines.append(f"α = {alpha:.4g} has no guarantee: every α below {largest:.4g} has one")
    if printed > largest:
        lines.append(
            f"the printed condition would allow α up to {printed:.4g}, where ρ(Φ) ≥ 1: it is not sufficient here"
        )
    return lines
