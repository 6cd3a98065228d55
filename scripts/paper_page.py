"""Copy reproductions into docs/paper/ and write the claim-by-claim part of docs/paper.md.

    python scripts/paper_page.py reproduced

docs/paper/<name>.csv comes from each folder, <name>.png and .svg are drawn from it. What is between the two markers of
docs/paper.md is written again; the rest of the page is by hand. The rows of CIFAR-10 experiments, which take minutes of
a GPU, are kept in docs/paper/runs/, so that a page can be evaluated by other rules without running them. Where an
experiment is neither in the folder nor kept, its section of the page stays, and says so.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pandas as pd

from dspodfl.analysis import formatting
from dspodfl.analysis.figures import NAMES, picture
from dspodfl.experiments.definition import named, paper_names
from dspodfl.experiments.result import ExperimentResult

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "docs" / "paper" / "runs"
EARLIER = (
    "*Measured and judged by an earlier version, from means over seeds: the numbers of single seeds were not kept, and "
    "± has ddof 0.*"
)
START, END = "<!-- written by scripts/paper_page.py: start -->", "<!-- end -->"


def section(outcome: ExperimentResult) -> str:
    """One experiment: claim, figure, verdict and why."""
    about = outcome.about
    measured = (
        f"{about['seeds']} seeds, {outcome.metrics['iteration'].max():,} iterations at most, {about['precision']}, "
        f"{about['device']}"
    )
    found = "\n".join(f"- *{c.status}*: {c.sentence}" for c in outcome.checks)
    why = f"\n\nWhy: {' '.join(outcome.explanation.split())}" if outcome.explanation else ""
    return f"""### {outcome.title} ({outcome.paper}): {outcome.status}

{" ".join(outcome.claim.split())}

![{outcome.title}](paper/{outcome.name}.png)

{numbers(outcome)}{found}{why}

`dspodfl reproduce {outcome.name}`; {measured}; numbers: [{outcome.name}.csv](paper/{outcome.name}.csv).
"""


def numbers(outcome: ExperimentResult) -> str:
    """Return tables of the paper: our numbers next to the printed ones."""
    table, axes = outcome.aggregates, outcome.axes
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


def evaluated(folder: Path) -> ExperimentResult:
    """Return what was measured, with the claims of today's experiment file checked."""
    experiment, file = named(folder.name), RUNS / f"{folder.name}.parquet"
    if (folder / "result.json").is_file():
        measured = ExperimentResult.load(folder)
        metrics, about = measured.metrics, measured.about
    else:
        metrics = pd.read_parquet(file)
        about = metrics.attrs.pop("about")
    if experiment.dataset == "cifar10":
        RUNS.mkdir(parents=True, exist_ok=True)
        kept = metrics.copy()
        kept.attrs["about"] = about
        kept.to_parquet(file, index=False, compression="zstd")
    return ExperimentResult.of(experiment, experiment.cells(), metrics, about, folder)


def stays(page: str, name: str) -> str | None:
    """Return the section of an experiment that a page has already, with the note that it is an earlier one."""
    for text in page.split("\n### ")[1:]:
        if f"`dspodfl reproduce {name}`" in text:
            text = text.split(END)[0].rstrip()
            return f"### {text}\n" if EARLIER in text else f"### {text}\n\n{EARLIER}\n"
    return None


def main() -> None:
    """Copy, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where dspodfl reproduce wrote")
    folder = parser.parse_args().folder
    there = [n for n in paper_names() if (folder / n / "result.json").is_file() or (RUNS / f"{n}.parquet").is_file()]
    found = [evaluated(folder / name) for name in there]
    target = ROOT / "docs" / "paper"
    target.mkdir(parents=True, exist_ok=True)
    for outcome in found:
        outcome.aggregates.to_csv(target / f"{outcome.name}.csv", index=False, float_format="%.10g")
        figure = outcome.plot()  # in today's style
        for kind in ("png", "svg"):
            (target / f"{outcome.name}.{kind}").write_bytes(picture(figure, kind))
    page = ROOT / "docs" / "paper.md"
    whole = page.read_text(encoding="utf-8")
    sections = {outcome.name: section(outcome) for outcome in found}
    earlier = {name: text for name in paper_names() if name not in sections and (text := stays(whole, name))}
    sections |= earlier
    missing = [name for name in paper_names() if name not in sections]
    order = sorted(sections, key=lambda name: (natural(named(name).paper), name))
    rows = [
        f"| [{named(n).title}](#{anchor(sections[n])}) | {named(n).paper} | {verdict(sections[n])} |" for n in order
    ]
    table = "\n".join(["| what | where in the paper | verdict |", "|---|---|---|", *rows])
    left = f"\nNot run: {', '.join(missing)}.\n" if missing else ""
    text = "\n".join([START, "", table, left, *(sections[name] for name in order), END])
    before, _, rest = whole.partition(START)
    page.write_text(before + text + rest.partition(END)[2], encoding="utf-8")
    print(f"{len(found)} experiments, {len(earlier)} earlier ones; not run: {len(missing)}")


def verdict(section: str) -> str:
    """The verdict in the heading of a section."""
    return section.splitlines()[0].rpartition(": ")[2]


def anchor(section: str) -> str:
    """The heading's name in a link."""
    heading = section.splitlines()[0].removeprefix("### ").lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


if __name__ == "__main__":
    main()
