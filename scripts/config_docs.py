"""Write the tables of docs/configuration.md and docs/output.md from the schema: ``python -m scripts.config_docs``.

What is between the two markers of a page is made here, and nothing else is touched. Tests compare the pages with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from dspodfl.analysis import COLUMNS
from dspodfl.config import AlgorithmTable, Config, Peer
from dspodfl.config.local import AdamTable, LocalTable
from dspodfl.config.reference import Key, keys, summary, tag, tag_key, writable
from dspodfl.config.toml import inline

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
OUTPUT = PAGE.with_name("output.md")
BEGIN = "<!-- The tables below are made by python -m scripts.config_docs -->"
END = "<!-- The tables above are made by python -m scripts.config_docs -->"


def page(text: str) -> str:
    """Give the page of the configuration with its tables as the schema has them."""
    return _between(text, tables())


def output(text: str) -> str:
    """Give the page of the output with the columns of metrics.parquet as their registry has them."""
    rows = [f"| `{column.name}` | {_escaped(column.line)} |" for column in COLUMNS]
    return _between(text, "\n".join(["| column | meaning |", "|---|---|", *rows]) + "\n")


def _between(text: str, made: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit("the markers of a page are missing")
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def tables() -> str:
    """Give every table of the configuration in Markdown."""
    top = [key for key in keys(Config) if not key.tables]
    out = ["## Top level", "", *_key_table(top)]
    out += ["", "A table in `algorithms`:", "", *_key_table(keys(AlgorithmTable))]
    for name, table in (("local", LocalTable), ("local.adam", AdamTable)):
        out += ["", f"`{name}` of such a table. {summary(table)}", "", *_key_table(keys(table))]
    shown: set[tuple[type[BaseModel], ...]] = set()
    for key in keys(Config):
        if key.tables:
            out += ["", f"## [{key.name}]", "", _sentence(key.description), ""]
            out += _table(key, shown)
        if key.name == "nodes":
            out += ["", "A table in `nodes.peer`:", "", *_key_table(keys(Peer))]
    return "\n".join(out) + "\n"


def _table(key: Key, shown: set[tuple[type[BaseModel], ...]]) -> Iterator[str]:
    alternatives = writable(key.tables)
    members = keys(alternatives[0])
    if len(alternatives) > 1:
        members = _common(alternatives)
        yield from _alternatives(alternatives, {member.name for member in members})
        yield ""
    if members:
        yield from _key_table(members)
    for member in members:
        inner = tuple(writable(member.tables))
        if len(inner) == 1:
            yield from ("", f"`{key.name}.{member.name}`:", "", *_key_table(keys(inner[0])))
        elif inner and inner not in shown:
            shown.add(inner)
            again = [other.name for other in members if tuple(writable(other.tables)) == inner]
            names = ", ".join(f"`{key.name}.{name}`" for name in again)
            yield from ("", f"{names}, one of:", "", *_alternatives(list(inner), set()))


def _common(alternatives: list[type[BaseModel]]) -> list[Key]:
    """The keys that several alternatives have in one meaning, with those of the richest of them."""
    found: dict[str, Key] = {}
    for table in alternatives:
        for key in keys(table):
            same = [t for t in alternatives if any(k == key for k in keys(t))]
            if len(same) > len(alternatives) / 2:
                found.setdefault(key.name, key)
    return list(found.values())


def _alternatives(tables_: list[type[BaseModel]], common: set[str]) -> Iterator[str]:
    name = next(filter(None, map(tag_key, tables_)))
    yield f"| `{name}` | | own keys (default) |"
    yield "|---|---|---|"
    for table in tables_:
        own = [key for key in keys(table) if key.name not in common]
        lacking = sorted(common - set(table.model_fields))
        without = f" Without {', '.join(f'`{key}`' for key in lacking)}." if lacking else ""
        described = "; ".join(f"`{key.name}`{_default(key)}: {_escaped(key.description)}" for key in own)
        word = tag(table)
        yield f"| {'–' if word is None else f'`{word}`'} | {_escaped(summary(table))}{without} | {described} |"


def _default(key: Key) -> str:
    return "" if key.default is None else f" ({inline(key.default)})"


def _key_table(members: list[Key]) -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for key in members:
        default = "–" if key.default is None else f"`{inline(key.default)}`"
        choices = f" ({', '.join(f'`{choice}`' for choice in key.choices)})" if key.choices else ""
        yield f"| `{key.name}` | {default} | {_escaped(key.description)}{choices} |"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the pages."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    OUTPUT.write_text(output(OUTPUT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
