"""What to do with the bounds, in sentences: is this learning rate safe, what would be, which hypothesis fails."""

from __future__ import annotations

from dspodfl.theory.assess.assessment import Appraisal, Case
from dspodfl.theory.assess.families import Statement


def advice(found: Appraisal, case: Case) -> list[str]:
    """Sentences about one algorithm."""
    convex, smooth = case.statement("strongly convex"), case.statement("smooth, non-convex")
    if not case.sporadicity.contracts:
        return ["no theorem applies: ρ̃ = 1 in some iteration, where mixing contracts nothing"]
    if convex is not None and "largest_rate" in convex.quantities:
        return _constant(found, case, convex)
    if convex is not None:
        worst = convex.quantities["worst_radius"]
        word = "errors contract in every iteration" if worst < 1 else "errors need not contract in every iteration"
        return [f"the learning rate changes; {word}: ρ(Φ(k)) is at most {worst:.4g}"]
    if smooth is None:
        return ["no theorem is about this learning rate: make it constant, or diminishing with rates.growth"]
    most = smooth.quantities.get("gamma_rate")
    failing = [c.hypothesis for c in smooth.conditions if c.form == "corrected" and not c.hypothesis.holds]
    assuming = "" if found.knowledge.guaranteed else ", were the constants those measured"
    limit = f"; it {'does' if not assuming else 'would'} below α = {most:.4g}{assuming}" if most else assuming
    if failing:
        why = failing[0]
        return [f"the non-convex theorem says nothing: {why.name} fails ({why.left:.4g} ≥ {why.right:.4g}){limit}"]
    return [f"the non-convex theorem {'applies' if not assuming else 'would apply'}{limit}"]


def _constant(found: Appraisal, case: Case, convex: Statement) -> list[str]:
    known, alpha = found.knowledge, found.alpha
    largest, printed = convex.quantities["largest_rate"], convex.quantities["printed_rate"]
    lines = []
    if largest == 0.0:
        assert known.mu is not None
        least = 1.0 - known.mu**2 / (2.0 * known.beta**2)
        here = case.sporadicity.d_min
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
