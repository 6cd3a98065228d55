"""The commented configuration that ``dspodfl init`` writes, made from the schema."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from dspodfl.config.local import AdamTable, LocalTable
from dspodfl.config.reference import Key, example_of, keys, summary, tag, tag_key, writable
from dspodfl.config.schema import Config
from dspodfl.config.toml import inline

SCHEMA_FILE = "dspodfl.schema.json"
"""The file that ``init`` writes next to a configuration, for editors that complete and check TOML."""

WIDTH, COMMENT_COLUMN = 120, 32

_HEAD = """\
#:schema ./{schema}
# A study: several algorithms, each on several seeds, compared on the same graphs, rates, data and minibatches.
# Each key may be left out; these are the defaults. Run it with:  dspodfl run FILE.toml
# A key can be changed on the command line as well:               dspodfl run FILE.toml --set train.batch_size=32
# Lines that begin with "# key =" are alternatives, and keys that are left out unless given.
"""


def template() -> str:
    """Write the default configuration as TOML with a comment for each key, its alternatives and their own keys.

    Returns:
        TOML text of at most 120 columns that reads back as ``Config()``. Its first line names `SCHEMA_FILE`, the JSON
        schema next to it, for editors.
    """
    out = [_HEAD.format(schema=SCHEMA_FILE)]
    shown: set[tuple[type[BaseModel], ...]] = set()
    for key in keys(Config):
        if not key.tables:
            out += [*_entry(key), *(_by_table() if key.name == "algorithms" else ())]
    for key in keys(Config):
        if key.tables:
            out += ["", *_wrapped("# ", key.description[:1].upper() + key.description[1:] + ".")]
            inside = _union(key, shown) if len(key.tables) > 1 else _plain_table(key.tables[0], shown)
            lines = [f"[{key.name}]", *inside]
            out += [_off(line) for line in lines] if key.default is None else lines
    return "\n".join(out) + "\n"


def _by_table() -> Iterator[str]:
    """An algorithm as a table, with what its clients do with their gradients."""
    table = {"name": "dspodfl", "label": "clipped", "local": {"clip": 1.0, "momentum": 0.9}}
    about = [f"local: {_meanings(LocalTable)}", f"adam: {_meanings(AdamTable)}"]
    yield from _comment(_assignment("algorithms", [table], off=True), about)


def _off(line: str) -> str:
    """A line of a table that is left out unless given."""
    if line.startswith(("#", " ")):
        return f"#{line[1:]}"
    return f"# {line.replace('   #', ' #', 1)}"


def _plain_table(table: type[BaseModel], shown: set[tuple[type[BaseModel], ...]]) -> Iterator[str]:
    for key in keys(table):
        yield from _member(key, shown)


def _union(key: Key, shown: set[tuple[type[BaseModel], ...]]) -> Iterator[str]:
    """A table of several kinds: the default kind with its keys, the others with theirs, and what all have."""
    tables = writable(key.tables)
    chosen = _default_of(key, tables)
    others = [table for table in tables if table is not chosen]
    elsewhere = {found.name for table in others for found in keys(table)}
    specific = [found for found in keys(chosen) if found.name not in elsewhere]
    shared = [found for found in keys(chosen) if found.name in elsewhere]
    yield from _comment(f"{tag_key(chosen)} = {inline(tag(chosen))}", [summary(chosen)])
    for found in specific:
        yield from _member(found, shown)
    for table in others:
        lacking = [found.name for found in shared if found.name not in table.model_fields]
        note = f" It has no {', no '.join(lacking)}." if lacking else ""
        word = tag_key(table)
        if word is not None:
            yield from _comment(f"# {word} = {inline(tag(table))}", [summary(table) + note])
        else:
            yield f"# {summary(table)}"
        specific = [found for found in keys(table) if found.name not in {k.name for k in shared}]
        for number, found in enumerate(specific):
            yield from _entry(found, inside=word is not None or number > 0)
    for found in shared:
        yield from _member(found, shown)


def _member(key: Key, shown: set[tuple[type[BaseModel], ...]]) -> Iterator[str]:
    """A key inside a table; one that holds a table is written in one line, its alternatives below it."""
    if not key.tables:
        yield from _entry(key)
        return
    tables = tuple(writable(key.tables))
    off = key.default is None
    if len(tables) == 1:
        yield from _comment(_assignment(key.name, key.example, off), [key.description, _meanings(tables[0])])
        return
    chosen = _default_of(key, list(tables))
    if tables in shown:
        yield from _comment(_assignment(key.name, key.example, off), [f"{key.description}; alternatives as above"])
        return
    shown.add(tables)
    yield from _comment(_assignment(key.name, key.example, off), [key.description, *_about(chosen)])
    for table in tables:
        if table is not chosen:
            yield from _comment(_assignment(key.name, example_of(table), True), _about(table))


def _about(table: type[BaseModel]) -> list[str]:
    return [" ".join([summary(table), _meanings(table)]).strip()]


def _meanings(table: type[BaseModel]) -> str:
    return "; ".join(f"{key.name}: {key.description}" for key in keys(table))


def _default_of(key: Key, tables: list[type[BaseModel]]) -> type[BaseModel]:
    """The alternative that a key's default is."""
    default = key.default if isinstance(key.default, dict) else {}
    return next((table for table in tables if default.get(tag_key(table) or "") == tag(table)), tables[0])


def _entry(key: Key, *, inside: bool = False) -> Iterator[str]:
    """A key with a plain value; ``inside`` an alternative that is not the default it is indented and commented out."""
    choices = [" | ".join(key.choices)] if key.choices else []
    code = _assignment(key.name, key.example, inside or key.default is None)
    yield from _comment(code.replace("# ", "#   ", 1) if inside else code, [key.description, *choices])


def _assignment(name: str, value: Any, off: bool) -> str:
    text = "…" if value is None else inline(value)
    return f"{'# ' if off else ''}{name} = {text}"


def _comment(code: str, comments: Sequence[str]) -> Iterator[str]:
    """A line of TOML with its comments in a column of their own."""
    left = "#" if code.startswith("#") else ""
    lines = [line for text in comments for line in _wrapped("", text, WIDTH - COMMENT_COLUMN - 2)]
    first = lines.pop(0) if len(code) < COMMENT_COLUMN and lines else None
    yield code if first is None else f"{code:<{COMMENT_COLUMN}}# {first}"
    for line in lines:
        yield f"{left:<{COMMENT_COLUMN}}# {line}"


def _wrapped(prefix: str, text: str, width: int = WIDTH) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=prefix, subsequent_indent=prefix or "  ", break_long_words=False)
