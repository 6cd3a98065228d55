"""Measure with the engine what docs/theory.md compares with the bounds, and write it to docs/theory/*.csv.

    python -m scripts.theory_measured [tightness contraction gaps families]

Ridge regression, a non-convex and a PL problem with every constant known (tests/theory/worlds.py), hundreds of seeds
stacked. About ten minutes on one core. scripts/theory_page.py makes the page's pictures and tables of it.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import torch
from tests.theory.worlds import Place, RidgeWorld, WavesWorld, WellsWorld

from dspodfl.network import Graph
from dspodfl.theory.formulas import convex, nonconvex, pl, spectral

TARGET = Path(__file__).resolve().parents[1] / "docs" / "theory"
GRAPHS: dict[str, dict[str, float]] = {"path": {}, "ring": {}, "star": {}, "geometric": {"radius": 0.6}, "complete": {}}
PURE_MIXING = {"kind": "step", "value": 0.1, "every": 10, "factor": 1e-30}
"""Ten steps that drive the models apart, and then mixing alone."""


def error(sample: np.ndarray) -> np.ndarray:
    """Standard error of a mean over seeds, the first axis."""
    return np.asarray(sample.std(axis=0, ddof=1) / np.sqrt(len(sample)))


def tightness(seeds: int = 200, iterations: int = 60) -> pd.DataFrame:
    """One-step and multi-step errors of ridge regression over lemma:optimization and lemma:consensus."""
    rows = []
    levels = itertools.product(GRAPHS, (0.0, 0.1, 0.4), ((1.0, 1.0), (0.95, 0.7), (0.8, 0.4)))
    for kind, heterogeneity, (d, b) in levels:
        world = RidgeWorld.make(Place.of(kind, 6, d, b, **GRAPHS[kind]), heterogeneity, 0.3)
        free = world.constants()
        c = free.at(0.7 * convex.largest_rate(free))
        system = convex.recursion(c)
        found = world.errors(c.step, iterations, seeds)
        mean = found.mean(axis=0)
        left = found[:, 1:] - found[:, :-1] @ system.phi.T
        with np.errstate(invalid="ignore", divide="ignore"):
            one = mean[1:] / (mean[:-1] @ system.phi.T + system.psi)
            bound = system.propagate(mean[0], iterations)
            many = mean[1:] / bound[1:]
            z_one = (left.mean(axis=0) - system.psi) / error(left)
            z_many = (mean[1:] - bound[1:]) / error(found[:, 1:])
        for n, name in enumerate(("optimality", "consensus")):
            rows.append(
                {
                    "graph": kind, "heterogeneity": heterogeneity, "d": d, "b": b, "error": name,
                    "rho_tilde": free.rho_tilde, "zeta": free.zeta, "delta": free.delta, "alpha": c.step,
                    "one_step_median": np.nanmedian(one[:, n]), "one_step_largest": np.nanmax(one[:, n]),
                    "many_steps_largest": np.nanmax(many[:, n]), "many_steps_last": many[-1, n],
                    "standard_errors_above": max(np.nanmax(z_one[:, n]), np.nanmax(z_many[:, n])), "seeds": seeds,
                }
            )  # fmt: skip
        print(kind, heterogeneity, d, b, flush=True)
    return pd.DataFrame(rows)


def contraction(seeds: int = 200) -> pd.DataFrame:
    """The slope of ln E‖Θ − 1θ̄‖² under mixing alone, compared with ρ̃ and the exact rate in mean square."""
    rows = []
    bipartite = Graph.from_networkx(nx.complete_bipartite_graph(3, 3))
    for kind, b in itertools.product(("complete", "bipartite", "ring", "star", "path"), (0.2, 0.4, 0.6, 0.8, 1.0)):
        place = Place.of(kind, 6, 1.0, b) if kind != "bipartite" else Place(bipartite, np.ones(6), np.full(9, b))
        found = RidgeWorld.make(place, 0.5, 1.0).errors(PURE_MIXING, 90, seeds)[:, 10:, 1]
        k = np.arange(found.shape[1])

        def fit(sample: np.ndarray, k: np.ndarray = k) -> float:
            mean = sample.mean(axis=0)
            last = int(k[mean > 1e-5 * mean[0]][-1])  # later, the mean hangs on the few seeds that contracted least
            use = (k >= last / 3) & (k <= last)  # earlier, on directions that die out
            return float(np.exp(np.polyfit(k[use], np.log(mean[use]), 1)[0])) if use.sum() > 2 else 0.0

        parts = np.array_split(np.arange(seeds), 20)
        left_out = [fit(np.delete(found, part, axis=0)) for part in parts]
        rows.append(
            {
                "graph": kind, "b": b, "rho_tilde": place.rho_tilde,
                "mean_square_rate": spectral.mean_square_rate(place.graph, place.r, place.b),
                "fitted": fit(found), "fitted_error": float(np.std(left_out) * np.sqrt(19)), "seeds": seeds,
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def gaps(seeds: int = 60) -> pd.DataFrame:
    """Errors after they have settled, against α and 1 − d_min, and the gap of the recursion."""
    rows = []

    def settle(setting: str, x: float, world: RidgeWorld, alpha: float) -> None:
        free = world.constants()
        world = replace(world, start=np.float32(world.problem.theta))
        burn = int(3 / (free.mu * alpha))
        found = world.errors(alpha, burn + 200, seeds, every=10)[:, burn // 10 :].mean(axis=1)
        gap = convex.recursion(free.at(alpha)).gap
        for n, name in enumerate(("optimality", "consensus")):
            rows.append(
                {
                    "setting": setting, "x": x, "error": name, "alpha": alpha, "d_min": free.d_min,
                    "measured": found[:, n].mean(), "measured_error": error(found)[n], "bound": gap[n], "seeds": seeds,
                }
            )  # fmt: skip
        print(rows[-2], flush=True)

    shares = np.geomspace(0.03, 0.5, 5)
    for name, sigma, heterogeneity in (("α, noise", 1.0, 0.1), ("α, no noise", 0.0, 0.3)):
        world = RidgeWorld.make(Place.of("ring", 4, 1.0, 0.7), heterogeneity, sigma)
        for share in shares:
            rate = float(share * convex.largest_rate(world.constants()))
            settle(name, rate, world, rate)
    for name, even in (("1 − d_min, one client seldom", False), ("1 − d_min, all alike", True)):
        for idle in (0.01, 0.02, 0.05, 0.1, 0.2):
            d = np.full(4, 1.0 - idle) if even else np.array([1.0 - idle, 1.0, 1.0, 1.0])
            world = RidgeWorld.make(Place.of("complete", 4, d, 0.9), 0.3, 0.0)
            settle(name, idle, world, 0.01)
    return pd.DataFrame(rows)


def families(seeds: int = 100, iterations: int = 300) -> pd.DataFrame:
    """The non-convex and the PL problem compared with their theorems, iteration by iteration."""
    place = Place.of("ring", 4, np.array([0.7, 0.9, 1.0, 0.8]), 0.6)
    wells = WellsWorld.make(place, 0.3, 0.3)
    c = wells.constants()
    c = c.at(0.8 * nonconvex.largest_rate(c))
    seen = wells.states(c.step, iterations, seeds)
    norm = (wells.gradient(seen.mean(axis=2)) ** 2).sum(axis=-1).T  # (seeds, rows)
    running = np.cumsum(norm, axis=1) / np.arange(1, iterations + 2)
    excess = float(wells.loss(wells.start.astype(float)))
    rows = []
    for k in range(0, iterations + 1, 5):
        bound = {form: nonconvex.best(c, excess, 0.0, k, form).total for form in ("proved", "printed")}  # type: ignore[arg-type]
        rows.append(
            (
                "non-convex",
                "mean ‖∇F(θ̄)‖²",
                k,
                running[:, k].mean(),
                error(running)[k],
                bound["proved"],
                bound["printed"],
            )
        )
    waves, iterations, every = WavesWorld.make(Place.of("complete", 4, [0.995, 1.0, 1.0, 1.0], 0.8), 0.1, 0.2), 5000, 50
    c = waves.constants()
    c = c.at(0.5 * pl.largest_rate(c))
    seen = waves.states(c.step, iterations, seeds, every)
    mean = seen.mean(axis=2)
    nu = np.stack([waves.loss(mean).T, ((seen - mean[:, :, None]) ** 2).sum(axis=(2, 3)).T], axis=-1)
    system, start, k = pl.recursion(c), nu[:, 0].mean(axis=0), np.arange(0, iterations + 1, every)
    bound, printed = system.propagate(start, iterations)[k], system.printed(start, iterations)[k]
    for n, name in enumerate(("F(θ̄) − F*", "‖Θ − 1θ̄‖²")):
        pairs = zip(k, nu[:, :, n].mean(axis=0), error(nu)[:, n], bound[:, n], printed[:, n], strict=True)
        rows += [("PL", name, *found) for found in pairs]
    return pd.DataFrame(
        rows, columns=["family", "error", "iteration", "measured", "measured_error", "bound", "printed"]
    )


WHAT = {"tightness": tightness, "contraction": contraction, "gaps": gaps, "families": families}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*WHAT, []], help="which tables; default: all")
    torch.set_num_threads(1)
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().what or WHAT:
        WHAT[name]().to_csv(TARGET / f"{name}.csv", index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
