"""Copy reproductions into docs/paper/ and write the claim-by-claim part of docs/paper.md.

    python scripts/paper_page.py reproduced

docs/paper/<name>.csv comes from each folder, <name>.png and .svg are drawn from it; what stands between the two markers
of docs/paper.md is written anew, the rest of the page is by hand.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pandas as pd

from dspodfl import formatting
from dspodfl.experiment import named, names
from dspodfl.outcome import Outcome
from dspodfl.plots import NAMES, picture

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- written by scripts/paper_page.py: start -->", "<!-- end -->"


def section(outcome: Outcome) -> str:
    """One experiment: claim, figure, verdict and why."""
    about = outcome.about
    measured = (
        f"{about['seeds']} seeds, {outcome.metrics['iteration'].max():,} iterations at most, {about['precision']}, "
        f"{about['device']}"
    )
    found = "\n".join(f"- *{v.word}*: {v.sentence}" for v in outcome.verdicts)
    why = f"\n\nWhy: {' '.join(outcome.why.split())}" if outcome.why else ""
    return f"""### {outcome.title} ({outcome.paper}): {outcome.word}

{" ".join(outcome.says.split())}

![{outcome.title}](paper/{outcome.name}.png)

{numbers(outcome)}{found}{why}

`dspodfl reproduce {outcome.name}`; {measured}; numbers: [{outcome.name}.csv](paper/{outcome.name}.csv).
"""


def numbers(outcome: Outcome) -> str:
    """Tables of the paper: ours beside what it prints."""
    table, axes = outcome.reading, outcome.axes
    names = [NAMES.get(algorithm, algorithm) for algorithm in table["algorithm"]]
    if outcome.kind == "accuracy_table":
        head = [*axes, "", "iterations", "ours", "printed", "difference"]
        cells = [
            [*(row[axis] for axis in axes), name, f"{row['iteration']:,}",
             formatting.spread(row["accuracy_mean"], row["accuracy_std"]), f"{row['printed_accuracy']:.2f}",
             formatting.difference(row["accuracy_mean"] - row["printed_accuracy"])]
            for name, (_, row) in zip(names, table.iterrows(), strict=True)
        ]  # fmt: skip
    elif outcome.kind == "delay_table":
        parts = ("processing", "transmission", "total")
        head = [*axes, "", "target", "reached", *(f"{part}, ours (quartiles)" for part in parts)]
        head += [f"{part}, printed" for part in parts]
        cells = [
            [*(row[axis] for axis in axes), name, f"{row['target']:g}", f"{row['reached']} of {row['seeds']}",
             *(_spread(row, part) for part in parts), *(_printed(row, part) for part in parts)]
            for name, (_, row) in zip(names, table.iterrows(), strict=True)
        ]  # fmt: skip
    else:
        return ""
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n\n"


def _spread(row: pd.Series, part: str) -> str:
    low, middle, high = (row[f"{part}_{name}"] for name in ("quartile1", "median", "quartile3"))
    if not middle < float("inf"):
        return f"> {row[f'{part}_least']:,.0f}"
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})" if high < float("inf") else f"{middle:,.0f} (from {low:,.0f})"


def _printed(row: pd.Series, part: str) -> str:
    return f"{row[f'printed_{part}']:,.0f}" if pd.notna(row[f"printed_{part}"]) else "–"


def natural(text: str) -> list[object]:
    """Figure 2 before Figure 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def judged(folder: Path) -> Outcome:
    """What was measured, read and judged as the experiment says today."""
    kept, experiment = Outcome.load(folder), named(folder.name)
    return Outcome.of(experiment, experiment.cells(), kept.metrics, kept.about, folder)


def main() -> None:
    """Copy, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where dspodfl reproduce wrote")
    folder = parser.parse_args().folder
    found = [judged(folder / name) for name in names() if (folder / name / "result.json").is_file()]
    missing = [name for name in names() if name not in {outcome.name for outcome in found}]
    target = ROOT / "docs" / "paper"
    target.mkdir(parents=True, exist_ok=True)
    for outcome in found:
        outcome.reading.to_csv(target / f"{outcome.name}.csv", index=False, float_format="%.10g")
        figure = outcome.plot()  # in today's style
        for kind in ("png", "svg"):
            (target / f"{outcome.name}.{kind}").write_bytes(picture(figure, kind))
    found.sort(key=lambda outcome: (natural(outcome.paper), outcome.name))
    rows = [f"| [{o.title}](#{anchor(o)}) | {o.paper} | {o.word} |" for o in found]
    table = "\n".join(["| what | where in the paper | verdict |", "|---|---|---|", *rows])
    left = f"\nNot run: {', '.join(missing)}.\n" if missing else ""
    text = "\n".join([START, "", table, left, *(section(o) for o in found), END])
    page = ROOT / "docs" / "paper.md"
    whole = page.read_text(encoding="utf-8")
    before, _, rest = whole.partition(START)
    page.write_text(before + text + rest.partition(END)[2], encoding="utf-8")
    print(f"{len(found)} experiments; not run: {len(missing)}")


def anchor(outcome: Outcome) -> str:
    """The heading's name in a link."""
    heading = f"{outcome.title} ({outcome.paper}): {outcome.word}".lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


if __name__ == "__main__":
    main()
