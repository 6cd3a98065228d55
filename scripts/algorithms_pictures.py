"""Draw every method on the ridge problem, for docs/algorithms.md: ``python -m scripts.algorithms_pictures``.

    python -m scripts.algorithms_pictures                 # all of them, about a minute
    python -m scripts.algorithms_pictures dgd extra       # some of them

The problem is that of ``dspodfl reproduce algorithms-ridge``: the same data, graphs, rates and learning rate; three
seeds.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

import dspodfl
from dspodfl.algorithms import ALGORITHMS
from dspodfl.analysis.figures import STYLE
from dspodfl.errors import InputError
from dspodfl.experiments import definition

FOLDER = Path(__file__).parents[1] / "docs" / "algorithms" / "ridge"
GRAPHS = {"relay": {"kind": "path"}, "d2": {"kind": "regular", "degree": 4, "weights": "lazy_metropolis"}}
"""Graphs of methods that do not run on the regular one: a tree, and weights whose least eigenvalue is not too small."""
ALWAYS = {"sgd": {"law": "constant", "value": 1.0}, "link": {"law": "constant", "value": 1.0}}
SEEDS, ITERATIONS, EVERY = 3, 1500, 25
_LEAST, _LARGEST = 1e-16, 1e3
_COLOUR, _DARK, _LIGHT = "#0072B2", "#9C9C9C", "#D2D2D2"
_WIDTH, _HEIGHT, _COLOURS = 480, 270, 32


def curves(names: Sequence[str], graph: Mapping[str, Any] | None = None) -> dict[tuple[str, bool], pd.Series[float]]:
    """Run methods on the ridge problem, with sporadic rates and with all rates 1.

    Args:
        names: The methods.
        graph: The graph, where it is another one.

    Returns:
        (method, whether rates are sporadic) -> ‖θ̄ − θ*‖² by iteration, the median over seeds.
    """
    base = definition.named("algorithms-ridge").base
    base = base | {"seeds": SEEDS, "algorithms": list(names), "eval": {"every": EVERY}}
    base["train"] = base["train"] | {"until": {"iterations": ITERATIONS}}
    base["graph"] = dict(graph) if graph else base["graph"]
    out = {}
    for sporadic in (True, False):
        config = dspodfl.Config(**(base if sporadic else base | {"rates": ALWAYS}))
        rows = dspodfl.run(config, device="cpu").metrics
        for name, mine in rows.groupby("algorithm"):
            out[str(name), sporadic] = mine.groupby("iteration")["optimality_error"].median()
    return out


def picture(name: str, found: Mapping[tuple[str, bool], pd.Series[float]]) -> bytes:
    """Draw one method in colour, with DSpodFL and DGD in grey.

    Args:
        name: The method.
        found: The errors of all three.

    Returns:
        A PNG of few colours.
    """
    same = np.allclose(found[name, True], found[name, False], rtol=1e-3, atol=_LEAST, equal_nan=True)
    lines = [
        ("dspodfl", True, _DARK, "-", "DSpodFL, sporadic"),
        ("dgd", False, _LIGHT, "-", "DGD"),
        *([] if same else [(name, False, _COLOUR, (0, (4, 1.5)), "all rates 1")]),
        (name, True, _COLOUR, "-", "whatever the rates" if same else "sporadic rates"),
    ]
    with mpl.rc_context({**STYLE, "font.size": 7.5}):
        figure = Figure(figsize=(_WIDTH / 100, _HEIGHT / 100), layout="constrained")
        axis = figure.subplots()
        for method, sporadic, colour, dash, label in lines:
            errors = found[method, sporadic]
            values = errors.where(np.isfinite(errors) & (errors < _LARGEST)).clip(lower=_LEAST)
            width = 1.4 if colour == _COLOUR else 2.8  # a halo where a curve of the method lies on it
            axis.plot(errors.index, values, color=colour, linestyle=dash, linewidth=width, label=label)
        axis.set_title(ALGORITHMS[name].label, loc="left", fontsize=8, color=_COLOUR)
        axis.set_yscale("log")
        axis.set_ylim(_LEAST / 3, 30)
        axis.set_yticks([1e-15, 1e-10, 1e-5, 1])
        axis.set_xlim(0, ITERATIONS)
        axis.set_xlabel("iterations")
        axis.set_ylabel("‖θ̄ − θ*‖²")
        figure.legend(loc="outside lower left", ncols=len(lines), handlelength=2.0, fontsize=7, columnspacing=1.2)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100)
    return _small(buffer.getvalue())


def _small(content: bytes) -> bytes:
    """The same image with a palette."""
    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image.quantize(_COLOURS, dither=Image.Dither.NONE).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def main() -> None:
    """Draw the methods that are named, or all."""
    wanted = sys.argv[1:] or list(ALGORITHMS)
    unknown = [name for name in wanted if name not in ALGORITHMS]
    if unknown:
        raise InputError("NAME", unknown[0], "a registered method")
    FOLDER.mkdir(parents=True, exist_ok=True)
    grey = curves(["dspodfl", "dgd"])
    for name in wanted:
        found = grey if (name, True) in grey else grey | curves([name], GRAPHS.get(name))
        (FOLDER / f"{name}.png").write_bytes(picture(name, found))
        print(f"{name}: sporadic {found[name, True].iloc[-1]:.1e}, all rates 1 {found[name, False].iloc[-1]:.1e}")


if __name__ == "__main__":
    main()
