"""The assessment of a configuration: constants that hold for all its seeds, and each algorithm's results."""

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
from dspodfl.theory.assess import families
from dspodfl.theory.assess.constants import ProblemConstants, estimate
from dspodfl.theory.assess.families import FamilyResult
from dspodfl.theory.assess.sporadicity import Sporadicity, sporadicity
from dspodfl.theory.formulas.constants import Constants

POINTS = 30
_MOST_ITERATIONS = 10**7
Cache = MutableMapping[str, ProblemConstants]
_SPORADICITY = ("d_min", "d_max", "rho_tilde")


@dataclass(frozen=True, eq=False)
class AlgorithmAssessment:
    """What the theorems give for one algorithm.

    Attributes:
        name: The label of the algorithm in the study.
        sporadicity: ρ̃, d_min and d_max over all seeds.
        results: One for each theorem family that applies; none where ρ̃ = 1.
    """

    name: str
    sporadicity: Sporadicity
    results: tuple[FamilyResult, ...]

    def result(self, family: str) -> FamilyResult | None:
        """Return the result of a family.

        Args:
            family: ``strongly convex``, ``PL`` or ``smooth, non-convex``.

        Returns:
            The result; None where that family does not apply.
        """
        return next((found for found in self.results if found.family == family), None)


@dataclass(frozen=True, eq=False)
class Assessment:
    """What the theorems give for a configuration.

    Attributes:
        config: The configuration, with its defaults resolved.
        seeds: The constants of the problem of each seed.
        algorithms: One assessment for each algorithm, in the order of the configuration.
        alpha: The learning rate of the first iteration.
        iterations: The last iteration of the longest run.
    """

    config: Config
    seeds: dict[int, ProblemConstants]
    algorithms: tuple[AlgorithmAssessment, ...]
    alpha: float
    iterations: int

    @property
    def constants(self) -> ProblemConstants:
        """Constants that hold for every seed: the worst of them. Expectations over seeds obey their bounds too."""
        return worst(list(self.seeds.values()))

    @property
    def families(self) -> list[str]:
        """The families that apply to one algorithm at least."""
        return list(dict.fromkeys(found.family for one in self.algorithms for found in one.results))

    def record(self) -> dict[str, Any]:
        """Return everything as plain values under the keys of result.json; NaN is null."""
        return {
            "guaranteed": self.constants.guaranteed,
            "alpha": self.alpha,
            "iterations": self.iterations,
            "constants": _plain(vars(self.constants)),
            "seeds": {str(seed): _plain(vars(found)) for seed, found in self.seeds.items()},
            "algorithms": {
                algorithm.name: {
                    **{name: getattr(algorithm.sporadicity, name) for name in _SPORADICITY},
                    "families": {
                        found.family: {
                            "theorem": found.theorem,
                            "quantities": _plain(found.labelled),
                            "conditions": [
                                _plain({"form": c.form, **vars(c.hypothesis), "holds": c.hypothesis.holds})
                                for c in found.conditions
                            ],
                        }
                        for found in algorithm.results
                    },
                }
                for algorithm in self.algorithms
            },
        }

    def table(self) -> pd.DataFrame:
        """Return a table with a row for each algorithm, family and quantity or condition."""
        rows: list[dict[str, Any]] = []
        for algorithm in self.algorithms:
            own, found = {"algorithm": algorithm.name}, algorithm.sporadicity
            rows += [{**own, "family": "", "what": name, "value": getattr(found, name)} for name in _SPORADICITY]
            for result in algorithm.results:
                of = {**own, "family": result.family}
                rows += [{**of, "what": label, "value": value} for label, value in result.labelled.items()]
                rows += [
                    {
                        **of,
                        "what": f"{c.form}: {c.hypothesis.name}",
                        "value": c.hypothesis.left,
                        "limit": c.hypothesis.right,
                        "holds": c.hypothesis.holds,
                    }
                    for c in result.conditions
                ]
        return pd.DataFrame(rows, columns=["algorithm", "family", "what", "value", "limit", "holds"])


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what is not finite is refused, or shown as missing
def assess(
    config: Config,
    epsilon: float | None = None,
    reach: float | None = None,
    points: int = POINTS,
    cache: Cache | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> Assessment:
    """Compute what the paper's theorems give for a configuration; nothing is trained.

    Args:
        config: The configuration of a study.
        epsilon: The error that iterations are counted to; None: twice the gap, or 1% of the initial error.
        reach: The radius of the ball around θ* over which σ of linear regression is the maximum; None: ‖θ(0) − θ*‖.
        points: Where constants must be measured, the number of points of the trajectory they are measured at.
        cache: The constants of problems by key; what is missing is added. It saves time over several configurations.
        on_progress: Called as ``on_progress(stage, share)`` on the way.

    Returns:
        Constants, and for each algorithm its sporadicity and the results of the theorem families that apply.

    Raises:
        InputError: An argument is out of its range, an algorithm or an order is not one that the theorems are about,
            or a number leaves the range of floating point.
        ConfigError: The configuration is not valid.
        DataError: Its data cannot be read.

    >>> from dspodfl import Config
    >>> study = Config(seeds=1, algorithms=["dgd"], data={"name": "ridge"}, train={"iterations": 50})
    >>> (dgd,) = assess(study).algorithms
    >>> [found.theorem for found in dgd.results]
    ['theorem:constant', 'theorem:nonconvex_pl', 'theorem:nonconvex']
    >>> dgd.sporadicity.d_min, dgd.sporadicity.rho_tilde < 1
    (1.0, True)
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
    if config.graph.directed:
        raise InputError("graph.directed", True, "false: the theorems are about links that carry models both ways")
    if config.attack is not None:
        raise InputError("attack.kind", config.attack.kind, "left out: the theorems are about honest clients")
    try:
        return _assessed(config, epsilon, reach, points, cache, on_progress, say)
    except (InputError, ConfigError, DataError):
        raise
    except (ArithmeticError, np.linalg.LinAlgError, ValueError) as error:
        what = f"{config.data.name}, {getattr(config.model, 'name', 'factory')}"
        allowed = f"a problem whose constants and bounds stay within floating point ({error})"
        raise InputError("theory", what, allowed) from error


def _assessed(
    config: Config,
    epsilon: float | None,
    reach: float | None,
    points: int,
    cache: Cache | None,
    on_progress: Callable[[str, float], None] | None,
    say: Callable[[str, float], None],
) -> Assessment:
    config, study = build(config, on_progress=on_progress)
    for run, rule in zip(study.runs, study.rules, strict=True):
        if fused_kernel(rule) != SIMULTANEOUS or run.inverse_cap is not None:
            allowed = "an algorithm of the rule simultaneous: the theorems are about Θ ← PΘ − αVG"
            raise InputError("algorithms", run.algorithm, allowed)
    if study.iterations > _MOST_ITERATIONS:
        raise InputError("train.iterations", study.iterations, f"at most {_MOST_ITERATIONS:,} for bounds over a run")
    longest = max(last_iterations(study.runs))
    alpha = study.runs[0].learning_rate(np.zeros(1, dtype=np.int64))
    seeds = {}
    for n, s in enumerate(study.settings):
        here = partial(_within, say, f"constants of seed {s.seed}", n, len(study.settings))
        here(0.0)
        seeds[s.seed] = _constants_of(config, study, s, float(alpha[0]), reach, points, cache, here)
    common = worst(list(seeds.values()))
    start = float(np.mean([found.distance or 0.0 for found in seeds.values()]))
    algorithms = []
    for n, name in enumerate(config.labels):
        say(f"bounds of {name}", n / len(config.algorithms))
        algorithms.append(_assess_algorithm(study, longest, name, config, common, start, epsilon))
    return Assessment(config, seeds, tuple(algorithms), float(alpha[0]), longest)


def _within(say: Callable[[str, float], None], stage: str, number: int, count: int, share: float) -> None:
    """A share of one of several parts, as a share of all of them."""
    say(stage, (number + share) / count)


def _constants_of(
    config: Config,
    study: Study,
    setting: Setting,
    alpha: float,
    reach: float | None,
    points: int,
    cache: Cache | None,
    on_share: Callable[[float], None] | None = None,
) -> ProblemConstants:
    """The constants of one seed's problem; those of an equal problem are taken from the cache."""
    problem = config.model_dump_json(include={"data", "model", "clients"})
    key = f"{problem} {setting.seed} {study.batch_size} {alpha} {reach} {points}"
    found = None if cache is None else cache.get(key)
    if found is None:
        found = estimate(study.model, setting.data, setting.seed, study.batch_size, alpha, reach, points, on_share)
        if cache is not None:
            cache[key] = found
    return found


def worst(seeds: list[ProblemConstants]) -> ProblemConstants:
    """Return constants that hold for all seeds: every bound here grows with β, δ, ζ, σ and falls with μ.

    Args:
        seeds: The constants of each seed, at least one.

    Returns:
        The largest β, δ, ζ and σ and the least μ; the mean of the distances and of the excess losses at the start.
    """
    first = seeds[0]

    def most(name: str) -> Any:
        values = [getattr(found, name) for found in seeds]
        return None if None in values else max(values)

    mus = [found.mu for found in seeds]
    source = dict(first.source)
    if first.reach is not None and len(seeds) > 1 and most("sigma") > 0:
        source["sigma"] = f"exact maximum over each seed's ball, ‖θ − θ*‖ ≤ {most('reach'):.4g}"
    return ProblemConstants(
        kind=first.kind,
        m=first.m,
        beta=most("beta"),
        sigma=most("sigma"),
        pairs=tuple(
            (max(p[0] for p in each), max(p[1] for p in each)) for each in zip(*(f.pairs for f in seeds), strict=True)
        ),
        excess=float(np.mean([found.excess for found in seeds])),
        source=source,
        mu=None if None in mus else min(mu for mu in mus if mu is not None),
        zeta=most("zeta"),
        delta=most("delta"),
        distance=None if first.distance is None else float(np.mean([found.distance or 0.0 for found in seeds])),
        reach=most("reach"),
    )


def _assess_algorithm(
    study: Study,
    longest: int,
    name: str,
    config: Config,
    problem: ProblemConstants,
    start: float,
    epsilon: float | None,
) -> AlgorithmAssessment:
    runs = [run for run in study.runs if run.algorithm == name]
    each = [sporadicity(run, longest) for run in runs]
    wide = (longest,)
    found = Sporadicity(
        np.min([np.broadcast_to(s.least, wide) for s in each], axis=0),
        np.max([np.broadcast_to(s.largest, wide) for s in each], axis=0),
        max(s.rho_tilde for s in each),
    )
    if not found.contracts:
        return AlgorithmAssessment(name, found, ())
    constants = Constants(
        m=problem.m,
        beta=problem.beta,
        rho_tilde=found.rho_tilde,
        mu=problem.mu,
        delta=problem.delta or 0.0,
        zeta=problem.zeta or 0.0,
        sigma=problem.sigma,
        d_min=found.d_min,
        d_max=found.d_max,
    )
    rate = runs[0].learning_rate
    inputs = families.FamilyInputs(
        constants=constants,
        rate=rate,
        growing=found.d_min == 1.0 or (config.rates.growth == "learning_rate" and config.rates.refresh == 0),
        alpha=rate(np.arange(longest)),
        d_min=found.least,
        d_max=found.largest,
        start=np.array([start, 0.0]),  # all clients begin with one model
        excess=problem.excess,
        epsilon=epsilon,
    )
    results = [families.smooth(inputs, problem.pairs)]
    if problem.mu is not None:
        results = [families.strongly_convex(inputs), families.polyak_lojasiewicz(inputs), *results]
    return AlgorithmAssessment(name, found, tuple(result for result in results if result is not None))


def _plain(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_plain(value) for value in values]
    if isinstance(values, float | np.floating):
        return float(values) if math.isfinite(values) else None
    return values
