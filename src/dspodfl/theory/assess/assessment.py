"""What the theory says of a configuration: one set of constants for all its seeds, and each algorithm's statements."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dspodfl.algorithms import SIMULTANEOUS, fused_kernel
from dspodfl.config import Config
from dspodfl.engine import last_iterations
from dspodfl.errors import ConfigError, DataError, InputError
from dspodfl.study import Setting, Study, build
from dspodfl.theory.assess import families as statement
from dspodfl.theory.assess.constants import Knowledge, know
from dspodfl.theory.assess.families import Statement
from dspodfl.theory.assess.sporadicity import Sporadicity, sporadicity
from dspodfl.theory.formulas.constants import Constants

POINTS = 30
_MOST_ITERATIONS = 10**7
Cache = MutableMapping[str, Knowledge]


@dataclass(frozen=True, eq=False)
class Case:
    """One algorithm: how sporadic it is over all seeds, and what follows; no statements where ρ̃ = 1."""

    algorithm: str
    sporadicity: Sporadicity
    statements: tuple[Statement, ...]

    def statement(self, family: str) -> Statement | None:
        """The statement of a family."""
        return next((s for s in self.statements if s.family == family), None)


@dataclass(frozen=True, eq=False)
class Appraisal:
    """A configuration, what is known of its problem in every seed, and a case for each algorithm."""

    config: Config
    known: dict[int, Knowledge]
    cases: tuple[Case, ...]
    alpha: float
    iterations: int
    """The last iteration of the longest run."""

    @property
    def knowledge(self) -> Knowledge:
        """Constants that hold for every seed: the worst of them. Expectations over seeds obey their bounds too."""
        return worst(list(self.known.values()))

    @property
    def families(self) -> list[str]:
        """The families that say something of any case."""
        return list(dict.fromkeys(s.family for case in self.cases for s in case.statements))

    def record(self) -> dict[str, Any]:
        """Everything, as plain values; NaN is null."""
        return {
            "guaranteed": self.knowledge.guaranteed,
            "alpha": self.alpha,
            "iterations": self.iterations,
            "constants": _plain(vars(self.knowledge)),
            "seeds": {str(seed): _plain(vars(found)) for seed, found in self.known.items()},
            "algorithms": {
                case.algorithm: {
                    "d_min": case.sporadicity.d_min,
                    "d_max": case.sporadicity.d_max,
                    "rho_tilde": case.sporadicity.rho_tilde,
                    "families": {
                        s.family: {
                            "theorem": s.theorem,
                            "quantities": _plain(s.labelled),
                            "conditions": [
                                _plain({"form": c.form, **vars(c.hypothesis), "holds": c.hypothesis.holds})
                                for c in s.conditions
                            ],
                        }
                        for s in case.statements
                    },
                }
                for case in self.cases
            },
        }

    def table(self) -> pd.DataFrame:
        """A row for each algorithm, family and quantity or condition."""
        rows: list[dict[str, Any]] = []
        for case in self.cases:
            own = {"algorithm": case.algorithm}
            names = ("d_min", "d_max", "rho_tilde")
            rows += [{**own, "family": "", "what": n, "value": getattr(case.sporadicity, n)} for n in names]
            for s in case.statements:
                rows += [{**own, "family": s.family, "what": name, "value": v} for name, v in s.labelled.items()]
                rows += [
                    {
                        **own,
                        "family": s.family,
                        "what": f"{c.form}: {c.hypothesis.name}",
                        "value": c.hypothesis.left,
                        "limit": c.hypothesis.right,
                        "holds": c.hypothesis.holds,
                    }
                    for c in s.conditions
                ]
        return pd.DataFrame(rows, columns=["algorithm", "family", "what", "value", "limit", "holds"])


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what is not finite is refused, or shown as missing
def appraise(
    config: Config,
    epsilon: float | None = None,
    reach: float | None = None,
    points: int = POINTS,
    cache: Cache | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> Appraisal:
    """The theory of a configuration. What is known of equal problems is taken from a ``cache``, and put there.

    ``on_progress(stage, share)`` is called on the way.
    """
    say = on_progress or (lambda stage, share: None)
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise InputError("--epsilon", epsilon, "a finite number above 0")
    if reach is not None and not 0 <= reach < math.inf:
        raise InputError("--reach", reach, "a finite number, at least 0")
    if points < 2:
        raise InputError("--points", points, "an integer of at least 2")
    if config.train.order != "simultaneous":
        raise InputError("train.order", config.train.order, "simultaneous: the theorems are about Θ ← PΘ − αVG")
    try:
        return _appraised(config, epsilon, reach, points, cache, on_progress, say)
    except (InputError, ConfigError, DataError):
        raise
    except (ArithmeticError, np.linalg.LinAlgError, ValueError) as error:
        what = f"{config.data.name}, {getattr(config.model, 'name', 'factory')}"
        allowed = f"a problem whose constants and bounds stay within floating point ({error})"
        raise InputError("theory", what, allowed) from error


def _appraised(
    config: Config,
    epsilon: float | None,
    reach: float | None,
    points: int,
    cache: Cache | None,
    on_progress: Callable[[str, float], None] | None,
    say: Callable[[str, float], None],
) -> Appraisal:
    config, study = build(config, on_progress=on_progress)
    for run, rule in zip(study.runs, study.rules, strict=True):
        if fused_kernel(rule) != SIMULTANEOUS:
            allowed = "an algorithm of the rule simultaneous: the theorems are about Θ ← PΘ − αVG"
            raise InputError("algorithms", run.algorithm, allowed)
    if study.iterations > _MOST_ITERATIONS:
        raise InputError("train.iterations", study.iterations, f"at most {_MOST_ITERATIONS:,} for bounds over a run")
    longest = max(last_iterations(study.runs))
    alpha = study.runs[0].learning_rate(np.zeros(1, dtype=np.int64))
    known = {}
    for n, s in enumerate(study.settings):
        here = partial(_within, say, f"constants of seed {s.seed}", n, len(study.settings))
        here(0.0)
        known[s.seed] = _known(config, study, s, float(alpha[0]), reach, points, cache, here)
    common = worst(list(known.values()))
    start = float(np.mean([found.distance or 0.0 for found in known.values()]))
    cases = []
    for n, name in enumerate(config.labels):
        say(f"bounds of {name}", n / len(config.algorithms))
        cases.append(_case(study, longest, name, config, common, start, epsilon))
    return Appraisal(config, known, tuple(cases), float(alpha[0]), longest)


def _within(say: Callable[[str, float], None], stage: str, number: int, count: int, share: float) -> None:
    """A share of one of several parts, as a share of all of them."""
    say(stage, (number + share) / count)


def _known(
    config: Config,
    study: Study,
    setting: Setting,
    alpha: float,
    reach: float | None,
    points: int,
    cache: Cache | None,
    on_share: Callable[[float], None] | None = None,
) -> Knowledge:
    """What is known of one seed's problem; of an equal one before, it is known already."""
    problem = config.model_dump_json(include={"data", "model", "clients"})
    key = f"{problem} {setting.seed} {study.batch_size} {alpha} {reach} {points}"
    found = None if cache is None else cache.get(key)
    if found is None:
        found = know(study.model, setting.data, setting.seed, study.batch_size, alpha, reach, points, on_share)
        if cache is not None:
            cache[key] = found
    return found


