"""Write the table of quantities of docs/theory.md from their registry: ``python -m scripts.theory_docs``.

What is between the two markers of the page is made here, and nothing else is touched. A test compares the page with it.
"""

from __future__ import annotations

from pathlib import Path

from dspodfl.theory.assess import BOUND_COLUMNS, QUANTITIES, SOURCES, Quantity

PAGE = Path(__file__).parents[1] / "docs" / "theory.md"
BEGIN = "<!-- The tables below are made by python -m scripts.theory_docs -->"
END = "<!-- The tables above are made by python -m scripts.theory_docs -->"


def page(text: str) -> str:
    """Give the page with its tables as the registry has them."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit("the markers of the page are missing")
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def tables() -> str:
    """Give the table of quantities and that of their sources in Markdown."""
    rows = ["| quantity | name in code | source | in the table of `theory sweep` | drawn |", "|---|---|---|---|---|"]
    rows += [
        f"| {one.label} | `{one.name}` | {one.source} | {_column(one)} | {'yes' if one.panel else ''} |"
        for one in QUANTITIES.values()
    ]
    rows += ["", "| source | meaning |", "|---|---|"]
    rows += [f"| {name} | {meaning} |" for name, meaning in SOURCES.items()]
    return "\n".join(rows) + "\n"


def _column(one: Quantity) -> str:
    head = BOUND_COLUMNS.get(one.fills or one.name, "")
    return f"{head} (where it applies)".replace("\n", " ") if one.fills else head.replace("\n", " ")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
