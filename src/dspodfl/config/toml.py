"""Configurations as TOML files, and the changes that the command line makes to them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from dspodfl.config.algorithm import label_of
from dspodfl.config.keys import assign, parse_value, split_key
from dspodfl.config.schema import Config
from dspodfl.config.shorthand import expand
from dspodfl.errors import ConfigError, DataError, InputError, bounded

_RATES = tuple(f"rates.{key}.file" for key in ("sgd", "link", "availability", "channel", "churn"))
_TLS = ("nodes.tls.certificate", "nodes.tls.key", "nodes.tls.ca")
_PATHS = ("graph.file", *_RATES, "data.path", "model.weights", *_TLS)


def load(path: Path | None = None, changes: Sequence[str] = (), **values: Any) -> Config:
    """Read a configuration from a file, and apply changes to it.

    Args:
        path: The TOML file; None: the defaults. Relative paths in it are relative to its folder.
        changes: ``table.key=value`` each, with a TOML value or a bare word; applied in order. Relative paths in them
            are relative to the working directory.
        **values: Top-level keys that replace those of the file; None: not given. Algorithms are registered names, or
            labels of algorithms in the file.

    Returns:
        The configuration.

    Raises:
        ConfigError: The file is missing or is no TOML, a change cannot be parsed, or the result is not valid.

    >>> load(None, ["train.batch_size=8"], seeds=2).train.batch_size
    8
    """
    raw: dict[str, Any] = {}
    if path is not None:
        raw = expand(_read(path))
        _anchor(raw, Path(os.path.realpath(path)).parent)
    for change in changes:
        _apply(raw, change)
        raw = expand(raw)
    if values.get("algorithms") is not None:
        values["algorithms"] = _labelled(values["algorithms"], raw.get("algorithms"))
    raw.update({key: value for key, value in values.items() if value is not None})
    _anchor(raw, Path.cwd())
    return Config(**raw)


def _labelled(names: Sequence[Any], known: Any) -> list[Any]:
    """Replace labels by the tables of the file that have them; other names stay."""
    tables = {label_of(given): given for given in known if isinstance(given, dict)} if isinstance(known, list) else {}
    return [tables.get(name, name) if isinstance(name, str) else name for name in names]


def as_config(given: object) -> Config:
    """Return the configuration that is given in one of several forms.

    Args:
        given: A `Config`, the path of a TOML file, a dictionary of tables, or None for the defaults.

    Returns:
        The configuration.

    Raises:
        ConfigError: It is not valid.
        InputError: It is of another type.

    >>> as_config({"train": {"learning_rate": 0.1}}).train.learning_rate.value
    0.1
    """
    if given is None or isinstance(given, Config):
        return given or Config()
    if isinstance(given, str | os.PathLike):
        return load(Path(given))
    if isinstance(given, Mapping):
        odd = [key for key in given if not isinstance(key, str)]
        if odd:
            raise ConfigError([f"config: {odd[0]!r} is no key; keys are strings, e.g. 'train'"])
        return Config(**given)
    allowed = "a Config, the path of a TOML file or a dictionary of tables"
    raise InputError("config", type(given).__name__, allowed)


def _read(path: Path) -> dict[str, Any]:
    try:
        return bounded.read_toml(path)
    except bounded.MissingFileError as error:
        raise ConfigError([f"{error}; 'dspodfl init {path}' writes one"]) from None
    except DataError as error:
        raise ConfigError([str(error)]) from None


def _apply(raw: dict[str, Any], change: str) -> None:
    name, equals, text = change.partition("=")
    if not equals or split_key(name) is None:
        raise ConfigError([f"--set {change!r}: must be table.key=value"])
    text = text.strip()
    try:
        value = parse_value(text)
    except ValueError:
        allowed = 'a TOML value (a number, a word, "…", […], { … })'
        raise ConfigError([f"--set {change!r}: {text!r} must be {allowed}"]) from None
    assign(raw, name, value, f"--set {change!r}")


def _anchor(raw: dict[str, Any], base: Path) -> None:
    """Make the paths of files absolute."""
    places = [(_within(raw, path.split(".")[:-1]), path.split(".")[-1]) for path in _PATHS]
    turns = _within(raw, ["graph", "dynamics"]).get("graphs")
    places += [(turn, "file") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    peers = _within(raw, ["nodes"]).get("peer")
    places += [(peer, "certificate") for peer in peers if isinstance(peer, dict)] if isinstance(peers, list) else []
    for table, key in places:
        value = table.get(key)
        if isinstance(value, str):
            table[key] = _absolute(value, base)
        elif isinstance(value, list) and key == "certificate":
            table[key] = [_absolute(item, base) if isinstance(item, str) else item for item in value]


def _absolute(path: str, base: Path) -> str:
    return os.path.abspath(base / os.path.expanduser(path))


def _within(raw: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The table under these keys; an empty one where there is none."""
    table: Any = raw
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def dumps(values: dict[str, Any]) -> str:
    """Write a resolved configuration as TOML: top-level values, then tables.

    tomli-w writes keys and scalars. The layout is ours: tomli-w would give each nested table a section of its own and
    each item of a list a line of its own, where a configuration has one line for each key of a table.

    Args:
        values: Nested tables, as ``Config.model_dump()`` returns them; keys whose value is None are left out.

    Returns:
        TOML text that reads back as the same tables.

    >>> print(dumps({"seeds": 2, "train": {"iterations": None, "learning_rate": {"value": 0.1, "kind": "constant"}}}))
    seeds = 2
    <BLANKLINE>
    [train]
    learning_rate = { kind = "constant", value = 0.1 }
    <BLANKLINE>
    """
    top = [_line(key, value) for key, value in values.items() if not isinstance(value, dict) and value is not None]
    for name, table in values.items():
        if isinstance(table, dict):
            top += ["", f"[{_key(name)}]", *(_line(key, value) for key, value in _kind_first(table))]
    return "\n".join(top) + "\n"


def inline(value: Any) -> str:
    r"""Write a value as TOML on one line, tables inline.

    >>> inline({"label": 'a "b"', "rates": [0.5, float("inf")]})
    '{ label = "a \\"b\\"", rates = [0.5, inf] }'
    """
    if isinstance(value, dict):
        inside = ", ".join(_line(key, item) for key, item in _kind_first(value))
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(inline(item) for item in value)}]"
    return tomli_w.dumps({"_": value}).removeprefix("_ = ").removesuffix("\n")


def _line(key: str, value: Any) -> str:
    return f"{_key(key)} = {inline(value)}"


def _key(key: str) -> str:
    """A key, quoted where TOML asks for it."""
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _kind_first(table: dict[str, Any]) -> list[tuple[str, Any]]:
    given = [(key, value) for key, value in table.items() if value is not None]
    return sorted(given, key=lambda item: item[0] not in ("kind", "law", "name"))
