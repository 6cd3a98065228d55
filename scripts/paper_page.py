"""Copy reproductions into docs/paper/ and write the claim-by-claim part of docs/paper.md.

    python scripts/paper_page.py reproduced

docs/paper/<name>.png, .svg and .csv come from each folder; what stands between the two markers of docs/paper.md is
written anew, the rest of the page is by hand.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from dspodfl.experiment import names
from dspodfl.outcome import Outcome

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- written by scripts/paper_page.py: start -->", "<!-- end -->"


def section(outcome: Outcome) -> str:
    """One experiment: claim, figure, verdict and why."""
    about = outcome.about
    measured = (
        f"{about['seeds']} seeds, {outcome.metrics['iteration'].max():,} iterations at most, {about['precision']}, "
        f"{about['device']}"
    )
    why = "\n".join(f"- *{v.word}*: {v.sentence}" for v in outcome.verdicts)
    return f"""### {outcome.title} ({outcome.paper}): {outcome.word}

{" ".join(outcome.says.split())}

![{outcome.title}](paper/{outcome.name}.png)

{why}

`dspodfl reproduce {outcome.name}`; {measured}; numbers: [{outcome.name}.csv](paper/{outcome.name}.csv).
"""


def natural(text: str) -> list[object]:
    """Figure 2 before Figure 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def main() -> None:
    """Copy, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where dspodfl reproduce wrote")
    folder = parser.parse_args().folder
    found = [Outcome.load(folder / name) for name in names() if (folder / name / "result.json").is_file()]
    missing = [name for name in names() if name not in {outcome.name for outcome in found}]
    target = ROOT / "docs" / "paper"
    target.mkdir(parents=True, exist_ok=True)
    for outcome in found:
        for kind in ("figure.png", "figure.svg", "table.csv"):
            shutil.copy(folder / outcome.name / kind, target / f"{outcome.name}{Path(kind).suffix}")
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
