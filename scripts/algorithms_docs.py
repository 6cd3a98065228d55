"""Write the table and the sections of docs/algorithms.md from the registry: ``python -m scripts.algorithms_docs``.

    python -m scripts.algorithms_docs            # write the page
    python -m scripts.algorithms_docs --check    # is it current? (else exit 1)
    python -m scripts.algorithms_docs reproduced/algorithms-ridge reproduced/algorithms-fmnist    # take numbers first

What is between the markers of the page is made here, and nothing else is touched. A test compares the page with it.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
from scripts import algorithms_fmnist

from dspodfl.algorithms import ALGORITHMS, Entry, Setting
from dspodfl.algorithms.inverse_rates import SETTINGS

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
BEGIN = "<!-- The methods below are made by python -m scripts.algorithms_docs -->"
END = "<!-- The methods above are made by python -m scripts.algorithms_docs -->"
RIDGE = PAGE.parent / "algorithms" / "ridge.csv"
RIDGE_BEGIN = "<!-- The numbers below are made by python -m scripts.algorithms_docs reproduced/algorithms-ridge -->"
RIDGE_END = "<!-- The numbers above are made by python -m scripts.algorithms_docs -->"
_NEAR = 1e-10


def page(text: str) -> str:
    """Give the page with the methods as the registry has them."""
    sections = "\n".join(section(name, entry) for name, entry in ALGORITHMS.items())
    text = _between(text, BEGIN, END, f"{table()}\n{shared_settings()}\n{sections}")
    text = _between(text, RIDGE_BEGIN, RIDGE_END, ridge_table(pd.read_csv(RIDGE)))
    found = algorithms_fmnist.numbers()
    text = _between(text, algorithms_fmnist.BEGIN, algorithms_fmnist.END, algorithms_fmnist.table(found))
    stands = algorithms_fmnist.standings(found)
    return _between(text, algorithms_fmnist.STANDS_BEGIN, algorithms_fmnist.STANDS_END, stands)


def _between(text: str, begin: str, end: str, made: str) -> str:
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit("the markers of the page are missing")
    return f"{before}{begin}\n\n{made}\n{end}{after}"


def ridge_numbers(metrics: pd.DataFrame) -> pd.DataFrame:
    """Give where runs end, over seeds, and the medians of iterations and raw delay until they are near the minimizer.

    Empty where not all seeds get there.
    """
    rows = []
    for algorithm, runs in metrics.groupby("algorithm", sort=False):
        ends = runs.sort_values("iteration").groupby("seed")["optimality_error"].last()
        there = runs[runs["optimality_error"] < _NEAR].groupby("seed")[["iteration", "delay_total"]].min()
        cost: dict[Any, float] = dict(there.median().items()) if len(there) == len(ends) else {}
        row = {"algorithm": algorithm, "least": ends.min(), "median": ends.median(), "largest": ends.max()}
        rows.append(row | {"iterations": cost.get("iteration"), "delay": cost.get("delay_total")})
    return pd.DataFrame(rows)


def ridge_table(numbers: pd.DataFrame) -> str:
    """Give the numbers of the ridge problem in Markdown."""
    rows = ["| method | ‖θ̄ − θ*‖² at the end: median (least to largest) | iterations to 1e-10 | raw delay to 1e-10 |"]
    rows.append("|---|---|---|---|")
    for _, row in numbers.iterrows():
        entry = ALGORITHMS.get(row["algorithm"])
        cost = [f"{row[name]:,.0f}" if pd.notna(row[name]) else "never" for name in ("iterations", "delay")]
        end = f"{row['median']:.1e} ({row['least']:.1e} to {row['largest']:.1e})"
        rows.append(f"| {entry.label if entry else row['algorithm']} | {end} | {' | '.join(cost)} |")
    return "\n".join(rows) + "\n"


def take_ridge(folder: Path) -> None:
    """Take picture and numbers of the ridge problem from what dspodfl reproduce wrote."""
    RIDGE.parent.mkdir(exist_ok=True)
    RIDGE.with_suffix(".png").write_bytes((folder / "figure.png").read_bytes())
    ridge_numbers(pd.read_parquet(folder / "metrics.parquet")).to_csv(RIDGE, index=False, float_format="%.6g")


def table() -> str:
    """Give the table of all methods in Markdown."""
    rows = ["| name | method | ends | sends a use and direction | sporadic | graphs |", "|---|---|---|---|---|---|"]
    for name, entry in ALGORITHMS.items():
        ends, _, _, graphs = entry.facts
        sporadic = "yes" if entry.sporadic else "no"
        link = f"[`{name}`](#{name})"
        rows.append(f"| {link} | {entry.label} | {ends} | {entry.sends} | {sporadic} | {graphs} |")
    return "\n".join(rows) + "\n"


def section(name: str, entry: Entry) -> str:
    """Give the section of a method: what it does, its update, when to use it, its settings, and its reference."""
    parts = [f"### {name}", f"**{entry.label}**: {entry.line}."]
    if entry.update:
        parts.append("\n".join(f"    {line}" for line in entry.update.splitlines()))
    parts.append(_facts(entry))
    parts.append(f"![{entry.label} on the ridge problem](algorithms/ridge/{name}.png)")
    if entry.when:
        parts.append(entry.when)
    rows = list(_settings(entry))
    if rows:
        parts.append("\n".join(["| setting | default | allowed | meaning |", "|---|---|---|---|", *rows]))
    if entry.takes_local and not entry.server:
        parts.append("It steps along the gradients of its clients, and takes `inverse_rates` and `cap`.")
    if entry.reference:
        parts.append(f"Reference: {entry.reference}.")
    return "\n\n".join(parts) + "\n"


def _facts(entry: Entry) -> str:
    ends, sends, sporadic, graphs = entry.facts
    aliases = f" Also called {', '.join(entry.aliases)}." if entry.aliases else ""
    ends = {"exact": "Exact", "neighbourhood": "Ends in a neighbourhood"}[ends]
    return f"{ends}; {sends} a use and direction; {sporadic}; {graphs} graphs.{aliases}"


def _settings(entry: Entry) -> Iterator[str]:
    for name, setting in entry.settings.items():
        default = _default(entry, name, setting)
        yield f"| `{name}` | {default} | {_cell(setting.allowed)} | {_cell(setting.line)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(entry: Entry, name: str, setting: Setting) -> str:
    """What a setting is where it is left out: by the entry, the configuration, or the part that takes it."""
    if setting.key is not None:
        return f"that of `{setting.key}`"
    found = setting.default
    for reference in (entry.rule, entry.schedule) if found is None else ():
        parameter = _parameters(reference).get(name)
        if parameter is not None and parameter.default is not parameter.empty:
            found = parameter.default
            break
    return "–" if found is None else f"`{str(found).lower() if isinstance(found, bool) else found}`"


def _parameters(reference: str | None) -> dict[str, Any]:
    if reference is None:
        return {}
    module, _, name = reference.partition(":")
    try:
        return dict(inspect.signature(getattr(import_module(module), name)).parameters)
    except (TypeError, ValueError):
        return {}


def shared_settings() -> str:
    """Give the table of the settings that all methods share which step along gradients."""
    rows = ["Settings of every method that steps along the gradients of its clients; others refuse them:", ""]
    rows += ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for name, setting in SETTINGS.items():
        default = str(setting.default).lower() if isinstance(setting.default, bool) else f"{setting.default:g}"
        rows.append(f"| `{name}` | `{default}` | {setting.allowed} | {_cell(setting.line)} |")
    return "\n".join(rows) + "\n"


def _experiment(folder: Path) -> str:
    """The name of the experiment that a folder holds."""
    return str(json.loads((folder / "result.json").read_text(encoding="utf-8"))["name"])


def main() -> None:
    """Write the page, or say whether it is current; from folders, take what was measured there."""
    for folder in (Path(word) for word in sys.argv[1:] if not word.startswith("--")):
        take = {algorithms_fmnist.NAME: algorithms_fmnist.take}.get(_experiment(folder), take_ridge)
        take(folder)
    text = PAGE.read_text(encoding="utf-8")
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(text), encoding="utf-8")
    elif page(text) != text:
        raise SystemExit("docs/algorithms.md is not current: run python -m scripts.algorithms_docs")


if __name__ == "__main__":
    main()
