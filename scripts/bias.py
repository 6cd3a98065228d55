"""Measure and draw where DSpodFL ends as α falls, for docs/algorithms.md: ``python -m scripts.bias``.

    python -m scripts.bias              # run it, and write docs/algorithms/bias.csv and bias.png; about a minute
    python -m scripts.bias --draw       # draw what bias.csv has

The problem is that of ``dspodfl reproduce algorithms-ridge``, with one graph, one draw of the data and of the rates;
seeds differ in their events alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import dspodfl
from dspodfl.analysis.figures import STYLE, picture
from dspodfl.experiments import definition
from dspodfl.study import build

CSV = Path(__file__).parents[1] / "docs" / "algorithms" / "bias.csv"
INVERSE = "DSpodFL, α/d"
METHODS = [
    "dspodfl",
    {"name": "dspodfl", "label": INVERSE, "settings": {"inverse_rates": True}},
    "gradient_tracking",
    "sporadic_scaffnew",
]
RATES = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
SEEDS, TIME, DRAW = 20, 40.0, 3
"""Seeds, α times the number of iterations, and the seed that graph, data and rates are drawn with."""
_LEAST = 1e-6
_LINES = {
    ("dspodfl", "mean"): ("#0072B2", "-", "o", "DSpodFL to θ*"),
    ("dspodfl", "weighted"): ("#0072B2", (0, (4, 2)), "s", "DSpodFL to θ*_d"),
    (INVERSE, "mean"): ("#D55E00", "-", "^", "DSpodFL, α/d, to θ*"),
    ("gradient_tracking", "mean"): ("#009E73", "-", "v", "gradient tracking to θ*"),
    ("sporadic_scaffnew", "mean"): ("#CC79A7", (0, (1, 1)), "D", "sporadic Scaffnew to θ*"),
}


def config(alpha: float, iterations: int, seeds: int = SEEDS) -> dspodfl.Config:
    """Give the study at a learning rate."""
    base = definition.named("algorithms-ridge").base
    tables = {name: base[name] | {"seed": DRAW} for name in ("graph", "rates", "data")}
    train = base["train"] | {
        "until": {"iterations": iterations},
        "learning_rate": {"kind": "constant", "value": alpha},
    }
    more = {"algorithms": METHODS, "seeds": seeds, "train": train, "eval": {"every": iterations}}
    return dspodfl.Config(**(base | tables | more))


def targets(study: dspodfl.Config) -> dict[str, np.ndarray]:
    """Give θ*, the minimizer of Σ F_i, and θ*_d, that of Σ d_i F_i."""
    run = build(study)[1].runs[0]
    data, l2 = run.data, float(run.data.report["l2"])
    d = np.asarray(dspodfl.run(config(0.1, 1, 1), device="cpu").settings[0]["d"], dtype=float)
    x, y = (np.asarray(part, dtype=float) for part in (data.dataset.x_train, data.dataset.y_train))
    out = {}
    for name, weight in (("mean", np.ones(len(d))), ("weighted", d)):
        left, right = np.zeros((x.shape[1], x.shape[1])), np.zeros(x.shape[1])
        for share, rows in zip(weight, data.shards, strict=True):
            left += share * (x[rows].T @ x[rows] / len(rows) + l2 * np.eye(x.shape[1]))
            right += share * (x[rows].T @ y[rows].reshape(-1)) / len(rows)
        out[name] = np.linalg.solve(left, right)
    return out


def measured(rates: tuple[float, ...] = RATES, seeds: int = SEEDS, time: float = TIME) -> pd.DataFrame:
    """Run the methods at learning rates, each for time/α iterations.

    Args:
        rates: The learning rates.
        seeds: The number of seeds.
        time: α times the number of iterations.

    Returns:
        A row for each rate, method and minimizer: the root of the mean over seeds of the squared distance of θ̄.
    """
    points, rows = targets(config(rates[0], 1, 1)), []
    for alpha in rates:
        found = dspodfl.run(config(alpha, round(time / alpha), seeds), device="cpu")
        for method in dict.fromkeys(algorithm for algorithm, _ in found.stacked):
            held = [models for (name, _), models in found.stacked.items() if name == method]
            means = [next(iter(models.values())).double().mean(dim=0).reshape(-1).numpy() for models in held]
            for name, point in points.items():
                distance = float(np.sqrt(np.mean([np.sum((mean - point) ** 2) for mean in means])))
                rows.append({"alpha": alpha, "algorithm": method, "minimizer": name, "distance": distance})
    rows.append({"alpha": 0.0, "algorithm": "", "minimizer": "apart", "distance": _apart(points)})
    return pd.DataFrame(rows)


def _apart(points: dict[str, np.ndarray]) -> float:
    return float(np.linalg.norm(points["mean"] - points["weighted"]))


def drawn(table: pd.DataFrame) -> Figure:
    """Draw distances against α."""
    apart = float(table.loc[table["minimizer"] == "apart", "distance"].iloc[0])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        axis = figure.subplots()
        axis.axhline(apart, color="#777777", linewidth=0.9, linestyle=(0, (2, 2)), label="‖θ* − θ*_d‖")
        for (algorithm, name), (colour, dash, marker, label) in _LINES.items():
            mine = table[(table["algorithm"] == algorithm) & (table["minimizer"] == name)]
            values = mine["distance"].clip(lower=_LEAST)
            axis.plot(mine["alpha"], values, color=colour, linestyle=dash, marker=marker, markersize=4, label=label)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.invert_xaxis()
        axis.set_ylim(_LEAST / 1.6, 3 * apart)
        axis.set_xlabel("learning rate α, falling")
        axis.set_ylabel("distance of θ̄ (root mean square)")
        figure.legend(loc="outside right center", fontsize=8)
        note = f"{SEEDS} seeds of events; what is below {_LEAST:g} is drawn there."
        figure.supxlabel(note, fontsize=7.5, x=0.01, ha="left")
    return figure


def main() -> None:
    """Measure and draw, or draw."""
    if "--draw" not in sys.argv[1:]:
        measured().to_csv(CSV, index=False, float_format="%.4g")
    CSV.with_suffix(".png").write_bytes(picture(drawn(pd.read_csv(CSV)), "png"))


if __name__ == "__main__":
    main()
