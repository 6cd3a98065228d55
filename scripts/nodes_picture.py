"""Draw real nodes beside the simulator: ``python -m scripts.nodes_picture``.

    python -m scripts.nodes_picture                        # train both, write docs/images/nodes.png
    python -m scripts.nodes_picture --of runs/up runs/run  # of two folders that are there already

One study is trained twice: by `dspodfl.nodes.up`, ten processes that are connected by mutual TLS, and by `dspodfl.run`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dspodfl import Config, Result, run
from dspodfl.analysis.figures import style
from dspodfl.nodes import up

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "nodes.png"
STUDY = {"seeds": 2, "algorithms": ["dspodfl", "dgd"], "train": {"iterations": 500, "until": {"iterations": 500}}}
EXACT = ("iteration", "sgd_steps", "link_uses", "bytes", "delay_total")
"""Columns that must be the same to the last bit."""


def differences(nodes: pd.DataFrame, simulated: pd.DataFrame) -> dict[str, float]:
    """Return the largest difference of accuracies and losses.

    Args:
        nodes: The metrics that nodes have trained.
        simulated: Those of the simulator, of the same study.

    Returns:
        Column -> the largest absolute difference over all rows.

    Raises:
        SystemExit: The rows are not those of one study, or a count or delay differs.
    """
    same = len(nodes) == len(simulated) and all(nodes[key].equals(simulated[key]) for key in ("algorithm", *EXACT))
    if not same:
        raise SystemExit("the two differ in events, delays or bytes")
    return {key: float((nodes[key] - simulated[key]).abs().max()) for key in ("accuracy", "loss")}


def figure(nodes: pd.DataFrame, simulated: pd.DataFrame) -> Figure:
    """Draw accuracies of both, and the difference of their losses.

    Args:
        nodes: The metrics that nodes have trained.
        simulated: Those of the simulator.

    Returns:
        The figure.
    """
    largest = differences(nodes, simulated)
    with mpl.rc_context(style.STYLE):
        found = Figure(figsize=(7.4, 3.3), layout="constrained")
        left, right = found.subplots(1, 2, width_ratios=(1.25, 1))
        _accuracies(left, nodes, simulated)
        _residuals(right, nodes, simulated)
        digit, power = f"{largest['loss']:.0e}".split("e")
        text = f"Two seeds each. Largest difference of an accuracy: {largest['accuracy']:g}, of a test loss: "
        found.supxlabel(f"{text}${digit} \\times 10^{{{int(power)}}}$.", fontsize=8, color=style.FAINT)
    return found


def _accuracies(axes: Axes, nodes: pd.DataFrame, simulated: pd.DataFrame) -> None:
    for rows, what in ((simulated, "simulator"), (nodes, "ten processes")):
        drawn = {"linewidth": 1.4} if what == "simulator" else {"linestyle": "none", "marker": "o", "markersize": 4}
        for key, found in rows[rows["iteration"] > 0].groupby(["algorithm", "seed"], sort=False):
            name, seed = str(key[0]), key[1]
            label = f"{style.NAMES[name]}, {what}" if seed == rows["seed"].min() else None
            x, y = found["delay_total"], found["accuracy"]
            axes.plot(x, y, color=style.COLOURS[name], markerfacecolor="none", label=label, **drawn)
    axes.set_xscale("log")
    axes.set_xlabel("total delay")
    axes.set_ylabel("test accuracy, mean over clients")
    axes.legend(fontsize=7.5, loc="upper left")


def _residuals(axes: Axes, nodes: pd.DataFrame, simulated: pd.DataFrame) -> None:
    gap = (nodes["loss"] - simulated["loss"]).abs()
    for name in dict.fromkeys(simulated["algorithm"]):
        chosen = simulated["algorithm"] == name
        worst = gap[chosen].groupby(simulated["iteration"][chosen]).max()
        shown = worst[worst > 0]
        axes.plot(shown.index, shown, color=style.COLOURS[name], marker=".", linewidth=0.8, label=style.NAMES[name])
    axes.set_yscale("log")
    axes.set_ylim(1e-9, 1e-4)
    axes.set_xlabel("iteration")
    axes.set_ylabel("difference of the test losses")
    axes.legend(fontsize=7.5, loc="upper left")


def main(words: Sequence[str] | None = None) -> None:
    """Train the study twice, or take two folders, and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--of", nargs=2, type=Path, metavar=("UP", "RUN"), help="folders of 'up' and of 'run'")
    parser.add_argument("--out", type=Path, default=PICTURE)
    given = parser.parse_args(words)
    if given.of:
        nodes, simulated = (Result.load(folder).metrics for folder in given.of)
    else:
        with tempfile.TemporaryDirectory() as folder:
            nodes = up(Config(**STUDY), Path(folder) / "up", say=print).result.metrics
        simulated = run(Config(**STUDY)).metrics
    figure(nodes, simulated).savefig(given.out, dpi=150)
    print(f"{given.out}: {differences(nodes, simulated)}")


if __name__ == "__main__":
    main()
