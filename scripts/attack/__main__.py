"""Run the attacks: ``python -m scripts.attack [NAME…] [--every N] [--write docs/reliability.md]``.

It is started in the root of the repository. An attack is a function of ``every`` (try one case of that number; 1: all
of them) that yields tallies. To add one, write it in a module of this package, and name it in `ATTACKS` and `ABOUT`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scripts.attack import Tally, extremes, flips, hostile, kills

ATTACKS: dict[str, Callable[[int], Iterator[Tally]]] = {
    "kills": kills.attack,
    "flips": flips.attack,
    "extremes": extremes.attack,
    "hostile": hostile.attack,
}
ABOUT: dict[str, str] = {
    "kills": "Kills before and after each operation on a file, and within each write.",
    "flips": f"Up to {flips.FLIPS} bits of each file.",
    "extremes": f"{len(extremes.VALUES) + 1} values for each key; what is accepted is run.",
    "hostile": "Hostile files in each place where a file is read.",
}
"""What the cases of an attack are, for the page."""
BEGIN = "<!-- attack: {} (written by python -m scripts.attack --write; do not edit) -->"
END = "<!-- end of {} -->"


def main() -> int:
    """Run the attacks that are named, or all; gives the exit code: 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m scripts.attack", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(ATTACKS)}; default: all")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try one case of N")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the counts into this page")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in ATTACKS]
    if unknown or options.every < 1:
        parser.error(f"no such attack: {unknown[0]}" if unknown else "--every must be at least 1")
    failed = False
    for name in options.names or ATTACKS:
        since = time.monotonic()
        tallies = []
        for tally in ATTACKS[name](options.every):
            print(tally, flush=True)
            for line in tally.failures:
                print(f"  failed: {line}", flush=True)
            tallies.append(tally)
        print(f"{name}: {time.monotonic() - since:.0f} s", flush=True)
        failed |= any(tally.failures for tally in tallies)
        if options.write:
            write(options.write, name, tallies, options.every)
    return int(failed)


def write(page: Path, name: str, tallies: Sequence[Tally], every: int) -> None:
    """Put the counts of an attack, and how many cases were tried, between its marks in a page; at its end without."""
    begin, end = BEGIN.format(name), END.format(name)
    share = "All cases were tried." if every == 1 else f"One case of {every} was tried, evenly spread."
    about = " ".join(filter(None, [ABOUT.get(name), share]))
    rows = [f"| {tally.what} | {tally.tried:,} | {tally.held:,} |" for tally in tallies]
    total = f"| **{name}, all** | **{sum(t.tried for t in tallies):,}** | **{sum(t.held for t in tallies):,}** |"
    block = "\n".join(
        [begin, "", about, "", "| what was tried | times | held |", "|---|---:|---:|", *rows, total, "", end]
    )
    text = page.read_text(encoding="utf-8")
    if begin in text and end in text:
        text = text[: text.index(begin)] + block + text[text.index(end) + len(end) :]
    else:
        text = f"{text.rstrip()}\n\n{block}\n"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