def worst(known: list[Knowledge]) -> Knowledge:
    """What holds for all: every bound here grows with β, δ, ζ, σ and falls with μ."""
    first = known[0]

    def most(name: str) -> Any:
        values = [getattr(found, name) for found in known]
        return None if None in values else max(values)

    mus = [found.mu for found in known]
    source = dict(first.source)
    if first.reach is not None and len(known) > 1:
        source["sigma"] = f"exact maximum over each seed's ball, ‖θ − θ*‖ ≤ {most('reach'):.4g}"
    return Knowledge(
        kind=first.kind,
        m=first.m,
        beta=most("beta"),
        sigma=most("sigma"),
        pairs=tuple(
            (max(p[0] for p in each), max(p[1] for p in each)) for each in zip(*(f.pairs for f in known), strict=True)
        ),
        excess=float(np.mean([found.excess for found in known])),
        source=source,
        mu=None if None in mus else min(mu for mu in mus if mu is not None),
        zeta=most("zeta"),
        delta=most("delta"),
        distance=None if first.distance is None else float(np.mean([found.distance or 0.0 for found in known])),
        reach=most("reach"),
    )


def _case(
    study: Study,
    longest: int,
    name: str,
    config: Config,
    known: Knowledge,
    start: float,
    epsilon: float | None,
) -> Case:
    runs = [run for run in study.runs if run.algorithm == name]
    each = [sporadicity(run, longest) for run in runs]
    wide = (longest,)
    found = Sporadicity(
        np.min([np.broadcast_to(s.least, wide) for s in each], axis=0),
        np.max([np.broadcast_to(s.largest, wide) for s in each], axis=0),
        max(s.rho_tilde for s in each),
    )
    if not found.contracts:
        return Case(name, found, ())
    constants = Constants(
        m=known.m,
        beta=known.beta,
        rho_tilde=found.rho_tilde,
        mu=known.mu,
        delta=known.delta or 0.0,
        zeta=known.zeta or 0.0,
        sigma=known.sigma,
        d_min=found.d_min,
        d_max=found.d_max,
    )
    rate = runs[0].learning_rate
    about = statement.Run(
        constants=constants,
        rate=rate,
        growing=found.d_min == 1.0 or (config.rates.growth == "learning_rate" and config.rates.refresh == 0),
        alpha=rate(np.arange(longest)),
        d_min=found.least,
        d_max=found.largest,
        start=np.array([start, 0.0]),  # all clients begin with one model
        excess=known.excess,
        epsilon=epsilon,
    )
    said = [statement.smooth(about, known.pairs)]
    if known.mu is not None:
        said = [statement.strongly_convex(about), statement.polyak_lojasiewicz(about), *said]
    return Case(name, found, tuple(s for s in said if s is not None))


def _plain(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_plain(value) for value in values]
    if isinstance(values, float | np.floating):
        return float(values) if math.isfinite(values) else None
    return values
