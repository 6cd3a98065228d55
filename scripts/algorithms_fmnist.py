"""The part of docs/algorithms.md about Fashion-MNIST, from the folder of ``dspodfl reproduce algorithms-fmnist``.

`scripts.algorithms_docs` calls it: ``python -m scripts.algorithms_docs reproduced/algorithms-fmnist`` takes the picture
and the numbers into docs/algorithms/, and writes the page.
"""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
from PIL import Image

from dspodfl.algorithms import ALGORITHMS
from dspodfl.analysis import Cost, formatting
from dspodfl.analysis import statistics as paired
from dspodfl.experiments import ExperimentResult, definition
from dspodfl.experiments.tuning import readings

NAME, REFERENCE = "algorithms-fmnist", "dspodfl"
CSV = Path(__file__).parents[1] / "docs" / "algorithms" / "fmnist.csv"
BEGIN = f"<!-- The numbers below are made by python -m scripts.algorithms_docs reproduced/{NAME} -->"
END = "<!-- The numbers above are made by python -m scripts.algorithms_docs from fmnist.csv -->"
STANDS_BEGIN = "<!-- The standings below are made by python -m scripts.algorithms_docs from fmnist.csv -->"
STANDS_END = "<!-- The standings above are made by python -m scripts.algorithms_docs from fmnist.csv -->"
MISSING = "Not measured yet.\n"
_PICTURE_COLOURS = 64


def take(folder: Path) -> None:
    """Take picture and numbers from what dspodfl reproduce wrote."""
    outcome = ExperimentResult.load(folder)
    tune = definition.named(NAME).tune
    assert tune is not None
    quick = bool(outcome.about.get("quick"))
    table = outcome.aggregates.copy()
    sides = _against(readings(outcome.metrics, outcome.axes, tune, quick=quick))
    table = table.merge(sides, on=["cost", "algorithm"], how="left", validate="1:1")
    CSV.parent.mkdir(exist_ok=True)
    table.to_csv(CSV, index=False, float_format="%.6g")
    image = Image.open(io.BytesIO((folder / "figure.png").read_bytes())).convert("RGB")
    small = image.quantize(_PICTURE_COLOURS, dither=Image.Dither.NONE)
    small.save(CSV.with_suffix(".png"), optimize=True)


def _against(read: pd.DataFrame) -> pd.DataFrame:
    """By cost and algorithm, how far it is ahead of DSpodFL, seed by seed, and whether the interval decides it."""
    rows = []
    values = read["value"].where(~read["diverged"])
    for cost, mine in read.assign(value=values).groupby("cost", sort=False):
        seeds = mine.pivot(index="seed", columns="algorithm", values="value")
        for algorithm in seeds:
            found = paired.difference((seeds[algorithm] - seeds[REFERENCE]).dropna())
            row = {"cost": cost, "algorithm": algorithm, "ahead": found.mean, "half": found.half, "side": found.side}
            rows.append(row)
    return pd.DataFrame(rows)


def numbers() -> pd.DataFrame | None:
    """Give the numbers that were taken last; None where there are none."""
    return pd.read_csv(CSV, keep_default_na=False, na_values=[""]) if CSV.is_file() else None


def table(found: pd.DataFrame | None) -> str:
    """Give the picture and the numbers in Markdown: a row for each method, the best at the first cost first."""
    if found is None:
        return MISSING
    costs = _costs(found)
    heads = [f"accuracy at {cost.text} | rank | α" for cost in costs]
    rows = ["![Accuracy of all methods against raw delay, bytes and iterations](algorithms/fmnist.png)", ""]
    rows += [f"| method | {' | '.join(heads)} |", f"|---|{'---|' * 3 * len(costs)}"]
    first = found[found["cost"] == costs[0].kind].sort_values(["rank", "algorithm"])
    for algorithm in first["algorithm"]:
        mine = found[found["algorithm"] == algorithm].set_index("cost")
        cells = [_label(algorithm) + _network(algorithm)]
        for cost in costs:
            row = mine.loc[cost.kind]
            mark = ("\\*" if row["short"] else "") + (f" ({row['diverged']:g} diverged)" if row["diverged"] else "")
            cells.append(formatting.spread(row["accuracy_mean"], row["accuracy_std"]) + mark)
            cells += [f"{row['rank']:g}", f"{row['tuned']:g}{' (edge)' if row['edge'] else ''}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def standings(found: pd.DataFrame | None) -> str:
    """Give for each cost the first five, the place of DSpodFL, and who is ahead of it and behind it for certain."""
    if found is None:
        return MISSING
    lines = []
    for cost in _costs(found):
        mine = found[found["cost"] == cost.kind].sort_values(["rank", "algorithm"])
        own = mine[mine["algorithm"] == REFERENCE].iloc[0]
        best = ", ".join(f"{_label(row['algorithm'])} {row['accuracy_mean']:.3f}" for _, row in mine.head(5).iterrows())
        counts = {side: int((mine["side"] == side).sum()) for side in ("ahead", "behind")}
        rest = len(mine) - 1 - sum(counts.values())
        names = [_label(row["algorithm"]) for _, row in mine.iterrows() if row["side"] == "ahead"]
        over = f" Ahead: {', '.join(names)}." if names else ""
        lines.append(
            f"- **At {cost.text}**: {best}. DSpodFL has {own['accuracy_mean']:.3f} and is number {own['rank']:g} of "
            f"{len(mine)}: {counts['ahead']} are ahead of it, {counts['behind']} behind, {rest} cannot be told apart."
            f"{over}"
        )
    return "\n".join(lines) + "\n"


def _costs(found: pd.DataFrame) -> list[Cost]:
    pairs = dict.fromkeys(zip(found["cost"], found["cost_value"], strict=True))
    return [Cost(str(kind), float(value)) for kind, value in pairs]


def _label(algorithm: str) -> str:
    return ALGORITHMS[algorithm].label if algorithm in ALGORITHMS else algorithm


def _network(algorithm: str) -> str:
    """A mark of methods that do not run on the geometric graph."""
    entry = ALGORITHMS.get(algorithm)
    if entry is None:
        return ""
    own = {"relay": " (path)", "bridge": " (complete graph)"}.get(algorithm, "")
    return " (server)" if entry.server else " (all pairs)" if entry.complete and entry.complete({}) else own
