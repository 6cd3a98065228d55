"""Draw the pictures of docs/theory.md and write its measured parts again.

    python -m scripts.theory_page

Reads docs/theory/*.csv (scripts/theory_measured.py) and runs the commands that the page shows; the text between
markers `<!-- name: start -->` and `<!-- name: end -->` is written by this, the rest of the page by hand.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dspodfl.analysis.figures import STYLE, picture
from dspodfl.network import Graph, generate
from dspodfl.network import weights as mixing
from dspodfl.theory.formulas import Constants, convex, spectral

ROOT = Path(__file__).resolve().parents[1]
TABLES, IMAGES, PAGE = ROOT / "docs" / "theory", ROOT / "docs" / "images" / "theory", ROOT / "docs" / "theory.md"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
COMMANDS = {
    "bound": ("dspodfl run docs/theory/ridge.toml --out measured --quiet",
              "dspodfl theory bound docs/theory/ridge.toml --compare measured --out told"),
    "sweep_b": ("dspodfl theory sweep docs/theory/ridge.toml --over rates.link.value=0.1,0.2,0.3,0.4,0.6,0.8,1 "
                "--set train.learning_rate.value=0.002 --algorithms dspodfl --out told",),
    "sweep_alpha": ("dspodfl theory sweep docs/theory/ridge.toml "
                    "--over train.learning_rate.value=0.0005,0.001,0.002,0.005,0.01,0.02 "
                    "--over rates.sgd.value=0.8,0.9,0.95,1 --algorithms dspodfl --out told",),
    "sweep_radius": ("dspodfl theory sweep docs/theory/ridge.toml --over graph.radius=0.45,0.5,0.6,0.7,0.8,1 "
                     "--set train.learning_rate.value=0.005 --out told",),
}  # fmt: skip
"""What the page shows: commands one after the other, the last one's output and picture."""


def panels(count: int, width: float = 3.6, height: float = 3.2) -> tuple[Figure, Any]:
    """A figure of panels side by side in the house style."""
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def legend(figure: Figure, axes: Any, columns: int = 5) -> None:
    """One legend for all panels, above them."""
    found: dict[str, Any] = {}
    for axis in axes:
        found |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(list(found.values()), list(found), loc="outside upper center", ncols=columns)


def title(axis: Any, text: str) -> None:
    """A panel's head."""
    axis.set_title(text, loc="left", fontsize=9)


def condition_map() -> Figure:
    """Where the printed learning-rate condition lets ρ(Φ) reach 1, over (β/μ, d_min)."""
    ratios, least = np.geomspace(1, 30, 160), np.linspace(0.4, 1, 160)
    figure, axes = panels(2, 4.6, 4.0)
    for axis, zeta in zip(axes, (0.1, 1.0), strict=True):
        radius = np.empty((len(least), len(ratios)))
        for n, d in enumerate(least):
            for k, ratio in enumerate(ratios):
                c = Constants(m=10, mu=1 / ratio, beta=1.0, zeta=zeta, rho_tilde=0.5, d_min=float(d))
                radius[n, k] = convex.recursion(c.at(0.99 * convex.printed_rate(c))).radius
        level = np.digitize(radius, [1.0]) + (2 * (1 - least)[:, None] * ratios**2 >= 1)
        axis.contourf(ratios, least, level, levels=[-0.5, 0.5, 1.5, 2.5], colors=["#CDE7DD", "#F3D9A4", "#EDB9A0"])
        axis.plot(ratios, 1 - 1 / (2 * ratios**2), color="#333333", linewidth=1.2)
        axis.set_xscale("log")
        axis.set_xlabel("β/μ")
        axis.set_ylim(0.4, 1.005)
        axis.grid(visible=False)
        title(axis, f"ζ = {zeta:g} β")
    axes[0].set_ylabel("d_min")
    axes[0].annotate(
        "d_min = 1 − μ²/(2β²)", (2.2, 0.895), xytext=(4.5, 0.8), fontsize=8, arrowprops={"arrowstyle": "-"}
    )
    handles = [mpl.patches.Patch(color=c) for c in ("#CDE7DD", "#F3D9A4", "#EDB9A0")]
    names = ["ρ(Φ) < 1: it is sufficient", "ρ(Φ) ≥ 1, a smaller α would do", "ρ(Φ) ≥ 1 for every α"]
    figure.legend(handles, names, loc="outside upper center", ncols=3)
    return figure


def rho_against_b() -> Figure:
    """ρ̃ against one common b, on graphs where more exchanges help and where they do not."""
    graphs = {
        "path of 10": generate("path", 10, seed=0),
        "ring of 10": generate("ring", 10, seed=0),
        "star of 10": generate("star", 10, seed=0),
        "geometric, radius 0.5": generate("geometric", 10, seed=0, radius=0.5),
        "complete of 10": generate("complete", 10, seed=0),
        "K₃,₃": Graph.from_networkx(nx.complete_bipartite_graph(3, 3)),
        "K₅,₅": Graph.from_networkx(nx.complete_bipartite_graph(5, 5)),
    }
    b = np.linspace(0.01, 1, 100)
    figure, (axis,) = panels(1, 6.4, 4.0)
    for (name, graph), paint in zip(graphs.items(), COLOURS, strict=True):
        r = mixing.weights("metropolis", graph.n, graph.edges, graph.degree)
        rho = np.array([spectral.rho_tilde(graph, r, float(p)) for p in b])
        axis.plot(b, rho, color=paint, linewidth=1.7, linestyle="--" if name.startswith("K") else "-", label=name)
        if rho.min() < rho[-1] - 1e-9:
            axis.plot(b[rho.argmin()], rho.min(), "o", color=paint, markersize=5)
    axis.set_xlabel("b, common to all links")
    axis.set_ylabel("ρ̃")
    axis.set_ylim(0, 1.02)
    legend(figure, [axis], 4)
    return figure


def tightness_figure(table: pd.DataFrame) -> Figure:
    """Measured over bound, a point a case."""
    figure, axes = panels(2, 4.4, 3.8)
    names = list(dict.fromkeys(table["graph"]))
    for axis, (error, rows) in zip(axes, table.groupby("error", sort=False), strict=True):
        for name, paint in zip(names, COLOURS, strict=False):
            mine = rows[rows["graph"] == name]
            axis.plot(mine["many_steps_largest"], mine["one_step_largest"], "o", color=paint, markersize=5, label=name)
        if error == "consensus":
            axis.set_xscale("log")
            axis.set_yscale("log")
        axis.axhline(1, color="#333333", linewidth=0.8)
        axis.axvline(1, color="#333333", linewidth=0.8)
        axis.set_xlabel("measured / bound, many steps")
        title(axis, {"optimality": "‖θ̄ − θ*‖²", "consensus": "‖Θ − 1θ̄‖²"}[str(error)])
    axes[0].set_ylabel("measured / bound, one step")
    legend(figure, axes)
    return figure


def contraction_figure(table: pd.DataFrame) -> Figure:
    """Fitted rate of consensus against ρ̃."""
    figure, axes = panels(2, 4.2, 3.8)
    for axis, column, name in zip(
        axes, ("rho_tilde", "mean_square_rate"), ("ρ̃", "exact rate in mean square"), strict=True
    ):
        axis.plot([0, 1], [0, 1], color="#333333", linewidth=0.8)
        for (graph, rows), paint in zip(table.groupby("graph", sort=False), COLOURS, strict=False):
            label = "K₃,₃" if graph == "bipartite" else str(graph)
            axis.errorbar(
                rows[column], rows["fitted"], 2 * rows["fitted_error"], fmt="o", color=paint, markersize=4, label=label
            )
        axis.set_xlabel(name)
        axis.set_aspect("equal")
    axes[0].set_ylabel("fitted rate of E‖Θ − 1θ̄‖²")
    legend(figure, axes)
    return figure


def exponent(rows: pd.DataFrame, column: str) -> float:
    """Return the slope in logarithms; NaN where there is nothing to measure but rounding."""
    if rows[column].min() < 1e-20:
        return float("nan")
    return float(np.polyfit(np.log(rows["x"]), np.log(rows[column]), 1)[0])


def gaps_figure(table: pd.DataFrame) -> Figure:
    """Gaps against α and 1 − d_min, measured and bounded, with fitted exponents."""
    settings = list(dict.fromkeys(table["setting"]))
    figure, axes = panels(len(settings), 3.1, 3.8)
    labels = {"optimality": "‖θ̄ − θ*‖²", "consensus": "‖Θ − 1θ̄‖²"}
    for axis, setting in zip(axes, settings, strict=True):
        for (error, rows), paint in zip(
            table[table["setting"] == setting].groupby("error", sort=False), COLOURS, strict=False
        ):
            axis.errorbar(
                rows["x"], rows["measured"], 2 * rows["measured_error"], fmt="o-", color=paint, markersize=4,
                label=f"{labels[str(error)]}, measured",
            )  # fmt: skip
            axis.plot(rows["x"], rows["bound"], "--", color=paint, label=f"{labels[str(error)]}, gap of the bound")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        x, _, words = setting.partition(", ")
        axis.set_xlabel(x)
        title(axis, words)
    axes[0].set_ylabel("error once settled")
    legend(figure, axes, 4)
    return figure


def families_figure(table: pd.DataFrame) -> Figure:
    """Return the non-convex and the PL problem compared with their theorems."""
    groups = list(table.groupby(["family", "error"], sort=False))
    figure, axes = panels(len(groups), 3.6, 3.5)
    for axis, ((family, error), rows) in zip(axes, groups, strict=True):
        rows = rows[rows["measured"] > 0]  # a logarithmic axis has no 0
        k = rows["iteration"]
        axis.plot(k, rows["bound"], color="#0072B2", label="bound, corrected form or exact recursion")
        axis.plot(k, rows["printed"], "--", color="#CC79A7", label="as printed")
        axis.plot(k, rows["measured"], color="#D55E00", linewidth=2, label="measured")
        axis.set_yscale("log")
        axis.set_xlabel("iteration")
        title(axis, f"{family}: {error}")
    legend(figure, axes, 3)
    return figure


def markdown(table: pd.DataFrame) -> str:
    """A table, numbers to three digits."""

    def cell(value: Any) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    rows = [
        list(table.columns),
        ["---"] * len(table.columns),
        *([cell(v) for v in row] for row in table.to_numpy().tolist()),
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def tightness_table(table: pd.DataFrame) -> str:
    """Over graphs, by heterogeneity and sporadicity: the range of ratios."""
    rows = []
    for (error, d, b, het), group in table.groupby(["error", "d", "b", "heterogeneity"], sort=False):
        ranges = [
            f"{group[c].min():.2g} – {group[c].max():.2g}"
            for c in ("one_step_largest", "many_steps_largest", "many_steps_last")
        ]
        above = f"{group['standard_errors_above'].max():+.1f}"
        rows.append([{"optimality": "‖θ̄ − θ*‖²", "consensus": "‖Θ − 1θ̄‖²"}[str(error)], d, b, het, *ranges, above])
    heads = [
        "error",
        "d",
        "b",
        "heterogeneity",
        "one step",
        "many steps, largest",
        "many steps, last",
        "standard errors above",
    ]
    return markdown(
        pd.DataFrame(rows, columns=heads).sort_values(["error", "d", "heterogeneity"], ascending=[False, False, True])
    )


def contraction_table(table: pd.DataFrame) -> str:
    """Rates by graph and b."""
    shown = table[["graph", "b", "rho_tilde", "mean_square_rate", "fitted", "fitted_error"]].copy()
    shown["graph"] = shown["graph"].replace("bipartite", "K₃,₃")
    shown[["rho_tilde", "mean_square_rate"]] = shown[["rho_tilde", "mean_square_rate"]].where(
        shown["rho_tilde"] > 1e-12, 0.0
    )
    return markdown(
        shown.rename(columns={"rho_tilde": "ρ̃", "mean_square_rate": "exact, in mean square", "fitted_error": "±"})
    )


def gaps_table(table: pd.DataFrame) -> str:
    """Fitted exponents."""
    rows = []
    for (setting, error), group in table.groupby(["setting", "error"], sort=False):
        label = {"optimality": "‖θ̄ − θ*‖²", "consensus": "‖Θ − 1θ̄‖²"}[str(error)]
        numbers = [exponent(group, "measured"), exponent(group, "bound")]
        rows.append(
            [setting, label, *(f"{v:.2f}" for v in numbers), f"{(group['measured'] / group['bound']).max():.2g}"]
        )
    return markdown(pd.DataFrame(rows, columns=["against", "error", "measured", "bound", "measured / bound, largest"]))


def commanded() -> dict[str, str]:
    """Run the page's commands in a folder of their own; their output, and their pictures to docs/images/theory/."""
    out, here = {}, os.environ | {"PYTHONPATH": str(ROOT / "src")}
    for name, lines in COMMANDS.items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "docs").symlink_to(ROOT / "docs")
            for line in lines:
                words = [sys.executable, "-m", *shlex.split(line)]
                found = subprocess.run(words, cwd=folder, env=here, capture_output=True, text=True, check=True)
            shutil.copy(Path(folder) / "told" / "figure.png", IMAGES / f"{name}.png")
        text = "\n".join(line.rstrip() for line in found.stdout.strip("\n").splitlines())
        shown = "\n".join(f"    $ {line}" for line in lines)
        out[name] = (
            shown + "\n\n" + "\n".join(f"    {line}".rstrip() for line in re.sub(r"\n\n+", "\n\n", text).splitlines())
        )
    return out


def main() -> None:
    """Draw, run, write."""
    tables = {name: pd.read_csv(TABLES / f"{name}.csv") for name in ("tightness", "contraction", "gaps", "families")}
    IMAGES.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figures = {
            "printed_condition": condition_map(),
            "rho_b": rho_against_b(),
            "tightness": tightness_figure(tables["tightness"]),
            "contraction": contraction_figure(tables["contraction"]),
            "gaps": gaps_figure(tables["gaps"]),
            "families": families_figure(tables["families"]),
        }
    for name, figure in figures.items():
        (IMAGES / f"{name}.png").write_bytes(picture(figure, "png"))
    parts = commanded() | {
        "tightness": tightness_table(tables["tightness"]),
        "contraction": contraction_table(tables["contraction"]),
        "gaps": gaps_table(tables["gaps"]),
        "config": f"```toml\n{(TABLES / 'ridge.toml').read_text()}```",
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, text in parts.items():
        mark = re.compile(rf"(<!-- {name}: start -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        if not mark.search(page):
            raise SystemExit(f"{PAGE} has no place for {name}")
        page = mark.sub(lambda found, text=text: f"{found[1]}\n{text}\n\n{found[2]}", page)  # type: ignore[misc]
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
